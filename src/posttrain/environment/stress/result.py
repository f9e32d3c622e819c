"""What a stress test measured, per environment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from posttrain.environment.stress.attack import Knowledge
from posttrain.environment.stress.contract import Contract
from posttrain.environment.stress.spellings import Standing

TEXT_LIMIT = 400
"""Longest stretch of a sent text that is kept."""


@dataclass(frozen=True, slots=True)
class Tally:
    """How often something happened over the tasks it was tried on; what could not be judged is in no denominator."""

    paid: int = 0
    judged: int = 0
    ungradable: int = 0
    failed: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.paid + other.paid,
            self.judged + other.judged,
            self.ungradable + other.ungradable,
            self.failed + other.failed,
        )

    @property
    def rate(self) -> float:
        """Share of judged texts that were paid; NaN if none was judged."""
        return self.paid / self.judged if self.judged else math.nan

    def at_least(self) -> float:
        """Lower end of the 95 % Wilson interval of ``rate``; 0 if none was judged."""
        if not self.judged:
            return 0.0
        n, p, z = self.judged, self.rate, 1.96
        centre = p + z * z / (2 * n)
        return max(0.0, (centre - z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))) / (1 + z * z / n))

    def to_json(self) -> dict[str, Any]:
        """JSON-compatible form."""
        return {
            "paid": self.paid,
            "judged": self.judged,
            "ungradable": self.ungradable,
            "failed": self.failed,
            "rate": self.rate if self.judged else None,
        }


@dataclass(frozen=True, slots=True)
class Sample:
    """One text that was sent and what came back; a long text is kept from its ends only, ``length`` is its own."""

    task_id: str
    gold: str | None
    text: str
    length: int
    reward: float | None
    reason: str

    def to_json(self) -> dict[str, Any]:
        """JSON-compatible form."""
        return {
            "task": self.task_id,
            "gold": self.gold,
            "text": self.text,
            "length": self.length,
            "reward": self.reward,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class AttackResult:
    """One attack over the sampled tasks.

    ``tally.paid`` counts tasks on which every text of the attack reached the success threshold; ``first`` and ``last``
    those on which only the text with the right answer first (last) did. ``best`` is the highest reward of any text,
    ``sample`` the text that earned it, ``trouble`` one that could not be judged.
    """

    family: str
    name: str
    knowledge: Knowledge
    neutral: bool
    extreme: bool
    tally: Tally
    first: int
    last: int
    best: float | None
    sample: Sample | None
    trouble: Sample | None

    def to_json(self) -> dict[str, Any]:
        """JSON-compatible form."""
        return {
            "family": self.family,
            "name": self.name,
            "needs": str(self.knowledge),
            "deserves": "either" if self.neutral else "nothing",
            **self.tally.to_json(),
            "only_right_first": self.first,
            "only_right_last": self.last,
            "highest_reward": self.best,
            "sample": None if self.sample is None else self.sample.to_json(),
            "trouble": None if self.trouble is None else self.trouble.to_json(),
        }


@dataclass(frozen=True, slots=True)
class SpellingResult:
    """One spelling of the right answer over the sampled tasks that have it; ``sample`` is one that was refused."""

    name: str
    standing: Standing
    kinds: tuple[str, ...]
    tally: Tally
    sample: Sample | None

    def to_json(self) -> dict[str, Any]:
        """JSON-compatible form."""
        return {
            "name": self.name,
            "standing": str(self.standing),
            "kinds": list(self.kinds),
            **self.tally.to_json(),
            "refused": self.tally.judged - self.tally.paid,
            "sample": None if self.sample is None else self.sample.to_json(),
        }


@dataclass(frozen=True, slots=True)
class Baselines:
    """What answers without thought earn, over ``num_tasks`` tasks.

    ``share`` of the tasks have the most frequent gold ``answer``. ``constant`` is what the verifier pays for always
    giving it, ``chance`` what it pays for the gold of another task drawn at random.
    """

    answer: str | None
    share: float
    constant: Tally
    chance: Tally
    num_tasks: int

    def to_json(self) -> dict[str, Any]:
        """JSON-compatible form."""
        return {
            "most_frequent_answer": self.answer,
            "share_of_tasks": self.share,
            "constant_answer": self.constant.to_json(),
            "chance": self.chance.to_json(),
            "num_tasks": self.num_tasks,
        }


@dataclass(frozen=True, slots=True)
class StressResult:
    """Everything measured on one environment."""

    environment: str
    threshold: float
    reward_kind: str
    contract: Contract
    num_tasks: int
    num_sampled: int
    num_texts: int
    kinds: Mapping[str, int]
    gold_columns: tuple[str, ...]
    num_without_gold: int
    attacks: tuple[AttackResult, ...]
    spellings: tuple[SpellingResult, ...]
    baselines: Baselines
    coverage: Mapping[str, Tally]

    @property
    def false_positives(self) -> Tally:
        """Paid over judged, over all attacks that deserve nothing and are not right by accident."""
        return total(a.tally for a in self.attacks if not a.neutral and a.knowledge is not Knowledge.LUCK)

    def false_negatives(self, standing: Standing | None = None) -> Tally:
        """*Refused* (as ``paid``) over judged, over the spellings of one standing or of all."""
        asked = total(s.tally for s in self.spellings if standing is None or s.standing is standing)
        return Tally(asked.judged - asked.paid, asked.judged, asked.ungradable, asked.failed)

    def to_json(self) -> dict[str, Any]:
        """JSON-compatible form."""
        standings: tuple[Standing | None, ...] = (None, *Standing)
        return {
            "environment": self.environment,
            "success_threshold": self.threshold,
            "reward_kind": self.reward_kind,
            "contract": {
                "form": str(self.contract.form),
                "exact": self.contract.exact,
                "first_counts": self.contract.first_counts,
                "numbers_only": self.contract.numbers_only,
                "asked_in_prompt": not self.contract.unasked,
            },
            "tasks": {
                "all": self.num_tasks,
                "sampled": self.num_sampled,
                "without_gold": self.num_without_gold,
                "gold_columns_guessed": list(self.gold_columns),
                "kinds": dict(self.kinds),
            },
            "texts_sent": self.num_texts,
            "false_positives": self.false_positives.to_json(),
            "false_negatives": {str(s or "all"): _refused(self.false_negatives(s)) for s in standings},
            "baselines": self.baselines.to_json(),
            "coverage": {name: tally.to_json() for name, tally in self.coverage.items()},
            "attacks": [attack.to_json() for attack in self.attacks],
            "spellings": [spelling.to_json() for spelling in self.spellings],
        }


def total(tallies: Any) -> Tally:
    """Sum of tallies."""
    return sum(tallies, Tally())


def _refused(tally: Tally) -> dict[str, Any]:
    data = tally.to_json()
    return {"refused": data.pop("paid"), **data}
