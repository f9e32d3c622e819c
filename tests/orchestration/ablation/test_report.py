"""Arms beside the base, from outcomes written by hand."""

from __future__ import annotations

import json
import math
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from small_runs import small_config

from posttrain.orchestration.ablation.outcome import Outcome, State, TaskScore
from posttrain.orchestration.ablation.plan import AblationPlan, plan_ablation
from posttrain.orchestration.ablation.report import RunRecord, compare, document, print_report
from posttrain.rundir.files import strict_json

CHANGES = ["policy.algorithm=dapo,gspo", "environments.toy.success_threshold=0.5"]


@pytest.fixture
def plan(tmp_path: Path) -> AblationPlan:
    return plan_ablation(small_config(tmp_path), CHANGES, 3)


def outcome(*rewards: float) -> Outcome:
    """Tasks a, b... of which two at a time share a cluster; a reward above a half is a success."""
    tasks = {f"toy/{chr(97 + i)}": TaskScore(f"toy/{i // 2}", r, float(r > 0.5)) for i, r in enumerate(rewards)}
    return Outcome(tasks, 0.25, 6, 2.0)


def records(plan: AblationPlan, arms: dict[str, list[Outcome | None]]) -> list[RunRecord]:
    return [
        RunRecord(job, State.FINISHED if found else State.FAILED, found, "" if found else "error: lost")
        for job in plan.jobs(Path("out"))
        for found in [arms[job.arm.name][job.seed]]
    ]


def filled(plan: AblationPlan) -> list[RunRecord]:
    base: list[Outcome | None] = [outcome(0.1, 0.3), outcome(0.3, 0.5), outcome(0.5, 0.7)]
    better: list[Outcome | None] = [outcome(0.3, 0.5), outcome(0.6, 0.8), outcome(0.9, 1.1)]
    holes: list[Outcome | None] = [outcome(0.0, 0.2), None, outcome(0.2, 0.4)]
    same: list[Outcome | None] = [None, None, None]
    names = [arm.name for arm in plan.arms]
    return records(plan, dict(zip(names, (base, better, holes, same), strict=True)))


def test_differences_by_seed_and_by_task(plan: AblationPlan) -> None:
    found = {(c.arm.text, c.quantity): c for c in compare(plan, filled(plan))}
    better = found["dapo", "held_out_reward"]
    # Differences 0.2, 0.3, 0.4; base 0.2, 0.4, 0.6 with standard deviation 0.2; t = 0.3 / (0.1 / sqrt 3).
    assert better.by_seed.differences == pytest.approx((0.2, 0.3, 0.4))
    assert better.by_seed.effect == pytest.approx(1.5)
    p = 1 - math.sqrt(27 / 29)
    assert better.by_seed.p == pytest.approx(p)
    # Three arms are compared, one of which has nothing: p is multiplied by 3 all the same.
    assert better.holm_p == pytest.approx(3 * p)
    assert better.over_tasks is not None
    assert better.over_tasks.value == pytest.approx(0.3)
    holes = found["gspo", "held_out_reward"]
    assert holes.by_seed.seeds == (0, 2)
    assert holes.by_seed.differences == pytest.approx((-0.1, -0.3))
    success = found["dapo", "held_out_success"]
    assert success.by_seed.differences == (0.0, 1.0, 0.5)
    assert ("0.5", "held_out_reward") not in found


def test_document_is_strict_json_and_says_what_is_missing(plan: AblationPlan) -> None:
    data = json.loads(strict_json(document(plan, filled(plan), Path("out"))))
    assert data["complete"] is False
    assert [run["state"] for run in data["runs"]].count("failed") == 4
    assert data["summary"][0]["held_out_reward"] == {
        "mean": pytest.approx(0.4),
        "standard_deviation": pytest.approx(0.2),
    }
    assert data["runs"][0]["environments"]["toy"]["tasks"] == 2
    assert data["runs"][0]["run"] == "base/seed-0"


def test_what_is_printed(plan: AblationPlan) -> None:
    text = StringIO()
    print_report(plan, filled(plan), Console(file=text, width=100, markup=False))
    shown = " ".join(text.getvalue().split())
    assert "+0.300 (+0.052 to +0.548)" in shown
    assert "2 of 3" in shown
    assert "3 arms beside the base, 3 seeds" in shown
    assert "success_threshold=0.5: measured by other tasks or rewards" in shown
    assert "policy.algorithm=gspo, seed 1 failed: error: lost" in shown


def test_one_seed_has_no_interval(tmp_path: Path) -> None:
    plan = plan_ablation(small_config(tmp_path), ["policy.algorithm=dapo"], 1)
    found = records(plan, {"base": [outcome(0.2)], "policy.algorithm=dapo": [outcome(0.6)]})
    text = StringIO()
    print_report(plan, found, Console(file=text, width=100, markup=False))
    assert "With one seed there is no interval" in text.getvalue()
    (reward, _) = document(plan, found, Path("out"))["comparisons"]
    assert reward["difference"] == {
        "mean": pytest.approx(0.4),
        "low": None,
        "high": None,
        "p": None,
        "effect": None,
        "by_seed": {"0": pytest.approx(0.4)},
    }
