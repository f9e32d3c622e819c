"""The right root first: ranking, consequences, rows of layers, and detectors that fail."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from fakes import detector, finding
from hypothesis import given
from hypothesis import strategies as st
from series import history

from posttrain.faultmap.causes import SYMPTOMS
from posttrain.faultmap.detectors import DETECTORS
from posttrain.faultmap.diagnosis import Diagnosis, State, diagnose, rank, slack_of
from posttrain.faultmap.finding import Finding, Severity
from posttrain.signals.signal import Layer

LOG = history({"policy/entropy": np.linspace(2, 1, 100), "reward/mean": np.linspace(0, 1, 100)})


def state(diagnosis: Diagnosis, layer: Layer) -> State:
    return next(row.state for row in diagnosis.rows if row.layer is layer)


def test_a_cause_in_another_layer_marks_both_rows_and_leads_from_its_own() -> None:
    hacked = finding(onset=40, severity=Severity.CRITICAL, cause="reward_hacked")
    diagnosis = diagnose(LOG, [detector("alpha", [hacked])])
    assert state(diagnosis, Layer.REWARD) is State.CRITICAL
    assert state(diagnosis, Layer.POLICY) is State.CRITICAL
    assert state(diagnosis, Layer.LOGPROBS) is State.UNKNOWN


def test_the_row_shows_the_finding_whose_cause_lies_there_before_a_mere_symptom() -> None:
    symptom = finding("alpha", 5, cause="reward_hacked")
    own = finding("beta", 50, cause="no_exploration")
    diagnosis = diagnose(LOG, [detector("alpha", [symptom]), detector("beta", [own])])
    row = next(row for row in diagnosis.rows if row.layer is Layer.POLICY)
    assert row.worst == own


def test_a_layer_is_healthy_only_if_a_detector_looked_at_a_signal_of_it() -> None:
    looks = detector(
        "alpha", sharpened_by=("reward/mean", "logprobs/mismatch_mean", "evaluation/{environment}/pass@{k}")
    )
    diagnosis = diagnose(LOG, [looks])
    assert state(diagnosis, Layer.POLICY) is State.HEALTHY
    assert state(diagnosis, Layer.REWARD) is State.HEALTHY
    assert state(diagnosis, Layer.LOGPROBS) is State.UNKNOWN, "the signal is not in the log"
    assert state(diagnosis, Layer.PARALLEL) is State.UNKNOWN


def test_info_is_no_illness() -> None:
    diagnosis = diagnose(LOG, [detector("alpha", [finding(severity=Severity.INFO)])])
    assert state(diagnosis, Layer.POLICY) is State.INFO
    assert diagnosis.severity is Severity.INFO
    assert diagnose(LOG, [detector("alpha")]).severity is None


def test_what_lacks_its_signals_is_not_asked_and_says_what_it_lacks() -> None:
    def never(_: object) -> list[Finding]:
        raise AssertionError("asked without what it needs")

    lacking = detector("alpha", judge=never, needs=(("reward/mean",), ("policy/grad_norm", "policy/approx_kl")))
    diagnosis = diagnose(LOG, [lacking])
    assert diagnosis.failures == ()
    (unjudged,) = diagnosis.unjudged
    assert unjudged.missing == (("policy/grad_norm", "policy/approx_kl"),)
    assert next(row for row in diagnosis.rows if row.layer is Layer.POLICY).unjudged == (unjudged,)


@pytest.mark.parametrize(
    ("said", "part"),
    [
        ([finding("other")], "signs as other"),
        ([finding(cause="bad_luck")], "bad_luck"),
        ([finding(symptom="looks_odd")], "looks_odd"),
        (None, "ZeroDivisionError"),
    ],
)
def test_a_detector_that_fails_is_named_and_the_others_still_speak(said: list[Finding] | None, part: str) -> None:
    def judge(_: object) -> list[Finding]:
        return said if said is not None else [finding(confidence=1 / 0)]

    diagnosis = diagnose(LOG, [detector("alpha", judge=judge), detector("beta", [finding("beta")])])
    (failure,) = diagnosis.failures
    assert failure.detector == "alpha"
    assert part in failure.problem
    assert [f.detector for f in diagnosis.all_findings] == ["beta"]


def test_a_failed_detector_judges_no_layer() -> None:
    def judge(_: object) -> list[Finding]:
        raise ValueError("broken")

    assert state(diagnose(LOG, [detector("alpha", judge=judge)]), Layer.POLICY) is State.UNKNOWN


def test_a_consequence_stands_under_its_root_and_lends_it_its_severity() -> None:
    gap = finding("gap", 20, Severity.WARN, symptom="mismatch_jump", cause="stale_weights")
    lost = finding("lost", 60, Severity.CRITICAL, symptom="reward_lost", cause="policy_collapsed")
    other = finding("other", 5, Severity.CRITICAL)
    ranked = rank([lost, other, gap], {"lost": ("gap",)}, slack=3)
    assert [(r.finding.detector, [c.detector for c in r.consequences]) for r in ranked] == [
        ("other", []),
        ("gap", ["lost"]),
    ]
    assert ranked[1].severity is Severity.CRITICAL


def test_what_a_detector_says_again_of_a_cause_is_the_first_trouble_gone_further() -> None:
    shaken, lost = finding("reward", 90), finding("reward", 150, Severity.CRITICAL)
    other = finding("reward", 150, Severity.CRITICAL, cause="stale_weights")
    ranked = rank([lost, other, shaken], {}, slack=5)
    assert [(r.finding.onset_step, [c.onset_step for c in r.consequences]) for r in ranked] == [(90, [150]), (150, [])]


@pytest.mark.parametrize(("root_onset", "is_root"), [(60, True), (63, True), (64, False)])
def test_what_begins_later_than_the_slack_explains_nothing(root_onset: int, is_root: bool) -> None:
    ranked = rank([finding("root", root_onset), finding("lost", 60)], {"lost": ("root",)}, slack=3)
    assert [r.finding.detector for r in ranked] == (["root"] if is_root else ["lost", "root"])


def test_a_chain_hangs_on_its_first_link_and_a_ring_on_its_surest_or_earliest() -> None:
    chain = {"c": ("b",), "b": ("a",)}
    ranked = rank([finding("c", 30), finding("b", 20), finding("a", 10)], chain, slack=1)
    assert [(r.finding.detector, [c.detector for c in r.consequences]) for r in ranked] == [("a", ["b", "c"])]
    ring = {"a": ("b",), "b": ("c",), "c": ("a",)}
    ranked = rank([finding("c", 9), finding("b", 11), finding("a", 10)], ring, slack=5)
    assert [(r.finding.detector, [c.detector for c in r.consequences]) for r in ranked] == [("c", ["a", "b"])]
    surest = rank([finding("c", 9), finding("b", 11, confidence=0.95), finding("a", 10)], ring, slack=5)
    assert [r.finding.detector for r in surest] == ["b"]


def test_onsets_within_the_slack_are_one_event_and_the_order_of_inspection_decides() -> None:
    update = finding("update", 48, cause="learning_rate_too_high")
    reward = finding("reward", 50, cause="reward_hacked")
    early = finding("early", 10, cause="stale_weights")
    assert [r.finding.detector for r in rank([update, reward, early], {}, slack=5)] == ["early", "reward", "update"]
    assert [r.finding.detector for r in rank([update, reward, early], {}, slack=1)] == ["early", "update", "reward"]


def test_slack_is_at_least_two_logged_points() -> None:
    assert slack_of(history({"reward/mean": [0.0] * 1000})) == pytest.approx(50)
    assert slack_of(history({"reward/mean": [0.0] * 20}, every=10)) == pytest.approx(2 * 191 / 20)
    assert slack_of(history({})) == 0


NAMES = ("a", "b", "c", "d")
SOME_CAUSES = ("reward_hacked", "no_exploration", "stale_weights", "data_too_old")
FINDINGS = st.lists(
    st.builds(
        lambda name, onset, severity, cause, confidence: finding(
            name, onset, severity, cause=cause, confidence=confidence
        ),
        st.sampled_from(NAMES),
        st.integers(0, 30),
        st.sampled_from(Severity),
        st.sampled_from(SOME_CAUSES),
        st.sampled_from([0.2, 0.9]),
    ),
    max_size=7,
    unique_by=lambda f: dataclasses.astuple(f)[:8],
)
RELATIONS = st.dictionaries(st.sampled_from(NAMES), st.lists(st.sampled_from(NAMES), max_size=3), max_size=4)


@given(FINDINGS, RELATIONS, st.integers(0, 10), st.randoms())
def test_ranking_loses_nothing_orders_by_severity_and_ignores_the_order_given(
    findings, relations, slack, random
) -> None:
    ranked = rank(findings, relations, slack)
    shown = [f for r in ranked for f in (r.finding, *r.consequences)]
    assert sorted(shown, key=repr) == sorted(findings, key=repr)
    assert [r.severity for r in ranked] == sorted((r.severity for r in ranked), reverse=True)
    mixed = list(findings)
    random.shuffle(mixed)
    assert rank(mixed, relations, slack) == ranked


@given(FINDINGS, st.integers(0, 10))
def test_without_relations_only_the_same_detector_and_cause_hang_together(findings, slack) -> None:
    for rooted in rank(findings, {}, slack):
        root = rooted.finding
        assert all((f.detector, f.cause) == (root.detector, root.cause) for f in rooted.consequences)
        assert all(f.onset_step >= root.onset_step for f in rooted.consequences)


@pytest.mark.parametrize(
    ("severity", "said"),
    [(Severity.INFO, {"alpha", "beta"}), (Severity.WARN, {"alpha"}), (Severity.CRITICAL, {"alpha"})],
)
def test_a_detector_says_nothing_beside_a_warning_that_says_why(severity: Severity, said: set[str]) -> None:
    asked = [
        detector("beta", [finding("beta", 2)], silent_beside=("alpha",)),
        detector("alpha", [finding("alpha", 9, severity=severity)]),
    ]
    diagnosis = diagnose(LOG, asked)
    assert {f.detector for f in diagnosis.all_findings} == said
    assert diagnosis.judged == 2
    assert {row.worst.detector for row in diagnosis.rows if row.worst is not None} <= said


def test_the_registered_detectors_agree_with_the_map() -> None:
    names = [d.name for d in DETECTORS]
    assert len(set(names)) == len(names)
    for one in DETECTORS:
        assert set(one.yields_to) <= set(names) - {one.name}, one.name
        assert set(one.silent_beside) <= set(names) - {one.name}, one.name
        assert one.symptom in SYMPTOMS, one.name
