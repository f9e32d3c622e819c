"""A plain training loop over transformers: padded batches, autocast to bf16, fp32 weights, fused AdamW.

The same clipped surrogate with token mean as on the other sides; logits of completion tokens only. It computes no
entropy and no statistics, which spares it some work.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM

from harness.worker import Action, serve


def load(spec: dict[str, Any]) -> dict[str, Action]:
    """Model and optimizer."""
    torch.set_num_threads(spec["threads"])
    model = AutoModelForCausalLM.from_pretrained(spec["model"], dtype=torch.float32, local_files_only=True).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, betas=(0.9, 0.95), weight_decay=0.0, fused=True)

    def update(command: dict[str, Any]) -> dict[str, Any]:
        rows = spec["rows"][command["rows"]]
        total = sum(len(r["completion"]) for r in rows)
        optimizer.zero_grad(set_to_none=True)
        for start in range(0, len(rows), spec["micro_rows"]):
            _loss(model, rows[start : start + spec["micro_rows"]], total).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return {"tokens": total, "grad_norm": float(norm)}

    return {"update": update}


def _loss(model: Any, rows: list[dict[str, Any]], total: int) -> torch.Tensor:
    longest_prompt = max(len(r["prompt"]) for r in rows)
    longest = max(len(r["completion"]) for r in rows)
    left = [longest_prompt - len(r["prompt"]) for r in rows]
    right = [longest - len(r["completion"]) for r in rows]
    padded = [[0] * a + r["prompt"] + r["completion"] + [0] * b for r, a, b in zip(rows, left, right, strict=True)]
    ids = torch.tensor(padded)
    attended = [[0] * a + [1] * (ids.shape[1] - a - b) + [0] * b for a, b in zip(left, right, strict=True)]
    mask = torch.tensor([[1.0] * len(r["completion"]) + [0.0] * b for r, b in zip(rows, right, strict=True)])
    advantages = torch.tensor([r["advantage"] for r in rows])[:, None]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(
            input_ids=ids, attention_mask=torch.tensor(attended), use_cache=False, logits_to_keep=longest + 1
        ).logits[:, :-1]
    logits = logits.float()
    logprobs = logits.gather(-1, ids[:, -longest:, None]).squeeze(-1) - logits.logsumexp(-1)
    ratio = (logprobs - logprobs.detach()).exp()
    losses = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    return (losses * mask).sum() / total


if __name__ == "__main__":
    serve(load)
