"""What sampled texts have in common that a question cannot explain: marks of a reward paid for something else."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from posttrain.faultmap.history import Sample

MIN_SAMPLES = 16
MIN_PROMPTS = 6
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_TAG = re.compile(r"</?[A-Za-z_]+>|\\boxed|####")
_ECHO = 24
_SUFFIX = 12


@dataclass(frozen=True, slots=True)
class Mark:
    """A trait of texts: the share of samples that show it, and their mean reward against that of the rest.

    ``rest`` is NaN where every sample shows it.
    """

    name: str
    share: float
    reward: float
    rest: float


def marks(samples: Sequence[Sample]) -> list[Mark]:
    """The marks of a step's samples; empty for fewer than 16 with a reward, or for fewer than 6 prompts."""
    known = [s for s in samples if s.reward is not None]
    if len(known) < MIN_SAMPLES or len({s.prompt for s in known}) < MIN_PROMPTS:
        return []
    rewards = np.array([s.reward for s in known], np.float64)
    found: list[Mark] = []
    for name, judge in _TESTS.items():
        shows = judge(known)
        share = float(np.mean(shows))
        if share > 0:
            rest = float(rewards[~shows].mean()) if share < 1 else float("nan")
            found.append(Mark(name, share, float(rewards[shows].mean()), rest))
    return found


def _each(test: Callable[[Sample], bool]) -> Callable[[Sequence[Sample]], np.ndarray]:
    return lambda samples: np.array([test(s) for s in samples], np.bool_)


def _is_same_text(samples: Sequence[Sample]) -> np.ndarray:
    """The commonest text, if it answers at least six prompts."""
    prompts: dict[str, set[str]] = {}
    for s in samples:
        prompts.setdefault(s.completion.strip(), set()).add(s.prompt)
    text = max(prompts, key=lambda t: (len(prompts[t]), t))
    wide = len(prompts[text]) >= MIN_PROMPTS
    return np.array([wide and s.completion.strip() == text for s in samples], np.bool_)


def _has_same_ending(samples: Sequence[Sample]) -> np.ndarray:
    """The commonest last twelve characters, if texts that differ elsewhere end so for at least six prompts."""
    endings = Counter(s.completion.rstrip()[-_SUFFIX:] for s in samples if len(s.completion.rstrip()) > _SUFFIX)
    if not endings:
        return np.zeros(len(samples), np.bool_)
    ending = max(endings, key=lambda e: (endings[e], e))
    wide = len({s.prompt for s in samples if s.completion.rstrip().endswith(ending)}) >= MIN_PROMPTS
    return np.array([wide and s.completion.rstrip().endswith(ending) for s in samples], np.bool_)


def _repeats_tag(sample: Sample) -> bool:
    return max(Counter(_TAG.findall(sample.completion)).values(), default=0) >= 3


def _lists_numbers(sample: Sample) -> bool:
    return len(set(_NUMBER.findall(sample.completion))) >= 8 + len(set(_NUMBER.findall(sample.prompt)))


def _echoes(sample: Sample) -> bool:
    prompt = sample.prompt.strip()
    return len(prompt) >= _ECHO and prompt[-200:] in sample.completion


_TESTS: dict[str, Callable[[Sequence[Sample]], np.ndarray]] = {
    "are one and the same text for different prompts": _is_same_text,
    "end in the same characters whatever the prompt": _has_same_ending,
    "are empty or nearly so": _each(lambda s: len(s.completion.strip()) < 2),
    "repeat an answer tag": _each(_repeats_tag),
    "list many numbers": _each(_lists_numbers),
    "repeat the prompt": _each(_echoes),
}
