"""TRL as an independent oracle: the same losses and gradients on the same log-probs, in TRL's own interpreter."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from posttrain.policy.preference import (
    AnswerScores,
    PairScores,
    answer_losses,
    bradley_terry_losses,
    kto_kl,
    pair_losses,
)
from posttrain.settings.fixed_algorithms import FIXED_ROWS
from posttrain.settings.parts.preference import Preference
from posttrain.settings.parts.supervised import RewardModelling

ROOT = Path(__file__).parents[2]
TRL = ROOT / ".venv-trl" / "bin" / "python"
pytestmark = [pytest.mark.long, pytest.mark.skipif(not TRL.exists(), reason="no .venv-trl: make trl")]


def made() -> dict[str, Any]:
    """Eight rows of up to seven tokens, the first never trained, as TRL lays out a batch: chosen, then rejected."""
    draw = np.random.default_rng(0)
    mask = draw.random((8, 7)) < 0.7
    mask[:, 0], mask[:, 1] = False, True
    return {
        "beta": 0.1,
        "mask": mask.astype(int).tolist(),
        "logps": (-3 * draw.random((8, 7))).tolist(),
        "reference": (-6 * draw.random(8)).tolist(),
        "labels": [True, False, True, True, False, False, True, False],
        "kl_logps": (-4 * draw.random(8)).tolist(),
        "kl_reference": (-6 * draw.random(8)).tolist(),
        "rewards": draw.normal(size=8).tolist(),
        "margins": (0.3 * draw.random(4)).tolist(),
    }


@pytest.fixture(scope="module")
def trl() -> tuple[dict[str, Any], dict[str, Any]]:
    data = made()
    done = subprocess.run(
        [TRL, ROOT / "tests" / "helpers" / "trl_losses.py"], input=json.dumps(data), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return data, json.loads(line.removeprefix("RESULT "))


def ours(name: str, data: dict[str, Any]) -> tuple[float, np.ndarray]:
    mask = torch.tensor(data["mask"]) == 1
    logps = torch.tensor(data["logps"], dtype=torch.float64, requires_grad=True)
    sums, tokens = torch.where(mask, logps, 0.0).sum(1), mask.sum(1)
    reference = torch.tensor(data["reference"], dtype=torch.float64)
    if name == "reward_model":
        leaf = torch.tensor(data["rewards"], dtype=torch.float64, requires_grad=True)
        margins = torch.tensor(data["margins"], dtype=torch.float64)
        loss = bradley_terry_losses(leaf[:4], leaf[4:], margins, RewardModelling(center_weight=0.01), 4).loss
    elif name == "kto":
        leaf = logps
        spec = Preference(link="kto", desirable_weight=1.2, undesirable_weight=0.7)
        kl_logps, kl_reference = (torch.tensor(data[k], dtype=torch.float64) for k in ("kl_logps", "kl_reference"))
        kl = kto_kl(kl_logps, kl_reference, torch.ones(8), spec)
        assert kl > 0
        loss = answer_losses(AnswerScores(sums, reference, tokens, torch.tensor(data["labels"])), spec, kl, 8).loss
    else:
        leaf = logps
        spec = FIXED_ROWS[name].part
        assert isinstance(spec, Preference)
        if name == "ipo":  # TRL takes token means
            spec = spec.model_copy(update={"score": "token_mean"})
        scores = PairScores(sums[:4], sums[4:], tokens[:4], tokens[4:], reference[:4], reference[4:])
        loss = pair_losses(scores, spec, 4).loss
    loss.backward()
    assert leaf.grad is not None
    return loss.item(), leaf.grad.numpy()


@pytest.mark.parametrize("name", ["dpo", "robust_dpo", "ipo", "simpo", "kto", "reward_model"])
def test_losses_and_gradients_are_trls(trl: tuple[dict[str, Any], dict[str, Any]], name: str) -> None:
    data, results = trl
    loss, gradient = ours(name, data)
    np.testing.assert_allclose(loss, results[name]["loss"], rtol=0, atol=1e-9)
    np.testing.assert_allclose(gradient, results[name]["gradient"], rtol=0, atol=1e-9)
