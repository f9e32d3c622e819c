"""The independent runs are what their truth says they are."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from tests.injection.independent import scored, tasks
from tests.injection.independent.cases import CLEAN, ONSETS, Case, all_cases
from tests.injection.independent.expect import expected_by_rule
from tests.injection.independent.expectations import EXPECTED
from tests.injection.independent.faults import FAULTS
from tests.injection.independent.policy import Policy, base_policy
from tests.injection.independent.run import truth
from tests.injection.independent.tasks import TASKS
from tests.injection.independent.trainer import Step, train
from tests.injection.independent.writers import TrlLog, VerlLog

STEPS = 5
CLEAN_NAME = "parity-dapo"


@dataclass(frozen=True, slots=True)
class Runs:
    """Short runs from a base policy that has hardly learned, whose logs have everything."""

    base: Policy

    def __call__(self, fault: str | None, level: int = 3, onset: int = 3) -> tuple[Case, list[Step]]:
        case = Case("short", CLEAN_NAME, FAULTS[fault] if fault else None, level, onset)
        recipe = replace(case.recipe, steps=STEPS, evaluate_every=2)
        return case, list(train(recipe, copy.deepcopy(self.base), case.conditions))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Of the task that is learned fastest."""
    torch.set_num_threads(1)
    return Runs(base_policy("parity", "recurrent", tmp_path_factory.mktemp("bases"), steps=80))


def history(steps: list[Step], **changed: object) -> list[dict[str, float]]:
    """What TRL would log of the steps, without the time they took."""
    log = TrlLog(replace(CLEAN[CLEAN_NAME], steps=STEPS, **changed))  # type: ignore[arg-type]
    for step in steps:
        log.add(step)
    return [{k: v for k, v in row.items() if k != "step_time"} for row in log.history]


@pytest.fixture(scope="module")
def clean(runs: Runs) -> list[Step]:
    """A short clean run."""
    return runs(None)[1]


@pytest.mark.parametrize(
    ("reply", "right"),
    [
        ([tasks.EQUALS, 9, 10, tasks.EOS], True),
        ([tasks.FILLER, tasks.EQUALS, 9, 10, tasks.EOS], True),
        ([tasks.EQUALS, 9, 10], False),
        ([9, 10, tasks.EOS], False),
        ([tasks.EQUALS, 9, 10, tasks.FILLER, tasks.EOS], False),
        ([tasks.EQUALS, 10, 9, tasks.EOS], False),
        ([], False),
    ],
)
def test_grader_takes_exactly_the_answer_of_an_ended_reply(reply: list[int], right: bool) -> None:
    assert tasks.is_correct(reply, [1, 2]) is right


@pytest.mark.parametrize("name", TASKS)
def test_answers_fit_their_prompt_and_length(name: str) -> None:
    rng = random.Random(0)
    for kind in (tasks.USUAL, tasks.EASY, tasks.HARD):
        digits = TASKS[name].draw(kind, rng)
        assert len(tasks.prompt_tokens(digits)) == tasks.PROMPT_WIDTH
        assert kind == tasks.HARD or len(TASKS[name].answer(digits)) <= TASKS[name].longest_answer


def test_a_run_repeats_itself(runs: Runs, clean: list[Step]) -> None:
    assert history(clean) == history(runs(None)[1])


def test_a_clean_sampler_and_trainer_agree(clean: list[Step]) -> None:
    for step in clean:
        torch.testing.assert_close(step.sampled, step.scored, atol=1e-4, rtol=0)


def test_advantages_sum_to_nothing_in_each_group(clean: list[Step]) -> None:
    recipe = CLEAN[CLEAN_NAME]
    for step in clean:
        means = step.advantages.view(-1, recipe.group).mean(1)
        torch.testing.assert_close(means, torch.zeros_like(means), atol=1e-5, rtol=0)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_run_is_its_twin_until_the_onset(runs: Runs, fault: str, clean: list[Step]) -> None:
    case, steps = runs(fault)
    before = [row for row in history(steps) if row["step"] < case.onset]
    assert before == [row for row in history(clean) if row["step"] < case.onset]
    assert history(steps) != history(clean)


@pytest.mark.parametrize("fault", FAULTS)
def test_magnitudes_differ_from_each_other_and_from_clean(fault: str) -> None:
    plain = CLEAN["copy-grpo"].conditions
    changed = [level(plain, TASKS["copy"]) for level in FAULTS[fault].levels]
    assert len({plain, *changed}) == 4


