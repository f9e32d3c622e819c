"""What a person sees while a run on fixed data is working: a bar on a terminal, one line a step."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from posttrain.orchestration.progress import duration

_SHOWN = (
    ("policy/loss", "loss"),
    ("preference/accuracy", "accuracy"),
    ("preference/margin", "margin"),
    ("preference/chosen_logprob_change", "chosen"),
    ("policy/sampled_entropy", "nll"),
)
_STDERR = 2


class FixedProgress:
    """Context manager. ``first_step`` is the last step already done (of a resumed run)."""

    def __init__(self, total_steps: int, title: str, first_step: int, console: Console) -> None:
        self._console, self._total, self._first = console, total_steps, first_step
        self._started = time.monotonic()
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._title = title

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=self._console)
            self._task = self._bar.add_task(self._title, total=self._total, completed=self._first)
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """A step is finished."""
        left = (time.monotonic() - self._started) / (step - self._first) * (self._total - step)
        shown = " ".join(f"{label} {values[name]:.3f}" for name, label in _SHOWN if name in values)
        speed = f"{values['train/tokens_per_second']:.0f} tok/s"
        self.message(f"step {step:>{len(str(self._total))}}/{self._total} {shown} {speed} {duration(left)} left")
        if self._bar is not None:
            self._bar.update(self._task, completed=step)

    def message(self, text: str) -> None:
        """A line that stays on the screen."""
        self._console.print(Text(text), soft_wrap=True)

    def finding(self, text: str) -> None:
        """Something is wrong or odd."""
        self.message(f"! {text}")

    def stopping(self, why: str) -> None:
        """A stop was asked for. May be called by a signal handler."""
        text = f"{why}: stopping after the work in hand, then saving. Again: stop at once\n"
        with suppress(OSError):
            os.write(_STDERR, text.encode())
