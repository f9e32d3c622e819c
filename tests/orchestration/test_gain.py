"""The gain: parts that add up, a verdict that follows the data, a comparison at equal cost."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.errors import InputError
from posttrain.orchestration.evaluation import EvaluationSet, Sample, TaskResult, summarize
from posttrain.orchestration.evaluation_report import evaluation_report
from posttrain.orchestration.gain import (
    VerdictKind,
    compare_cost,
    decompose,
    measure_gain,
    pair_tasks,
    sharpened_or_extended,
)


def _task(name: str, successes: int, attempts: int = 16, *, tokens: int = 10) -> TaskResult:
    samples = tuple(Sample(float(i < successes), i < successes, tokens, False, True) for i in range(attempts))
    return TaskResult(name, name, samples)


def _set(*successes: int, attempts: int = 16, tokens: int = 10) -> EvaluationSet:
    return EvaluationSet("env", tuple(_task(f"t{i}", s, attempts, tokens=tokens) for i, s in enumerate(successes)))


def test_gain_on_tasks_already_solved_sometimes_is_sharpening() -> None:
    verdict = sharpened_or_extended(pair_tasks(_set(*[2] * 20), _set(*[15] * 20)))
    assert verdict.kind is VerdictKind.SHARPENED
    assert "sharpened" in verdict.sentence
    assert "100% of the gain of 81 points" in verdict.sentence
    assert verdict.bins[-1].tasks == 20
    assert verdict.bins[-1].gain_share == pytest.approx(1.0)


def test_gain_on_tasks_never_solved_is_extension_and_says_what_could_hide() -> None:
    base, trained = _set(*[0] * 15, *[8] * 5), _set(*[12] * 15, *[9] * 5)
    verdict = sharpened_or_extended(pair_tasks(base, trained))
    assert verdict.kind is VerdictKind.EXTENDED
    assert verdict.bins[0].tasks == 15
    assert verdict.bins[0].trained_success == pytest.approx(0.75)
    assert "15 of 20 tasks" in verdict.sentence
    assert "up to 17% per attempt" in verdict.sentence, "1 - 0.05^(1/16)"
    assert "pass@16 0.25 before, 1.00 after" in verdict.sentence


def test_gain_on_both_is_called_both() -> None:
    verdict = sharpened_or_extended(pair_tasks(_set(*[0] * 7, *[2] * 13), _set(*[12] * 20)))
    assert verdict.kind is VerdictKind.BOTH
    assert sum(b.gain_share or 0.0 for b in verdict.bins) == pytest.approx(1.0)


def test_no_change_and_loss_are_not_dressed_up() -> None:
    assert sharpened_or_extended(pair_tasks(_set(4, 8, 4, 8), _set(5, 7, 3, 9))).kind is VerdictKind.NO_CHANGE
    worse = sharpened_or_extended(pair_tasks(_set(*[12] * 9), _set(*[2] * 9)))
    assert worse.kind is VerdictKind.WORSE
    assert "worse by 62 points" in worse.sentence
    assert all(b.gain_share is None for b in worse.bins)


def test_more_base_attempts_resolve_the_middle_bins() -> None:
    base, trained = _set(1, 4, 40, 0, attempts=64), _set(50, 50, 50, 50, attempts=64)
    verdict = sharpened_or_extended(pair_tasks(base, trained))
    assert verdict.k == 16
    assert [b.tasks for b in verdict.bins] == [1, 1, 1, 1]


def test_pairing_is_by_task_and_not_by_position() -> None:
    base = EvaluationSet("env", (_task("a", 0), _task("b", 16)))
    trained = EvaluationSet("env", (_task("b", 16), _task("a", 8), _task("c", 16)))
    gain = measure_gain(base, trained, [1])
    assert gain.tasks == 2
    assert gain.differences["pass@1"].value == pytest.approx(0.25)
    assert gain.differences["pass@1"].low >= 0.0, "no task got worse, so no resample may"


def test_nothing_to_compare_is_refused() -> None:
    ungraded = EvaluationSet("env", (TaskResult("t0", "t0", (Sample(None, False, 4, False),)),))
    with pytest.raises(InputError, match="no task has a graded attempt"):
        measure_gain(_set(1), ungraded, [1])


_sample = st.builds(
    lambda parsable, right, cut: Sample(float(right and parsable), right and parsable, 5, cut, parsable),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
_tasks = st.lists(st.lists(_sample, min_size=1, max_size=6), min_size=1, max_size=5)


@given(base=_tasks, trained=_tasks)
@settings(max_examples=150)
def test_the_parts_always_add_up_to_the_gain(base: list[list[Sample]], trained: list[list[Sample]]) -> None:
    count = min(len(base), len(trained))
    pairs = [
        (TaskResult(str(i), str(i), tuple(base[i])), TaskResult(str(i), str(i), tuple(trained[i])))
        for i in range(count)
    ]
    split = decompose(pairs)
    gain = sum(after.pass_at(1) - before.pass_at(1) for before, after in pairs) / count
    assert split.total == pytest.approx(gain, abs=1e-12)
    assert split.format + split.correctness + split.termination == pytest.approx(gain, abs=1e-12)


def _mixture(finished_right: int, finished_wrong: int, unparsable: int, cut: int) -> TaskResult:
    samples = (
        [Sample(1.0, True, 5, False, True)] * finished_right
        + [Sample(0.0, False, 5, False, True)] * finished_wrong
        + [Sample(0.0, False, 5, False, False)] * unparsable
        + [Sample(0.0, False, 9, True, False)] * cut
    )
    return TaskResult("t", "t", tuple(samples))


@pytest.mark.parametrize(
    ("before", "after", "part"),
    [
        (_mixture(2, 8, 0, 0), _mixture(8, 2, 0, 0), "correctness"),
        (_mixture(2, 0, 8, 0), _mixture(8, 0, 2, 0), "format"),
        (_mixture(2, 0, 0, 8), _mixture(8, 0, 0, 2), "termination"),
    ],
)
def test_a_gain_of_one_kind_is_given_to_that_part_alone(before: TaskResult, after: TaskResult, part: str) -> None:
    split = decompose([(before, after)])
    parts = {"format": split.format, "correctness": split.correctness, "termination": split.termination}
    assert parts.pop(part) == pytest.approx(0.6)
    assert all(value == pytest.approx(0.0, abs=1e-12) for value in parts.values())
    assert split.format_known


def test_without_a_word_on_parsing_format_is_zero_and_marked_unknown() -> None:
    before, after = (
        TaskResult("t", "t", tuple(Sample(float(i < n), i < n, 5, False, None) for i in range(10))) for n in (1, 7)
    )
    split = decompose([(before, after)])
    assert split.format == 0.0
    assert not split.format_known
    assert split.correctness == pytest.approx(0.6)


def test_cost_says_how_many_base_attempts_equal_one_trained() -> None:
    base = summarize(_set(*[4] * 10, tokens=20), [1]).cost_curve
    trained = summarize(_set(*[12] * 10, tokens=8), [1]).cost_curve
    cost = compare_cost(base, trained)
    assert cost.trained_tokens == 8.0
    assert cost.trained_success == pytest.approx(0.75)
    assert cost.base_attempts_to_match is not None
    assert 4.0 < cost.base_attempts_to_match < 8.0
    assert cost.base_tokens_to_match == pytest.approx(20 * cost.base_attempts_to_match)


def test_cost_when_the_base_never_gets_there_and_when_it_is_there_already() -> None:
    weak, strong = (summarize(_set(*s), [1]).cost_curve for s in ([0, 0, 4, 4], [12, 12, 12, 12]))
    never = compare_cost(weak, strong)
    assert never.base_attempts_to_match is None
    assert "16 base attempts (160 tokens) reach 50%" in never.sentence
    assert compare_cost(strong, weak).base_attempts_to_match == 1.0


def test_the_report_is_strict_json_and_complete() -> None:
    base, trained = _set(0, 2, 4), _set(8, 12, 16)
    gain = measure_gain(base, trained, [1, 4, 32], constant_answer_success=0.1)
    before, after = summarize(base, [1, 4]), summarize(trained, [1, 4])
    report = evaluation_report({"env": before, "other": before}, {"env": after}, {"env": gain})
    data = json.loads(json.dumps(report, allow_nan=False))
    entry = data["environments"]["env"]
    assert entry["gain"]["pass@1"]["value"] == pytest.approx(0.625)
    assert "pass@32" not in entry["gain"]
    assert entry["verdict"]["kind"] == gain.verdict.kind.value
    assert entry["decomposition"]["total"] == pytest.approx(0.625)
    assert entry["constant_answer_success"] == 0.1
    assert len(entry["cost_curve"]["trained"]) == 5
    assert "sentence" in entry["cost"]
    assert set(data["environments"]["other"]) == {"before", "cost_curve"}
