"""transformers: one left-padded batch through ``model.generate``. It returns no log-probs: some work it is spared."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from harness.worker import Action, serve


def load(spec: dict[str, Any]) -> dict[str, Action]:
    """The model in bf16 with its default attention."""
    torch.set_num_threads(spec["threads"])
    model = AutoModelForCausalLM.from_pretrained(spec["model"], dtype=torch.bfloat16, local_files_only=True).eval()
    config = GenerationConfig(
        do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=spec["new_tokens"], pad_token_id=0
    )

    @torch.inference_mode()
    def rollout(command: dict[str, Any]) -> dict[str, Any]:
        torch.manual_seed(command["seed"])
        prompts = command["prompts"]
        longest = max(len(p) for p in prompts)
        ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
        out = model.generate(input_ids=ids, attention_mask=mask, generation_config=config)
        return {"tokens": (out.shape[1] - longest) * len(prompts)}

    model.generation_config.eos_token_id = None
    return {"rollout": rollout}


if __name__ == "__main__":
    serve(load)
