"""The scored runs: other tasks, other seeds and other magnitudes than those that detectors were tuned on."""

from __future__ import annotations

from dataclasses import replace

from tests.injection.independent.faults import FAULTS, Change, Conditions, Fault, cap_of, rate_times, setting
from tests.injection.independent.trainer import Recipe

_ANCHORED = Conditions(beta=0.01)
_HALF = Conditions(engine_bits=16)
_HALF_ANCHORED = Conditions(beta=0.003, engine_bits=16)
_HALF_TWICE = Conditions(updates_per_batch=2, engine_bits=16)
_SLOW_ANCHORED = Conditions(learning_rate=3e-4, beta=0.005, engine_bits=16)

CLEAN = {
    "rotate-grpo": Recipe("rotate", seed=101, loss="grpo", conditions=_HALF_ANCHORED),
    "increment-dapo": Recipe("increment", seed=102, conditions=_HALF),
    "ends-gspo": Recipe("ends", seed=103, loss="gspo", conditions=_HALF_TWICE),
    "smallest-drgrpo": Recipe("smallest", seed=104, loss="dr_grpo", scale=False, conditions=_ANCHORED),
    "increment-transformer": Recipe("increment", "transformer", seed=105, loss="grpo", conditions=_SLOW_ANCHORED),
    "ends-long": Recipe("ends", seed=106, steps=160, format_weight=0.2, conditions=_HALF_ANCHORED),
    "rotate-groups": Recipe("rotate", seed=107, prompts=12, group=6, conditions=_HALF),
    "increment-anchored": Recipe("increment", seed=108, loss="grpo", steps=100, conditions=_ANCHORED),
    "ends-quiet": Recipe("ends", seed=109, steps=150, log_every=5, logs_sampling=False),
    "rotate-transformer": Recipe("rotate", "transformer", seed=110, conditions=_SLOW_ANCHORED),
    "smallest-twice": Recipe("smallest", seed=111, format_weight=0.1, conditions=_HALF_TWICE),
    "increment-biased": Recipe("increment", biased=True, seed=112, loss="grpo", steps=150, conditions=_HALF),
    "rotate-biased": Recipe("rotate", biased=True, seed=113, conditions=_HALF),
}

_LEVELS: dict[str, tuple[Change, ...]] = {
    "hackable_reward": (setting(shortcut_pay=0.7), setting(shortcut_pay=1.5)),
    "length_hack": (setting(length_pay=0.7), setting(length_pay=1.5)),
    "grader_rejects_all": (setting(rejected_share=0.5), setting(rejected_share=0.9)),
    "grader_accepts_all": (setting(accepted_share=0.5), setting(accepted_share=0.9)),
    "noisy_grader": (setting(flipped_share=0.25), setting(flipped_share=0.4)),
    "tasks_too_hard": (setting(hard_share=0.6), setting(hard_share=0.9)),
    "saturation": (setting(easy_share=0.6), setting(easy_share=0.9)),
    "learning_rate_too_high": (rate_times(20), rate_times(80)),
    "learning_rate_too_low": (rate_times(0.01), rate_times(0.002)),
    "kl_anchor_too_strong": (setting(beta=1.0), setting(beta=8.0)),
    "entropy_collapse": (setting(entropy_bonus=-0.3), setting(entropy_bonus=-1.5)),
    "entropy_explosion": (setting(entropy_bonus=0.15), setting(entropy_bonus=0.6)),
    "frozen_parameters": (setting(frozen_share=0.8), setting(frozen_share=1.0)),
    "non_finite_gradient": (setting(infinite_gradient_every=8), setting(poisoned=True)),
    "batch_reuse": (
        setting(updates_per_batch=8, clipped=False),
        setting(updates_per_batch=20, clipped=False),
    ),
    "stale_batches": (setting(lag=6), setting(lag=16)),
    "sampler_temperature": (setting(sampler_temperature=0.75), setting(sampler_temperature=0.6)),
    "stale_weights": (setting(sync_every=12), setting(sync_every=0)),
    "same_seed_in_group": (setting(copies=3), setting(copies=8)),
    "truncation_cap": (cap_of(lambda n: n + 2), cap_of(lambda n: n)),
    "quantised_sampler": (setting(engine_bits=5), setting(engine_bits=4)),
}

SCORED: dict[str, Fault] = {name: replace(fault, levels=_LEVELS[name]) for name, fault in FAULTS.items()}
"""Every fault with two magnitudes, a weaker and a stronger one."""
