"""What a reader has to say about a log, collected while it reads."""

from __future__ import annotations

from dataclasses import dataclass, field

from posttrain.faultmap.printable import printable

_LONGEST_NAME = 120
_MOST = 100


@dataclass(slots=True)
class Remarks:
    """``problems``: what could not be read. ``notes``: how the log was understood. Each sentence is kept once."""

    problems: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])

    def problem(self, sentence: str) -> None:
        """Add a problem."""
        _add(self.problems, sentence)

    def note(self, sentence: str) -> None:
        """Add a note."""
        _add(self.notes, sentence)


def _add(sentences: list[str], sentence: str) -> None:
    if sentence not in sentences and len(sentences) < _MOST:
        sentences.append(sentence)


def quoted(name: str) -> str:
    """A name from a log, fit for a sentence: control characters written out, cut where it is very long."""
    shown = printable(name.replace("\n", "\\n").replace("\t", "\\t"))
    return f"`{shown[:_LONGEST_NAME]}…`" if len(shown) > _LONGEST_NAME else f"`{shown}`"


def listed(names: list[str], most: int = 5) -> str:
    """Names in a sentence, the first few of them."""
    shown = ", ".join(quoted(name) for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
