"""Whole runs with every kind of reference: what they write, and that a resumed one is the uninterrupted one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from processes import Death, command_line
from small_runs import fingerprint, lineage_problems, measured, small_config

from posttrain.rundir.reading import LoadedRun, load_run

ANCHORED: dict[str, dict[str, Any]] = {
    "ema": {"reference": "ema", "ema_rate": 0.3, "ema_every": 2, "gradient_every": 2},
    "reset": {"reset_every": 2, "estimator": "k2"},
    "whole": {"estimator": "full_vocabulary", "reset_every": 4, "gradient_every": 1},
    "target": {"target_kl": 1e-4, "estimator": "k3_corrected", "reset_on_stagnation": 2},
}
LORA = {"rank": 4, "alpha": 8.0}


def sections(anchor: dict[str, Any], **more: Any) -> dict[str, Any]:
    policy = {"algorithm": "grpo", "learning_rate": 3e-3, "anchor": {"weight": 0.1, **anchor}}
    return {"policy": policy, "evaluation": {"samples": 2, "k": [1], "max_tasks": 3, "every": 1}, **more}


def train(folder: Path, death: Death | None = None, **given: Any) -> Path:
    run = folder / "run"
    ended = command_line(["train", small_config(folder, **given), "--run", run], folder / "log", death)
    if death is not None:
        assert ended.code < 0
        ended = command_line(["resume", run], folder / "again")
    assert ended.code == 0, ended.err + ended.out[-1000:]
    assert lineage_problems(run) == []
    return run


def course(loaded: LoadedRun, name: str) -> list[float | None]:
    return [row.values.get(name) for row in loaded.metrics.rows if row.phase == "train"]


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("name", ANCHORED)
def test_a_run_that_is_killed_and_resumed_ends_as_if_it_had_not_been(name: str, lora: bool, tmp_path: Path) -> None:
    if lora and name == "ema":
        pytest.skip("refused: tests/policy/test_reference.py")
    given = sections(ANCHORED[name])
    if lora:
        given["model"] = {"path": "tiny:llama", "compute_dtype": "float32", "lora": LORA}
    whole = train(tmp_path / "whole", **given)
    death = Death("posttrain.orchestration.loop:Loop.train_step", call=4)
    killed = train(tmp_path / "killed", death, **given)
    assert fingerprint(killed) == fingerprint(whole)
    assert measured(killed) == measured(whole)


def test_the_divergence_starts_again_after_a_reset(tmp_path: Path) -> None:
    loaded = load_run(train(tmp_path, **sections({"reset_every": 2})))
    kl = course(loaded, "policy/anchor_kl")
    assert course(loaded, "policy/anchor_resets") == [0, 1, 1, 2, 2, 3]
    fresh, moved = [kl[i] for i in (0, 2, 4)], [kl[i] for i in (1, 3, 5)]
    assert max(v for v in fresh if v is not None) < 1e-6
    assert min(v for v in moved if v is not None) > 1e-5


def test_the_weight_follows_the_divergence_and_the_pull_is_measured(tmp_path: Path) -> None:
    loaded = load_run(train(tmp_path / "a", **sections(ANCHORED["target"])))
    factors = course(loaded, "policy/anchor_factor")
    # Before the first update the policy is the reference: too close, so the weight halves; then it is pulled up.
    assert factors[:2] == [1.0, 0.5]
    assert factors[-1] is not None
    assert factors[-1] > 0.5
    loaded = load_run(train(tmp_path / "b", **sections(ANCHORED["ema"])))
    ratios = course(loaded, "policy/anchor_gradient_ratio")
    assert [r is not None for r in ratios] == [False, True, False, True, False, True]
    assert course(loaded, "policy/anchor_resets") == [0.0] * 6


def test_a_reference_of_its_own_is_another_model_and_the_whole_divergence_is_what_the_estimate_estimates(
    tmp_path: Path,
) -> None:
    """Anchored to a trained model: the run starts far away from it, and the two measures of how far agree."""
    other = train(tmp_path / "other", policy={"algorithm": "reinforce_loo", "learning_rate": 5e-3})
    found: list[float] = []
    for estimator in ("k3", "full_vocabulary"):
        anchor = {"reference": str(other / "model"), "estimator": estimator, "weight": 1e-6}
        loaded = load_run(
            train(
                tmp_path / estimator,
                **sections(anchor, rollout={"prompts_per_step": 20, "group_size": 16}, run={"steps": 1}),
            )
        )
        (kl,) = course(loaded, "policy/anchor_kl")
        assert kl is not None
        found.append(kl)
    assert found[1] > 0.02
    assert found[0] == pytest.approx(found[1], rel=0.25)
