"""What an ablation runs: a base and arms that differ from it in one setting each, on the same seeds."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.errors import InputError
from posttrain.settings import Settings, load_settings
from posttrain.settings.fixed_algorithms import FIXED_ROWS
from posttrain.settings.overrides import Override, parse_overrides
from posttrain.settings.rules import check_settings
from posttrain.settings.schema import Path as SettingPath
from posttrain.settings.schema import dotted

BASE = "base"
MOST_SEEDS = 1000
_OWN: dict[SettingPath, tuple[str, str]] = {
    ("run", "seed"): ("is what pairs the runs", "Use --seeds, and --run.seed for the first of them."),
    ("run", "name"): ("changes nothing but a name", "Change another setting."),
    ("rundir", "root"): ("changes nothing but a place", "Use --out."),
}


@dataclass(frozen=True, slots=True)
class Arm:
    """One configuration. ``setting`` and ``text`` are empty for the base; ``overrides`` are complete, seed excepted."""

    setting: str
    text: str
    settings: Settings
    overrides: tuple[str, ...]

    @property
    def name(self) -> str:
        """``base``, or ``section.key=value``."""
        return f"{self.setting}={self.text}" if self.setting else BASE

    @property
    def folder(self) -> str:
        """The name as a folder; what had to be changed for that is told apart by a digest."""
        cleaned = re.sub(r"[^A-Za-z0-9._=-]+", "-", self.name)[:80].strip(".-")
        digest = hashlib.sha256(self.name.encode()).hexdigest()[:8]
        return cleaned if cleaned == self.name else f"{cleaned}-{digest}"

    @property
    def measured_differently(self) -> bool:
        """Whether tasks, rewards or evaluation are changed: the arm has another yardstick than the base then."""
        return self.setting.startswith(("environments.", "evaluation."))

    def seeded(self, seed: int) -> dict[str, Any]:
        """The settings of the run with this seed, as stored in its ``run.json``."""
        mapping = self.settings.to_mapping()
        return mapping | {"run": mapping["run"] | {"seed": seed}}


@dataclass(frozen=True, slots=True)
class Job:
    """One run: an arm with a seed, and its directory."""

    arm: Arm
    seed: int
    path: Path

    @property
    def log_path(self) -> Path:
        """Where what the run's process says is kept."""
        return self.path.with_name(f"{self.path.name}.log")


@dataclass(frozen=True, slots=True)
class AblationPlan:
    """All arms, the base first, and the seeds that each of them runs on."""

    config: Path
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]

    @property
    def base(self) -> Arm:
        """What every other arm is compared with."""
        return self.arms[0]

    def jobs(self, folder: Path) -> tuple[Job, ...]:
        """Every run, seed by seed, so that an ablation cut short has whole pairs."""
        return tuple(Job(arm, seed, folder / arm.folder / f"seed-{seed}") for seed in self.seeds for arm in self.arms)


def plan_ablation(config: Path, changes: Sequence[str], seeds: int, overrides: Sequence[str] = ()) -> AblationPlan:
    """Read every arm's settings and check them. Raises InputError for the first that could not run; nothing has.

    ``changes`` are texts ``section.key=value,value``; a value equal to the base's is the base itself.
    """
    if not 1 <= seeds <= MOST_SEEDS:
        raise InputError("--seeds", seeds, "is no number of runs for each arm", f"Give 1 to {MOST_SEEDS}; 3 is usual.")
    if not changes:
        raise InputError(
            "--change", "", "nothing is changed, so there is nothing to compare", "Give --change section.key=VALUE."
        )
    given = parse_overrides(overrides)
    base = _arm("", "", config, given)
    arms: dict[str, Arm] = {}
    seen: set[SettingPath] = set()
    for change in changes:
        path, values = read_change(change)
        if path in seen:
            raise InputError(
                "--change", change, f"{dotted(path)} is changed twice", "List all its values in one change."
            )
        seen.add(path)
        kept = tuple(o for o in given if o.path != path)
        for text in values:
            arm = _arm(dotted(path), text, config, (*kept, Override(path, None, text)))
            if any(_same(arm, other) for other in arms.values() if other.setting == arm.setting):
                raise InputError("--change", change, f"{text} is given twice", "Give each value once.")
            if not _same(arm, base):
                arms[arm.name] = arm
    if not arms:
        problem = "every value is the one the base has already, so there is nothing to compare"
        raise InputError("--change", " ".join(changes), problem, "Give another value.")
    first = base.settings.run.seed
    return AblationPlan(config, (base, *arms.values()), tuple(range(first, first + seeds)))


def read_change(text: str) -> tuple[SettingPath, tuple[str, ...]]:
    """Setting and values of ``section.key=value,value``; commas inside brackets and quotes do not separate.

    Raises InputError if it is not of that form, has no value, or changes what an ablation sets itself.
    """
    name, separator, values = text.removeprefix("--").partition("=")
    if not separator or "." not in name:
        fix = "Write --change section.key=VALUE,VALUE, for instance policy.algorithm=grpo,dapo."
        raise InputError("--change", text, "is no setting with its values", fix)
    parsed = parse_overrides([f"--{name.strip()}=0"])[0]
    split = _split(values)
    if not all(split):
        raise InputError("--change", text, "a value is missing", "Give each value between commas.")
    if parsed.path in _OWN:
        problem, fix = _OWN[parsed.path]
        raise InputError("--change", text, f"{dotted(parsed.path)} {problem}", fix)
    return parsed.path, split


def _split(text: str) -> tuple[str, ...]:
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "[{":
            depth += 1
        elif character in "]}":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append("")
            continue
        parts[-1] += character
    return tuple(part.strip() for part in parts)


def _arm(setting: str, text: str, config: Path, overrides: Sequence[Override]) -> Arm:
    for override in overrides:
        if dotted(override.path) == "policy.algorithm" and override.text in FIXED_ROWS:
            problem = "trains on fixed data, and an ablation compares runs that sample from environments"
            raise InputError("policy.algorithm", override.text, problem, "See posttrain algorithms for the others.")
    arguments = tuple(f"--{dotted(o.path)}={o.text}" for o in overrides)
    settings = load_settings(config, arguments)
    check_settings(settings)
    if not settings.evaluation.at_end:
        problem = "the arms are compared by their held-out tasks at the end"
        raise InputError("evaluation.at_end", False, problem, "Set it to true.")
    return Arm(setting, text, settings, arguments)


def _same(one: Arm, other: Arm) -> bool:
    return one.settings.to_mapping() == other.settings.to_mapping()
