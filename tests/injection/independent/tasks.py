"""Toy tasks over a small vocabulary, and the grader that is always right.

A prompt is digits; a reply is any number of fillers, ``=``, the answer's digits and the end token. Fillers give the
policy a length of its own choice, as thinking does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# Token 0 is what an engine with broken weights emits, as in vocabularies whose first entry is an exclamation mark.
BANG, PAD, BOS, EOS, EQUALS, FILLER, SHORTCUT, ASK = range(8)
DIGIT = 8
VOCABULARY = DIGIT + 10

USUAL, EASY, HARD = "usual", "easy", "hard"
PROMPT_WIDTH = 10
MOST_FILLERS = 3


@dataclass(frozen=True, slots=True)
class Task:
    """A rule from digits to digits, and how many digits a prompt has."""

    name: str
    answer: Callable[[list[int]], list[int]]
    usual: tuple[int, int]
    longest_answer: int
    alphabet: int = 10

    def draw(self, kind: str, rng: random.Random) -> list[int]:
        """Digits of a prompt. ``easy`` has one digit; ``hard`` has seven, which the base policy never saw."""
        count = {EASY: 1, HARD: 7}.get(kind) or rng.randint(*self.usual)
        return [rng.randrange(self.alphabet) for _ in range(count)]


TASKS = {
    task.name: task
    for task in (
        Task("copy", lambda d: d, (2, 3), 3),
        Task("reverse", lambda d: d[::-1], (2, 3), 3),
        Task("sort", sorted, (2, 3), 3),
        Task("digit_sum", lambda d: [sum(d) // 10, sum(d) % 10], (2, 2), 2),
        Task("parity", lambda d: [sum(d) % 2], (2, 4), 1, alphabet=2),
        Task("largest", lambda d: [max(d)], (3, 5), 1),
        Task("rotate", lambda d: [*d[1:], d[0]], (2, 3), 3),
        Task("increment", lambda d: [(x + 1) % 10 for x in d], (2, 3), 3),
        Task("ends", lambda d: [d[0], d[-1]], (3, 4), 2),
        Task("smallest", lambda d: [min(d)], (3, 5), 1),
    )
}


def prompt_tokens(digits: Sequence[int]) -> list[int]:
    """``PROMPT_WIDTH`` tokens, padded on the left."""
    tokens = [BOS, *(DIGIT + d for d in digits), ASK]
    return [PAD] * (PROMPT_WIDTH - len(tokens)) + tokens


def reply_tokens(answer: Sequence[int], fillers: Sequence[int]) -> list[int]:
    """A well-formed reply."""
    return [*fillers, EQUALS, *(DIGIT + d for d in answer), EOS]


def is_well_formed(reply: Sequence[int]) -> bool:
    """Ended, with exactly one ``=``."""
    return bool(reply) and reply[-1] == EOS and list(reply).count(EQUALS) == 1


def is_correct(reply: Sequence[int], answer: Sequence[int]) -> bool:
    """Ended, and exactly the answer after the last ``=``."""
    if not reply or reply[-1] != EOS or EQUALS not in reply:
        return False
    after = len(reply) - list(reply)[::-1].index(EQUALS)
    return list(reply[after:-1]) == [DIGIT + d for d in answer]
