"""The progress view: readable at 80 columns, inert to what is in the texts, honest about time left."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from posttrain.orchestration.progress import Progress, StepSummary, duration, step_line


def _summary(step: int, **changes: float | None) -> StepSummary:
    values: dict[str, float | None] = {
        "reward": 0.25,
        "length": 12.4,
        "truncated_share": 0.05,
        "rollout_rate": 1234.0,
        "training_rate": 880.0,
        "seconds": 10.0,
    }
    return StepSummary(step, **{**values, **changes})  # type: ignore[arg-type]


def _console(terminal: bool, width: int = 80) -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    # A dumb terminal has a width of its own in rich, whatever it is told.
    environment = {"TERM": "xterm"}
    return Console(file=stream, force_terminal=terminal, width=width, color_system=None, _environ=environment), stream


def test_without_a_terminal_there_is_one_plain_line_per_step() -> None:
    console, stream = _console(False)
    with Progress(3, console=console) as progress:
        progress.phase("rollout")
        progress.step(_summary(1))
        progress.step(_summary(2, reward=None, without_reward=1.0))
        progress.evaluation("env", 2, 0.5, 0.4, 0.6)
        progress.finding("look")
    lines = stream.getvalue().splitlines()
    assert lines == [
        "step 1/3 reward  0.250 len 12 cut 5% 1234/880 tok/s 0:20 left",
        "step 2/3 reward   none len 12 cut 5% 1234/880 tok/s ungraded 100% 0:10 left",
        "held-out env at step 2: 0.500 (0.400 to 0.600)",
        "! look",
    ]
    assert "\x1b" not in stream.getvalue()


@given(
    step=st.integers(1, 99_999),
    rate=st.floats(0, 99_999),
    share=st.floats(0, 1),
    reward=st.none() | st.floats(-9, 99),
    left=st.none() | st.floats(0, 350_000),
)
def test_a_step_line_fits_80_columns(
    step: int, rate: float, share: float, reward: float | None, left: float | None
) -> None:
    summary = _summary(step, reward=reward, rollout_rate=rate, training_rate=rate, length=9999.0, truncated_share=share)
    assert len(step_line(summary, 99_999, left)) <= 80


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_live_view_stays_within_the_width_and_shows_what_matters(width: int) -> None:
    console, stream = _console(True, width)
    now = [0.0]
    with Progress(40, title="demo " * 40, console=console, clock=lambda: now[0]) as progress:
        progress.evaluation("difference", 0, 0.1, 0.05, 0.15)
        for step in range(1, 13):
            progress.step(_summary(step, reward=step / 12))
        progress.evaluation("difference", 12, 0.4, 0.35, 0.45)
        progress.phase("training")
        progress.finding("a finding " * 20)
        now[0] = 75.0
    frame = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", stream.getvalue()).split("╭")[-1]
    for expected in ("12/40", "training 1:15", "0.10 → 0.40", "1.000", "truncated 5%", "1:15 gone", "4:40 left"):
        assert expected in frame
    assert all(len(line) <= width for line in frame.splitlines())


def test_texts_are_shown_and_never_interpreted() -> None:
    for terminal in (True, False):
        console, stream = _console(terminal)
        with Progress(1, title="[red]t", console=console) as progress:
            progress.message("[bold]reward[/bold] [1, 2] [link=x]")
            progress.finding("[/] unbalanced")
            progress.evaluation("[blink]env", 0, 0.5, 0.4, 0.6)
        assert "[bold]reward[/bold] [1, 2] [link=x]" in stream.getvalue()
        assert "[/] unbalanced" in stream.getvalue()
        assert "[blink]env" in stream.getvalue()


def test_time_left_counts_from_the_step_resumed_at() -> None:
    console, stream = _console(False)
    with Progress(10, console=console, first_step=7) as progress:
        progress.step(_summary(8, seconds=30.0))
    assert "1:00 left" in stream.getvalue()


def test_a_stop_request_is_seen_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    console, _ = _console(False)
    with Progress(1, console=console) as progress:
        progress.stopping("SIGINT")
    assert "SIGINT: stopping after the work in hand" in capfd.readouterr().err
    console, stream = _console(True)
    with Progress(1, console=console) as progress:
        progress.stopping("SIGTERM")
    assert "SIGTERM: stopping" in stream.getvalue()
    assert capfd.readouterr().err == ""


def test_duration() -> None:
    assert [duration(s) for s in (None, 0, 61.4, 3723, -5)] == ["?", "0:00", "1:01", "1:02:03", "0:00"]