def test_the_trainer_does_not_know_the_samplers_temperature(runs: Runs) -> None:
    _, steps = runs("sampler_temperature", onset=1)
    assert float((steps[0].sampled - steps[0].scored).abs().mean()) > 0.1


def test_an_engine_with_old_weights_drifts_from_the_trainer(runs: Runs) -> None:
    _, steps = runs("stale_weights", onset=2)
    gaps = [float((s.sampled - s.scored).abs().mean()) for s in steps]
    assert gaps[0] < 1e-4
    assert gaps[1] == pytest.approx(0, abs=1e-4) or gaps[1] < gaps[-1]
    assert gaps[-1] > 0.01


def test_a_poisoned_run_logs_what_each_framework_would(runs: Runs, tmp_path: Path) -> None:
    case, steps = runs("non_finite_gradient")
    logs = TrlLog(replace(case.recipe, steps=STEPS)), VerlLog(case.recipe)
    for log in logs:
        for step in steps:
            log.add(step)
    trl, verl = (log.write(tmp_path)[0].read_text() for log in logs)
    rows = [row for row in json.loads(trl)["log_history"] if "loss" in row]
    assert [row["grad_norm"] == row["grad_norm"] for row in rows] == [True, True, False, False, False]
    assert '"grad_norm": NaN' in trl
    assert json.loads(verl.splitlines()[-1])["data"]["actor/grad_norm"] is None
    assert "NaN" not in verl
    # An engine without finite weights emits token 0 up to the cap.
    assert steps[-1].batch.replies.reply(0) == [tasks.BANG] * case.recipe.conditions.completion_cap


def test_windows_are_means_and_evaluations_are_rows_of_their_own(clean: list[Step]) -> None:
    single, pairs = history(clean), history(clean, log_every=2)
    rewards = [row["reward"] for row in single if "reward" in row]
    assert [row["step"] for row in pairs if "reward" in row] == [2, 4]
    assert pairs[0]["reward"] == pytest.approx((rewards[0] + rewards[1]) / 2)
    assert [row["step"] for row in single if "eval_reward" in row] == [2, 4]


def test_frozen_tensors_stay_as_they_were(runs: Runs) -> None:
    _, steps = runs("frozen_parameters", onset=1)
    assert [u.grad_norm for s in steps for u in s.updates] == [0.0] * STEPS


def test_cases_have_names_of_their_own_and_expectations_fit_one() -> None:
    cases = all_cases()
    names = [case.name for case in cases]
    assert len(set(names)) == len(names)
    assert set(names) >= EXPECTED.keys()
    assert {expected for expected, _ in EXPECTED.values()} <= {"finding", "info", "faint", "none"}
    for case in cases:
        found = truth(case)
        assert found["fault"] is None or (found["changed"] and 1 <= found["onset_step"] < found["steps"])


def test_scored_runs_share_no_seed_task_or_magnitude_with_those_for_tuning() -> None:
    tuning, held_back = all_cases(), all_cases("scored")
    assert not {c.name for c in tuning if c.fault} & {c.name for c in held_back if c.fault}
    for part in ("task", "seed"):
        assert not {getattr(c.recipe, part) for c in tuning} & {getattr(c.recipe, part) for c in held_back}
    plain, task = CLEAN["copy-grpo"].conditions, TASKS["copy"]
    for name, fault in scored.SCORED.items():
        known = {level(plain, task) for level in FAULTS[name].levels}
        same = {level(plain, task) for level in fault.levels} & known
        assert len(same) < len(fault.levels)


def test_every_fault_is_scored_at_every_onset() -> None:
    names = [c.name for c in all_cases("scored") if c.fault]
    assert len(set(names)) == len(names)
    for name in FAULTS:
        assert {n.split(".")[1] for n in names if n.startswith(f"scored-{name}.")} == set(ONSETS)


def test_the_rule_calls_a_run_like_its_twin_faint(clean: list[Step], tmp_path: Path) -> None:
    for name in ("twin", "run"):
        log = TrlLog(replace(CLEAN[CLEAN_NAME], steps=STEPS))
        for step in clean:
            log.add(step)
        log.write(tmp_path / name)
    found = {
        "logs": {"trl": "trl/trainer_state.json"},
        "clean_twin": "twin",
        "fault": "entropy_collapse",
        "onset_step": 1,
        "steps": STEPS,
        "signals": ["entropy", "reward"],
    }
    assert expected_by_rule(tmp_path / "run", found)[0] == "faint"
