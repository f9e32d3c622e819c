"""Trackers are copies of the record: they may fail without the run failing."""

from __future__ import annotations

import math
import struct
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from posttrain.errors import InputError
from posttrain.rundir.trackers import TrackerContext, Trackers, flatten, mlflow_name, open_trackers


def context(tmp_path: Path, first_step: int = 0) -> TrackerContext:
    return TrackerContext(tmp_path, "posttrain", "demo", "demo-1", {"policy": {"learning_rate": 1e-5}}, first_step)


def events(folder: Path) -> list[Any]:
    """Every event of the newest file, parsed from the record format by hand."""
    from tensorboard.compat.proto.event_pb2 import Event

    data = max(folder.iterdir(), key=lambda p: (p.stat().st_mtime_ns, p.name)).read_bytes()
    found = []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        found.append(Event.FromString(data[12 : 12 + length]))
        data = data[16 + length :]
    return found


class Recorder:
    """A tracker that fails from a given step on."""

    def __init__(self, name: str, fail_from: int | None = None) -> None:
        self.name, self.fail_from = name, fail_from
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.closed = 0

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if self.fail_from is not None and step >= self.fail_from:
            raise ConnectionError("no\nroute")
        self.logged.append((step, dict(values)))

    def close(self) -> None:
        self.closed += 1


def test_tensorboard_events_hold_the_values(tmp_path: Path) -> None:
    trackers = open_trackers(["tensorboard"], context(tmp_path), pytest.fail)
    trackers.log(3, {"reward/mean": 0.25, "policy/loss": math.nan})
    trackers.close()
    written = [e for e in events(tmp_path / "tensorboard") if e.HasField("summary")]
    assert [e.step for e in written] == [3]
    values = {v.tag: v.simple_value for v in written[0].summary.value}
    assert values["reward/mean"] == 0.25
    assert math.isnan(values["policy/loss"])


def test_a_resumed_run_tells_tensorboard_what_is_superseded(tmp_path: Path) -> None:
    from tensorboard.compat.proto.event_pb2 import SessionLog

    trackers = open_trackers(["tensorboard"], context(tmp_path, first_step=9), pytest.fail)
    trackers.close()
    starts = [e for e in events(tmp_path / "tensorboard") if e.HasField("session_log")]
    assert [(e.step, e.session_log.status) for e in starts] == [(9, SessionLog.START)]


def test_tensorboard_itself_reads_one_lineage_of_a_resumed_run(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for first, value in ((0, 0.1), (3, 0.9)):
        trackers = open_trackers(["tensorboard"], context(tmp_path, first), pytest.fail)
        for step in range(first, 5):
            trackers.log(step, {"reward/mean": value})
        trackers.close()
    accumulator = EventAccumulator(str(tmp_path / "tensorboard"))
    accumulator.Reload()
    read = [(e.step, round(e.value, 1)) for e in accumulator.Scalars("reward/mean")]
    assert read == [(0, 0.1), (1, 0.1), (2, 0.1), (3, 0.9), (4, 0.9)]


def test_tensorboard_is_written_without_torch(tmp_path: Path) -> None:
    program = textwrap.dedent(
        f"""
        import sys
        from pathlib import Path
        from posttrain.rundir.trackers import TrackerContext, open_trackers
        trackers = open_trackers(["tensorboard"], TrackerContext(Path({str(tmp_path)!r}), "p", "r", "i"), print)
        trackers.log(0, {{"reward/mean": 1.0}})
        trackers.close()
        print({{"torch", "tensorflow"}} & set(sys.modules))
        """
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"


def test_a_tracker_that_fails_is_switched_off_once_and_the_others_go_on() -> None:
    warnings: list[str] = []
    good, bad = Recorder("good"), Recorder("bad", fail_from=2)
    trackers = Trackers([bad, good], warnings.append)
    for step in range(5):
        trackers.log(step, {"reward/mean": float(step)})
    trackers.close()
    assert [step for step, _ in good.logged] == [0, 1, 2, 3, 4]
    assert [step for step, _ in bad.logged] == [0, 1]
    assert trackers.failures == {"bad": "ConnectionError: no route"}
    assert len(warnings) == 1
    assert "tracker bad is switched off" in warnings[0]
    assert "\n" not in warnings[0]
    assert (good.closed, bad.closed) == (1, 0)


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio", "tensorboard"])
def test_a_missing_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for module in [m for m in sys.modules if m.split(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=r"posttrain\[trackers\]") as caught:
        open_trackers([name], context(tmp_path), pytest.fail)
    assert caught.value.value == name
    assert caught.value.setting == "rundir.trackers"


def test_an_unknown_tracker_is_refused_and_started_ones_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder("wandb")
    monkeypatch.setattr("posttrain.rundir.trackers._TRACKERS", {"wandb": lambda _: recorder})
    with pytest.raises(InputError, match="no such tracker"):
        open_trackers(["wandb", "excel"], context(tmp_path), pytest.fail)
    assert recorder.closed == 1


def test_a_tracker_that_cannot_start_is_a_one_line_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise RuntimeError("api key\nnot configured")

    monkeypatch.setitem(sys.modules, "wandb", module("wandb", init=refuse))
    with pytest.raises(InputError, match=r"cannot start \(RuntimeError: api key not configured\)") as caught:
        open_trackers(["wandb"], context(tmp_path), pytest.fail)
    assert "\n" not in str(caught.value)


def module(name: str, **content: Any) -> ModuleType:
    made = ModuleType(name)
    for key, value in content.items():
        setattr(made, key, value)
    return made


def test_wandb_gets_its_own_step_axis_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls, against a stand-in: the real package is an optional extra."""
    started: dict[str, Any] = {}
    logged: list[dict[str, float]] = []
    axes: list[tuple[Any, ...]] = []
    run = SimpleNamespace(
        log=logged.append, finish=lambda: None, define_metric=lambda *a, **k: axes.append((*a, k.get("step_metric")))
    )
    monkeypatch.setitem(sys.modules, "wandb", module("wandb", init=lambda **k: started.update(k) or run))
    trackers = open_trackers(["wandb"], context(tmp_path, first_step=3), pytest.fail)
    trackers.log(3, {"reward/mean": 0.5})
    trackers.close()
    assert (started["id"], started["resume"], started["project"]) == ("demo-1", "allow", "posttrain")
    assert logged == [{"reward/mean": 0.5, "step": 3}]
    assert ("*", "step") in axes


def test_trackio_runs_are_told_apart_by_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: dict[str, Any] = {}
    logged: list[tuple[dict[str, float], int]] = []
    stand_in = module(
        "trackio",
        init=lambda **k: started.update(k),
        log=lambda values, step: logged.append((values, step)),
        finish=lambda: None,
    )
    monkeypatch.setitem(sys.modules, "trackio", stand_in)
    trackers = open_trackers(["trackio"], context(tmp_path), pytest.fail)
    trackers.log(1, {"reward/mean": 0.5})
    trackers.close()
    assert (started["name"], started["resume"]) == ("demo-1", "allow")
    assert logged == [({"reward/mean": 0.5}, 1)]


def test_mlflow_names_and_flat_settings() -> None:
    assert mlflow_name("evaluation/sums of 2/pass@16_low") == "evaluation/sums of 2/pass_at_16_low"
    assert mlflow_name("reward/part/größe/mean") == "reward/part/gr__e/mean"
    assert flatten({"a": {"b": 1, "c": {"d": [2]}}, "e": None}) == {"a.b": 1, "a.c.d": [2], "e": None}
