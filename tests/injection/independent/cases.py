"""The list of runs: clean recipes, and every fault at every magnitude and onset on one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tests.injection.independent import scored
from tests.injection.independent.faults import FAULTS, Conditions, Fault
from tests.injection.independent.tasks import TASKS
from tests.injection.independent.trainer import Recipe

ONSETS = {"start": 0.0, "third": 1 / 3, "late": 2 / 3}

_ANCHORED = Conditions(beta=0.005)
_TWICE = Conditions(updates_per_batch=2)
# Engines usually hold bfloat16, so that a clean log too has a small gap between sampler and trainer.
_HALF_ANCHORED = Conditions(beta=0.005, engine_bits=16)
_HALF = Conditions(engine_bits=16)
_HALF_TWICE = Conditions(updates_per_batch=2, engine_bits=16)
# The transformer forgets the task at the recurrent policy's rate.
_SLOW_ANCHORED = Conditions(learning_rate=3e-4, beta=0.005, engine_bits=16)
_SLOW_TWICE = Conditions(learning_rate=3e-4, updates_per_batch=2)

CLEAN = {
    "copy-grpo": Recipe("copy", loss="grpo", conditions=_HALF_ANCHORED),
    "reverse-dapo": Recipe("reverse", seed=1),
    "sort-drgrpo": Recipe("sort", seed=2, loss="dr_grpo", scale=False, conditions=Conditions(learning_rate=2e-3)),
    "sum-gspo": Recipe("digit_sum", seed=3, loss="gspo", conditions=_HALF_TWICE),
    "parity-dapo": Recipe("parity", seed=4, steps=90, conditions=_ANCHORED),
    "largest-grpo": Recipe("largest", seed=5, loss="grpo", format_weight=0.2, conditions=_HALF_TWICE),
    "copy-transformer": Recipe("copy", "transformer", seed=6, conditions=_SLOW_ANCHORED),
    "sort-transformer": Recipe("sort", "transformer", seed=7, loss="grpo", conditions=_SLOW_TWICE),
    "reverse-long": Recipe("reverse", seed=8, steps=150, log_every=5, format_weight=0.2, conditions=_ANCHORED),
    "reverse-transformer": Recipe("reverse", "transformer", seed=9, conditions=_SLOW_ANCHORED),
    "largest-quiet": Recipe("largest", seed=10, loss="dr_grpo", scale=False, logs_sampling=False),
    "copy-small-groups": Recipe("copy", seed=11, prompts=16, group=4, logs_sampling=False, conditions=_ANCHORED),
    "sum-long": Recipe("digit_sum", seed=12, steps=150, log_every=5),
    "sort-again": Recipe("sort", seed=13, loss="grpo", conditions=_HALF_ANCHORED),
    "copy-biased": Recipe("copy", biased=True, seed=14, loss="grpo", steps=150, conditions=_HALF),
    "sort-biased": Recipe("sort", biased=True, seed=15, steps=150, conditions=_HALF),
    "largest-biased": Recipe("largest", biased=True, seed=16, loss="grpo", conditions=_HALF),
}
RECIPES = CLEAN | scored.CLEAN


@dataclass(frozen=True, slots=True)
class Case:
    """A run: its clean recipe, and the fault that sets in with step ``onset`` (1 is the first)."""

    name: str
    clean: str
    fault: Fault | None = None
    level: int = 0
    onset: int = 0

    @property
    def recipe(self) -> Recipe:
        """The clean recipe."""
        return RECIPES[self.clean]

    def conditions(self, step: int) -> Conditions:
        """Those of one step."""
        plain = self.recipe.conditions
        if self.fault is None or step < self.onset:
            return plain
        changed = self.fault.levels[self.level - 1](plain, TASKS[self.recipe.task])
        # Weights are poisoned once; what follows is the consequence.
        return replace(changed, poisoned=changed.poisoned and step == self.onset)


def all_cases(split: str = "tuning") -> list[Case]:
    """Clean runs first. A fault meets another recipe at each onset, and the same at all magnitudes of that onset.

    ``tuning`` has every magnitude at every onset; ``scored`` the stronger one at each, the weaker one at the first two.
    """
    if split == "scored":
        skipped = {("late", 1)}
        return _cases(scored.CLEAN, scored.SCORED, skipped, mark="scored-")
    return _cases(CLEAN, FAULTS, set(), mark="")


def _cases(
    clean: Mapping[str, Recipe], faults: Mapping[str, Fault], skipped: set[tuple[str, int]], mark: str
) -> list[Case]:
    cases = [Case(f"clean.{name}", name) for name in clean]
    for place, fault in enumerate(faults.values()):
        recipes = _recipes(clean, fault.name)
        for turn, (onset_name, share) in enumerate(ONSETS.items()):
            name = recipes[(place + turn * 5) % len(recipes)]
            onset = round(share * clean[name].steps) + 1
            cases += [
                Case(f"{mark}{fault.name}.{onset_name}.{level}", name, fault, level, onset)
                for level in range(1, len(fault.levels) + 1)
                if (onset_name, level) not in skipped
            ]
    return cases


def _recipes(clean: Mapping[str, Recipe], fault: str) -> tuple[str, ...]:
    """Those on which a fault can show."""
    plain = [name for name, recipe in clean.items() if not recipe.biased]
    match fault:
        case "kl_anchor_too_strong":  # needs the KL
            kept = [name for name in plain if clean[name].conditions.beta and clean[name].log_every == 1]
        case "tasks_too_hard":  # long prompts are no harder where the answer is one digit
            kept = [name for name in plain if TASKS[clean[name].task].longest_answer > 1]
        case "entropy_collapse":  # a policy whose likeliest reply is right only gains from certainty
            kept = [name for name, recipe in clean.items() if recipe.biased]
        case "stale_batches" | "sampler_temperature" | "stale_weights" | "quantised_sampler":
            kept = [name for name in plain if clean[name].logs_sampling and clean[name].log_every == 1]
        case _:
            kept = plain
    return tuple(kept)
