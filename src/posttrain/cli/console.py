"""A console for commands whose output may be closed early."""

from __future__ import annotations

from rich.console import Console


class PipeConsole(Console):
    """Leaves a closed output to the caller; rich would exit with 1, which here means a finding."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def pipe_console() -> PipeConsole:
    """The console of a command that prints and ends. Nothing in a text is highlighted or interpreted."""
    return PipeConsole(highlight=False, markup=False, emoji=False)
