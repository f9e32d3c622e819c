"""Runs in TRL's own interpreter: its trainers' losses, and their gradients, on log-probs given as JSON on stdin.

The trainers' methods are called on a stand-in for the trainer whose model returns the given log-probs, so that what
is measured is TRL's code alone.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import torch


class Accelerator:
    device = torch.device("cpu")

    def gather(self, value: Any) -> Any:
        return value

    gather_for_metrics = gather


def trainer(**fields: Any) -> SimpleNamespace:
    args = SimpleNamespace(gradient_checkpointing_kwargs=None, center_rewards_coefficient=fields.pop("center", None))
    return SimpleNamespace(
        accelerator=Accelerator(),
        args=args,
        model=SimpleNamespace(training=True),
        _metrics={"train": defaultdict(list)},
        _total_train_tokens=0,
        _tp_size=1,
        aux_loss_enabled=False,
        precompute_ref_logps=True,
        **fields,
    )


def outputs(logps: torch.Tensor) -> Any:
    zeros = torch.zeros_like(logps)
    return SimpleNamespace(log_probs=logps, entropy=zeros, mean_logits=zeros, is_top1=zeros.bool())


def dpo(data: dict[str, Any], loss_type: str, smoothing: float) -> tuple[torch.Tensor, torch.Tensor]:
    from trl import DPOTrainer

    me = trainer(
        loss_types=[loss_type],
        loss_weights=[1.0],
        label_smoothing=smoothing,
        beta=data["beta"],
        f_divergence_type="reverse_kl",
        ld_alpha=None,
        use_weighting=False,
    )
    mask = torch.tensor(data["mask"], dtype=torch.long)
    logps = torch.tensor(data["logps"], dtype=torch.float64, requires_grad=True)
    pairs = len(mask) // 2
    reference = torch.tensor(data["reference"], dtype=torch.float64)
    inputs = {
        "input_ids": torch.zeros_like(mask),
        "attention_mask": torch.ones_like(mask),
        "completion_mask": mask,
        "ref_chosen_logps": reference[:pairs],
        "ref_rejected_logps": reference[pairs:],
    }
    model = lambda **_: outputs(torch.where(mask[:, 1:] == 1, logps[:, 1:], 0.0))  # noqa: E731
    return DPOTrainer._compute_loss(me, model, inputs, False), logps


def kto(data: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    from trl import KTOTrainer

    me = trainer(loss_type="kto", beta=data["beta"], desirable_weight=1.2, undesirable_weight=0.7, calculate_KL=True)
    mask = torch.tensor(data["mask"], dtype=torch.long)
    logps = torch.tensor(data["logps"], dtype=torch.float64, requires_grad=True)
    me._compute_kl_logps = lambda *_: torch.tensor(data["kl_logps"], dtype=torch.float64)
    inputs = {
        "input_ids": torch.zeros_like(mask),
        "attention_mask": torch.ones_like(mask),
        "completion_mask": mask,
        "label": torch.tensor(data["labels"]),
        "ref_logps": torch.tensor(data["reference"], dtype=torch.float64),
        "ref_KL_logps": torch.tensor(data["kl_reference"], dtype=torch.float64),
    }
    model = lambda **_: outputs(torch.where(mask[:, 1:] == 1, logps[:, 1:], 0.0))  # noqa: E731
    return KTOTrainer._compute_loss(me, model, inputs, False), logps


def reward(data: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    from trl import RewardTrainer

    me = trainer(center=0.01)
    values = torch.tensor(data["rewards"], dtype=torch.float64, requires_grad=True)
    inputs = {
        "attention_mask": torch.ones(len(values), 1),
        "margin": torch.tensor(data["margins"], dtype=torch.float64),
    }
    loss = RewardTrainer.compute_loss(me, lambda **_: SimpleNamespace(logits=values[:, None]), inputs)
    return loss, values


def simpo(data: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    from trl.experimental.cpo import CPOTrainer

    me = trainer(alpha=0.0, beta=2.0, loss_type="simpo", simpo_gamma=1.0, label_smoothing=0.0)
    mask = torch.tensor(data["mask"], dtype=torch.long)
    logps = torch.tensor(data["logps"], dtype=torch.float64, requires_grad=True)
    means = torch.where(mask == 1, logps, 0.0).sum(1) / mask.sum(1)
    pairs = len(mask) // 2
    return CPOTrainer.cpo_loss(me, means[:pairs], means[pairs:])[0].mean(), logps


def main() -> None:
    data = json.load(sys.stdin)
    cases = {
        "dpo": lambda: dpo(data, "sigmoid", 0.0),
        "robust_dpo": lambda: dpo(data, "robust", 0.1),
        "ipo": lambda: dpo(data, "ipo", 0.0),
        "kto": lambda: kto(data),
        "reward_model": lambda: reward(data),
        "simpo": lambda: simpo(data),
    }
    results = {}
    for name, run in cases.items():
        loss, leaf = run()
        loss.backward()
        results[name] = {"loss": loss.item(), "gradient": leaf.grad.tolist()}
    print("RESULT " + json.dumps(results))


if __name__ == "__main__":
    main()
