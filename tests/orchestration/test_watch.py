"""The detectors beside the loop: they show, record, stop what is lost, and change nothing of what is trained."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import pytest
from fakes import detector, finding
from small_runs import fingerprint, measured, small_settings

import posttrain.orchestration.watch as watch_module
from posttrain.errors import InputError
from posttrain.faultmap.detector import Detector
from posttrain.faultmap.diagnosis import diagnose
from posttrain.faultmap.finding import Finding, Severity
from posttrain.faultmap.history import Facts, History
from posttrain.faultmap.live import LiveHistory
from posttrain.orchestration.run import resume, train
from posttrain.orchestration.watch import LOOKS, Watch
from posttrain.rundir.directory import RunDirectory
from posttrain.rundir.findings import read_finding_events
from posttrain.settings.load import settings_from_mapping
from posttrain.settings.tree import FaultmapSettings

Said = dict[int, Sequence[Finding]]


def saying(said: Said, name: str = "reward_dead", **more: tuple[str, ...]) -> Detector:
    """A detector that says what it was given for the newest step at or before the last one."""

    def judge(history: History) -> Sequence[Finding]:
        last = int(history.course("reward/mean").steps[-1])
        return next((said[step] for step in sorted(said, reverse=True) if step <= last), ())

    return detector(name, judge=judge, needs=(("reward/mean",),), **more)  # pyright: ignore


def ask(monkeypatch: pytest.MonkeyPatch, *detectors: Detector) -> None:
    monkeypatch.setattr(watch_module, "diagnose", functools.partial(diagnose, detectors=detectors))


def dead(severity: Severity = Severity.CRITICAL, last: int | None = None, detector: str = "reward_dead") -> Finding:
    return finding(detector, 2, severity, symptom="reward_flat", cause="reward_dead", last=last, summary="It is 0.")


def watching(tmp_path: Path, told: list[str], **settings: object) -> Watch:
    live = LiveHistory("run", Facts())
    return Watch(tmp_path / "findings.jsonl", 1, FaultmapSettings(**settings), live, {}, told.append)  # pyright: ignore


def look(watch: Watch, step: int) -> Finding | None:
    watch.add(step, {"reward/mean": 0.0})
    return watch.look(step)


def test_a_finding_is_shown_once_recorded_at_each_change_and_stops_when_it_is_critical(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warned, over = dead(Severity.WARN), dead(Severity.WARN, last=4)
    ask(monkeypatch, saying({2: [warned], 3: [warned], 4: [], 5: [warned], 6: [dead()], 7: [over]}))
    told: list[str] = []
    watch = watching(tmp_path, told)
    stops = [look(watch, step) for step in range(1, 8)]
    assert [step for step, stop in enumerate(stops, 1) if stop] == [6]
    assert told == [
        "step 2 warn: Reward does not move at all: the reward function returns a constant (1 reward). It is 0.",
        "step 6 critical: Reward does not move at all: the reward function returns a constant (1 reward). It is 0.",
    ]
    events = [(e["step"], e["event"]) for e in read_finding_events(watch.path)]
    assert events == [(2, "new"), (4, "gone"), (5, "new"), (6, "worse"), (7, "milder")]
    assert read_finding_events(watch.path)[0]["finding"]["cause_layer"] == 1


@pytest.mark.parametrize(
    ("settings", "said", "stops"),
    [
        ({}, dead(Severity.WARN), False),
        ({"stop_on": "warn"}, dead(Severity.WARN), True),
        ({"stop_on": "off"}, dead(), False),
        ({}, dead(last=2), False),
    ],
)
def test_what_stops_is_a_setting_and_what_is_over_never_does(
    settings: dict[str, str], said: Finding, stops: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(monkeypatch, saying({2: [said]}))
    assert (look(watching(tmp_path, [], **settings), 2) is not None) == stops


@pytest.mark.parametrize("name", ["reward_dead", "reward_flat", "collapse", "mismatch"])
def test_an_acknowledged_name_stops_nothing_nor_does_what_follows_from_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follows = finding("collapse", 2, Severity.CRITICAL, symptom="reward_lost", cause="policy_collapsed")
    ask(monkeypatch, saying({2: [dead()]}), saying({2: [follows]}, "collapse", yields_to=("reward_dead",)))
    watch = watching(tmp_path, [])
    watch.ignored = frozenset({name})
    stop = look(watch, 2)
    expected = {"collapse": "reward_dead", "mismatch": "reward_dead"}.get(name)
    assert (stop.detector if stop else None) == expected


def test_info_is_recorded_and_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(monkeypatch, saying({2: [dead(Severity.INFO)]}))
    told: list[str] = []
    watch = watching(tmp_path, told)
    look(watch, 2)
    assert told == []
    assert len(read_finding_events(watch.path)) == 1


def test_a_detector_that_fails_is_told_once_and_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(monkeypatch, detector("bad", judge=lambda _: [][0], needs=(("reward/mean",),)), saying({3: [dead()]}))
    told: list[str] = []
    watch = watching(tmp_path, told)
    assert [look(watch, step) is not None for step in (1, 2, 3)] == [False, False, True]
    assert [line for line in told if "bad failed: IndexError" in line] == told[:1]


def test_long_runs_are_looked_at_in_proportion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(monkeypatch)
    looked: list[int] = []
    monkeypatch.setattr(watch_module, "changes", lambda *_: looked.append(1) or [])
    watch = watching(tmp_path, [])
    for step in range(1, LOOKS):
        look(watch, step)
    assert len(looked) == LOOKS - 1
    for step in range(10 * LOOKS, 11 * LOOKS):
        look(watch, step)
    assert len(looked) - LOOKS + 1 == pytest.approx(LOOKS / 11, abs=2)
    watch.look(11 * LOOKS - 1, last=True)


SIZE = {"run": {"steps": 4, "threads": 1, "device": "cpu"}, "rollout": {"prompts_per_step": 2, "group_size": 4}}


def test_a_run_is_stopped_saved_and_goes_on_when_told_to_as_if_nothing_had_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(monkeypatch, saying({2: [dead()]}))
    run, free = tmp_path / "run", tmp_path / "free"
    assert train(settings_from_mapping(small_settings(tmp_path, **SIZE, faultmap={"stop_on": "off"})), free) == 0
    assert train(settings_from_mapping(small_settings(tmp_path, **SIZE)), run) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "stopped after step 2 by critical: Reward does not move at all" in said
    assert f"posttrain resume {run} --faultmap.ignore reward_dead" in said
    attempt = RunDirectory.open(run).info().attempts[-1]
    assert attempt.outcome == "stopped"
    assert (run / "checkpoints" / "step_000002").is_dir()

    assert resume(run) == 1
    assert max(step for step, *_ in measured(run)) == 2, "what stopped it is still there: no step is spent on it"

    assert resume(run, ["--faultmap.ignore", "reward_dead"]) == 0
    assert fingerprint(run, 4) == fingerprint(free, 4)
    assert measured(run) == measured(free)
    events = [e["event"] for e in read_finding_events(run / "findings.jsonl")]
    assert events.count("acknowledged") == 1


def test_an_acknowledgement_outlives_the_attempt_that_gave_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(monkeypatch, saying({2: [dead()], 3: [dead(), dead(detector="reward_dead")]}))
    run = tmp_path / "run"
    assert (
        train(settings_from_mapping(small_settings(tmp_path, **SIZE, faultmap={"ignore": ["reward_flat"]})), run) == 0
    )
    events = read_finding_events(run / "findings.jsonl")
    watch = Watch.begin(RunDirectory.open(run), 2, 4, FaultmapSettings(), lambda _: None)
    assert watch.ignored == {"reward_flat"}
    assert next(e for e in events if e["event"] == "acknowledged")["names"] == ["reward_flat"]
    assert watch.live.history().course("reward/mean").steps.tolist() == [1, 2, 3, 4]
    assert watch.live.facts.group_size == 4
    samples = watch.live.samples
    assert samples is not None
    assert list(samples.steps()) == [1, 2, 3, 4]
    assert len(samples.read(4)) == 8


def test_other_settings_of_a_resumed_run_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(monkeypatch, saying({2: [dead()]}))
    run = tmp_path / "run"
    assert train(settings_from_mapping(small_settings(tmp_path, **SIZE)), run) == 1
    with pytest.raises(InputError, match=r"policy.learning_rate.*cannot be changed"):
        resume(run, ["--policy.learning_rate", "1e-3"])
    with pytest.raises(InputError, match=r"faultmap.ignore.*The nearest: reward_dead"):
        resume(run, ["--faultmap.ignore", "reward_daed"])


def test_an_unknown_name_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    settings = settings_from_mapping(small_settings(tmp_path, faultmap={"ignore": ["entropy_colapse"]}))
    with pytest.raises(InputError, match="The nearest: entropy_collapse"):
        train(settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()
