"""Other frameworks' names for the same signals. The tables lie in ``signals/aliases/``, one file per framework."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Framework(StrEnum):
    """Who wrote a log. ``plain`` is a table of numbers by nobody known."""

    POSTTRAIN = "posttrain"
    TRL = "trl"
    VERL = "verl"
    PRIME_RL = "prime-rl"
    OPENRLHF = "openrlhf"
    SLIME = "slime"
    NEMO_RL = "nemo-rl"
    AREAL = "areal"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Alias:
    """A key of a framework's log and the signal it stands for.

    ``key`` and ``signal`` may share parameters in braces (``rewards/{part}/mean``). A logged value times
    ``scale`` is the signal's value. ``caveat`` says how the two definitions differ; ``setting`` what must be
    set in that framework for the key to be logged at all. Where two keys give one signal, the one
    listed first counts.
    """

    key: str
    signal: str
    caveat: str = ""
    scale: float = 1.0
    setting: str = ""
