"""The policy a planted run starts from: a tiny model that half knows a task, and how to end a reply.

Reinforcement learning of language models starts from such a model, not from random weights. It was trained for a few
seconds on replies that are right with probability 0.3.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.injection.planted.tasks import write_rows

RIGHT, UPDATES, BATCH, RATE = 0.3, 250, 64, 2e-3


def base_policy(task: str, seed: int, cache: Path) -> Path:
    """Folder of the model, made once for each task and seed."""
    target = cache / f"{task}-{seed}"
    if not (target / "config.json").is_file():
        temporary = target.with_name(f"{target.name}.{os.getpid()}")
        temporary.mkdir(parents=True)
        _make(task, seed, temporary)
        temporary.rename(target)
    return target


def _make(task: str, seed: int, folder: Path) -> None:
    from transformers.utils.logging import disable_progress_bar

    from posttrain.model.tiny import build_tiny

    model: Any
    tokenizer: Any
    model, tokenizer = build_tiny("llama", seed)
    torch.set_num_threads(1)
    rows = [json.loads(line) for path in write_rows(folder, task) for line in path.read_text().splitlines()]
    random = np.random.default_rng(seed)
    answers = sorted({row["answer"] for row in rows})
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    model.train()
    for _ in range(UPDATES):
        texts: list[tuple[list[int], list[int]]] = []
        for index in random.integers(0, len(rows), BATCH):
            row = rows[int(index)]
            character = row["answer"] if random.random() < RIGHT else str(random.choice(answers))
            prompt = tokenizer.apply_chat_template(
                [{"role": "user", "content": row["prompt"]}], add_generation_prompt=True, return_dict=False
            )
            reply = tokenizer.encode(character * int(random.integers(1, 4)), add_special_tokens=False)
            texts.append((list(prompt), [*reply, tokenizer.eos_token_id]))
        width = max(len(p) + len(r) for p, r in texts)
        ids = torch.full((BATCH, width), tokenizer.pad_token_id)
        labels = torch.full((BATCH, width), -100)
        for i, (prompt, reply) in enumerate(texts):
            ids[i, : len(prompt) + len(reply)] = torch.tensor(prompt + reply)
            labels[i, len(prompt) : len(prompt) + len(reply)] = torch.tensor(reply)
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    disable_progress_bar()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
