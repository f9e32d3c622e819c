"""What a person sees while a run is working: a live view on a terminal, one line a step elsewhere."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from posttrain.faultmap.scales import sparkline

_REFRESH_PER_SECOND = 2
_REMEMBERED_STEPS = 10
_SHOWN_FINDINGS = 3
_WIDEST = 96
_STDERR = 2


@dataclass(frozen=True, slots=True)
class StepSummary:
    """One finished step. Lengths in tokens, shares 0 to 1, rates in tokens per second, ``seconds`` of the step.

    ``reward`` is ``None`` if nothing could be graded; ``without_reward`` is the share of such attempts.
    """

    step: int
    reward: float | None
    length: float
    truncated_share: float
    rollout_rate: float
    training_rate: float
    seconds: float
    without_reward: float = 0.0


@dataclass(slots=True)
class _State:
    title: str
    total_steps: int
    first_step: int
    started: float
    last: StepSummary | None = None
    rewards: list[float] = field(default_factory=list)
    durations: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED_STEPS))
    evaluations: dict[str, list[tuple[int, float, float, float]]] = field(default_factory=dict)
    phase: str = "starting"
    phase_started: float = 0.0
    findings: deque[str] = field(default_factory=lambda: deque(maxlen=_SHOWN_FINDINGS))
    stopping: str = ""

    @property
    def step(self) -> int:
        return self.last.step if self.last is not None else self.first_step


class Progress:
    """Context manager. Live view if the console is a terminal, plain lines if not.

    ``first_step`` is the last step already done (of a resumed run). All texts are shown as they are; nothing
    in them is interpreted.
    """

    def __init__(
        self,
        total_steps: int,
        *,
        title: str = "",
        first_step: int = 0,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console if console is not None else Console(stderr=False, highlight=False)
        self._clock = clock
        self._lock = threading.RLock()
        self._state = _State(title, total_steps, first_step, clock(), phase_started=clock())
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(
                get_renderable=self._render,
                console=self._console,
                refresh_per_second=_REFRESH_PER_SECOND,
                transient=False,
            )
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def phase(self, name: str) -> None:
        """What is being done now: ``rollout``, ``grading``, ``training``..."""
        with self._lock:
            self._state.phase, self._state.phase_started = name, self._clock()

    def step(self, summary: StepSummary) -> None:
        """A step is finished."""
        with self._lock:
            state = self._state
            state.last = summary
            state.durations.append(summary.seconds)
            if summary.reward is not None:
                state.rewards.append(summary.reward)
            line = step_line(summary, state.total_steps, self._seconds_left())
        if self._live is None:
            self._print(line)

    def evaluation(self, environment: str, step: int, success: float, low: float, high: float) -> None:
        """Held-out success (pass@1) after ``step`` with its interval."""
        with self._lock:
            self._state.evaluations.setdefault(environment, []).append((step, success, low, high))
        if self._live is None:
            self._print(f"held-out {environment} at step {step}: {success:.3f} ({low:.3f} to {high:.3f})")

    def message(self, text: str) -> None:
        """A line that stays on the screen, above the live view."""
        self._print(text)

    def finding(self, text: str) -> None:
        """Something is wrong or odd: stays visible in the live view."""
        with self._lock:
            self._state.findings.append(text)
        if self._live is None:
            self._print(f"! {text}")

    def stopping(self, why: str) -> None:
        """A stop was asked for. Takes no lock and prints nothing through rich: may be called by a signal handler."""
        text = f"{why}: stopping after the work in hand, then saving. Again: stop at once"
        self._state.stopping = text
        if self._live is None:
            with suppress(OSError):
                os.write(_STDERR, f"{text}\n".encode())

    def _print(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def _seconds_left(self) -> float | None:
        durations = self._state.durations
        if not durations:
            return None
        return sum(durations) / len(durations) * max(0, self._state.total_steps - self._state.step)

    def _render(self) -> Panel:
        with self._lock:
            return render(self._state, self._clock(), self._seconds_left(), self._console.width)


def step_line(summary: StepSummary, total_steps: int, seconds_left: float | None) -> str:
    """One step in at most 80 characters (for up to 99,999 steps and tokens per second)."""
    width = len(str(total_steps))
    reward = "  none" if summary.reward is None else f"{summary.reward:6.3f}"
    line = (
        f"step {summary.step:>{width}}/{total_steps} reward {reward} len {summary.length:.0f} "
        f"cut {summary.truncated_share:.0%} {summary.rollout_rate:.0f}/{summary.training_rate:.0f} tok/s"
    )
    if summary.without_reward:
        line += f" ungraded {summary.without_reward:.0%}"
    return f"{line} {duration(seconds_left)} left"


def duration(seconds: float | None) -> str:
    """``1:02:03``, ``4:05``, or ``?`` if not known."""
    if seconds is None:
        return "?"
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def render(state: _State, now: float, seconds_left: float | None, width: int) -> Panel:
    """The live view."""
    inner = max(20, min(width, _WIDEST) - 4)
    table = Table.grid(padding=(0, 1), expand=False)
    table.add_column(width=9, style="dim", no_wrap=True)
    table.add_column(width=inner - 10, no_wrap=True, overflow="ellipsis")
    bar = ProgressBar(total=max(1, state.total_steps), completed=state.step, width=max(4, min(30, inner - 30)))
    head = Table.grid(padding=(0, 2))
    head.add_row(Text(f"{state.step}/{state.total_steps}", style="bold"), bar, Text(_phase(state, now), style="cyan"))
    table.add_row("step", head)
    last = state.last
    if last is not None:
        reward = "none graded" if last.reward is None else f"{last.reward:.3f}"
        table.add_row(
            "reward", Text.assemble((f"{reward}  ", "bold"), (sparkline(state.rewards, max(4, inner - 20)), "green"))
        )
    for environment, points in state.evaluations.items():
        table.add_row("held-out", _held_out(environment, points))
    if last is not None:
        length = f"{last.length:.1f} tokens  truncated {last.truncated_share:.0%}"
        table.add_row("length", f"{length}  without reward {last.without_reward:.0%}")
        table.add_row("speed", f"rollout {last.rollout_rate:,.0f} tok/s  training {last.training_rate:,.0f} tok/s")
    table.add_row("time", f"{duration(now - state.started)} gone  {duration(seconds_left)} left")
    lines: list[Table | Text] = [table]
    lines += [Text(f"! {text}", style="yellow", no_wrap=True, overflow="ellipsis") for text in state.findings]
    if state.stopping:
        lines.append(Text(state.stopping, style="bold yellow"))
    title = Text(state.title or "posttrain", no_wrap=True, overflow="ellipsis")
    return Panel(Group(*lines), title=title, title_align="left", border_style="dim", width=inner + 4)


def _phase(state: _State, now: float) -> str:
    return f"{state.phase} {duration(now - state.phase_started)}"


def _held_out(environment: str, points: Sequence[tuple[int, float, float, float]]) -> Text:
    course = " → ".join(f"{success:.2f}" for _, success, _, _ in [points[0], *points[1:][-2:]])
    step, _, low, high = points[-1]
    return Text.assemble((course, "bold"), f"  ({low:.2f} to {high:.2f}) after step {step}, {environment}")
