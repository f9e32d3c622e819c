"""The list of runs: clean recipes, and every fault at every magnitude and onset on one of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
_BIASED = tuple(name for name, recipe in CLEAN.items() if recipe.biased)
_PLAIN = tuple(name for name, recipe in CLEAN.items() if not recipe.biased)

# Faults that show in the comparison of sampler and trainer need a log that has it; the anchor needs the KL.
_SAMPLING = tuple(name for name in _PLAIN if (recipe := CLEAN[name]).logs_sampling and recipe.log_every == 1)
_KL = tuple(name for name in _PLAIN if (recipe := CLEAN[name]).conditions.beta and recipe.log_every == 1)
# Long prompts are no harder where the answer is one digit.
_LONG = tuple(name for name in _PLAIN if TASKS[CLEAN[name].task].longest_answer > 1)
# A policy whose likeliest reply is right only gains from certainty.
_RECIPES = {"kl_anchor_too_strong": _KL, "tasks_too_hard": _LONG, "entropy_collapse": _BIASED} | dict.fromkeys(
    ("stale_batches", "sampler_temperature", "stale_weights", "quantised_sampler"), _SAMPLING
)


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
        return CLEAN[self.clean]

    def conditions(self, step: int) -> Conditions:
        """Those of one step."""
        plain = self.recipe.conditions
        if self.fault is None or step < self.onset:
            return plain
        changed = self.fault.levels[self.level - 1](plain, TASKS[self.recipe.task])
        # Weights are poisoned once; what follows is the consequence.
        return replace(changed, poisoned=changed.poisoned and step == self.onset)


def all_cases() -> list[Case]:
    """Clean runs first. A fault meets another recipe at each onset, and the same at all magnitudes of that onset."""
    cases = [Case(f"clean.{name}", name) for name in CLEAN]
    for place, fault in enumerate(FAULTS.values()):
        recipes = _RECIPES.get(fault.name, _PLAIN)
        for turn, (onset_name, share) in enumerate(ONSETS.items()):
            clean = recipes[(place + turn * 5) % len(recipes)]
            onset = round(share * CLEAN[clean].steps) + 1
            cases += [Case(f"{fault.name}.{onset_name}.{level}", clean, fault, level, onset) for level in (1, 2, 3)]
    return cases
