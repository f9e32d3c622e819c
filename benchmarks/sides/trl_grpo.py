"""TRL's GRPOTrainer. Runs in TRL's own interpreter.

A callback holds the trainer before each step until it is told to go on, and answers after it. With ``rows`` the
trainer is handed finished trajectories instead of sampling some, so that only loss, backward and step remain.
"""

from __future__ import annotations

import sys
import tempfile
import time
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from harness.rewards import spread
from harness.worker import Channel


class Gate(TrainerCallback):
    """Lets one optimizer step pass for each command."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.rows = ""
        self._started = 0.0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Everything is loaded."""
        self.channel.reply({})

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Wait for the next command; end the process when there is none."""
        command = self.channel.next()
        if command is None:
            sys.exit(0)
        self.rows = command.get("rows", "")
        self._started = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Say how long the step took."""
        seconds = time.perf_counter() - self._started
        self.channel.reply({"seconds": seconds, "tokens": self.channel.spec["tokens"].get(self.rows, 0)})


class GivenRows(GRPOTrainer):
    """Trains on trajectories it is handed."""

    given: dict[str, dict[str, torch.Tensor]]
    gate: Gate

    def _generate_and_score_completions(self, _: Any) -> dict[str, torch.Tensor]:
        return dict(self.given[self.gate.rows])


def tensors_of(rows: list[dict[str, Any]], pad: int) -> dict[str, torch.Tensor]:
    """Rows as the trainer's own generation would leave them: prompts padded left, completions right."""
    prompt, longest = max(len(r["prompt"]) for r in rows), max(len(r["completion"]) for r in rows)
    return {
        "prompt_ids": torch.tensor([[pad] * (prompt - len(r["prompt"])) + r["prompt"] for r in rows]),
        "prompt_mask": torch.tensor([[0] * (prompt - len(r["prompt"])) + [1] * len(r["prompt"]) for r in rows]),
        "completion_ids": torch.tensor([r["completion"] + [pad] * (longest - len(r["completion"])) for r in rows]),
        "completion_mask": torch.tensor(
            [[1] * len(r["completion"]) + [0] * (longest - len(r["completion"])) for r in rows]
        ),
        "advantages": torch.tensor([r["advantage"] for r in rows]),
        "num_items_in_batch": torch.tensor(sum(len(r["completion"]) for r in rows)),
    }


def main() -> None:
    """Build the trainer and let it run from command to command."""
    channel = Channel()
    spec = channel.spec
    torch.set_num_threads(spec["threads"])
    model = AutoModelForCausalLM.from_pretrained(
        spec["model"], dtype=getattr(torch, spec["weights"]), local_files_only=True
    )
    tokenizer = AutoTokenizer.from_pretrained(spec["model"], local_files_only=True)
    gate = Gate(channel)
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=True,
        per_device_train_batch_size=spec["micro_rows"],
        gradient_accumulation_steps=spec["batch_rows"] // spec["micro_rows"],
        gradient_checkpointing=spec["checkpointing"],
        num_generations=spec["group_size"],
        max_completion_length=spec["new_tokens"],
        generation_kwargs={"min_new_tokens": spec["new_tokens"]},
        learning_rate=1e-6,
        lr_scheduler_type="constant",
        max_steps=1_000_000,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    dataset = Dataset.from_list([{"prompt": [{"role": "user", "content": q}]} for q in spec["questions"]])
    kind = GivenRows if "rows" in spec else GRPOTrainer
    trainer = kind(
        model=model,
        reward_funcs=spread,
        args=config,
        train_dataset=dataset,
        processing_class=tokenizer,
        callbacks=[gate],
    )
    if isinstance(trainer, GivenRows):
        trainer.gate = gate
        trainer.given = {name: tensors_of(rows, tokenizer.pad_token_id) for name, rows in spec["rows"].items()}
    trainer.train()


if __name__ == "__main__":
    main()
