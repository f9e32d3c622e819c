"""What a diagnosis should say of a faulty run.

``finding``: the log shows that something is wrong. ``info``: worth saying, nothing is broken. ``faint``: the fault is
there, and its effect on the log is small or looks like ordinary training; it may be named or not, but nothing else may.
``none``: it does no harm there, and a warning would be a false alarm.

The table was written from the comparison of each run with its clean twin (``check.py``) and from the curves, before the
runs were scored; tools had been tried on four of them to see that they answer, and none of these is in the table. What
it does not name is as its fault says, mostly a finding.
"""

from __future__ import annotations

from tests.injection.independent.cases import Case

FINDING, INFO, FAINT, NONE = "finding", "info", "faint", "none"

_CERTAINTY = "entropy falls, and the reward is as good as without the fault or better"
_SKIPPED = "one step in 25 is skipped, and nothing is lost"
_SLOWER = "the reward still rises, only more slowly, which a log without its twin does not show"
_UNHURT = "the reward is as good as without the fault"
_WEAK = "the effect is within what ordinary training does"

EXPECTED: dict[str, tuple[str, str]] = {
    "grader_accepts_all.start.1": (FAINT, _WEAK),
    "grader_accepts_all.late.1": (FAINT, _WEAK),
    "noisy_grader.start.1": (FAINT, "reward lies 0.13 below held-out success, which other tasks could explain"),
    "noisy_grader.late.1": (FAINT, _WEAK),
    "noisy_grader.late.2": (FAINT, _WEAK),
    "learning_rate_too_low.start.1": (FAINT, _SLOWER),
    "learning_rate_too_low.third.1": (FAINT, _SLOWER),
    "learning_rate_too_low.third.2": (FAINT, _SLOWER),
    "learning_rate_too_low.late.1": (NONE, "the task is learnt: 0.97 with or without, as where a rate decays"),
    "learning_rate_too_low.late.2": (NONE, "the task is learnt: 0.97 with or without, as where a rate decays"),
    "learning_rate_too_low.late.3": (NONE, "the task is learnt: 0.97 with or without, as where a rate decays"),
    "kl_anchor_too_strong.start.1": (FAINT, _SLOWER),
    "kl_anchor_too_strong.third.1": (FAINT, _SLOWER),
    "kl_anchor_too_strong.late.1": (FAINT, _UNHURT),
    "entropy_collapse.start.1": (FAINT, _CERTAINTY),
    "entropy_collapse.third.1": (FAINT, _CERTAINTY),
    "entropy_collapse.third.2": (FAINT, _CERTAINTY),
    "entropy_collapse.third.3": (FAINT, _CERTAINTY),
    "entropy_collapse.late.1": (FAINT, _CERTAINTY),
    "entropy_collapse.late.2": (FAINT, _CERTAINTY),
    "entropy_collapse.late.3": (FAINT, _CERTAINTY),
    "entropy_explosion.start.1": (FAINT, _WEAK),
    "entropy_explosion.third.1": (FAINT, _WEAK),
    "entropy_explosion.late.1": (FAINT, _WEAK),
    "entropy_explosion.late.2": (FAINT, "entropy rises from 0.30 to 0.35 and the reward loses 0.03"),
    "frozen_parameters.start.1": (FAINT, _SLOWER),
    "frozen_parameters.third.1": (FAINT, _UNHURT),
    "frozen_parameters.third.2": (FAINT, _SLOWER),
    "frozen_parameters.late.1": (FAINT, _UNHURT),
    "frozen_parameters.late.2": (FAINT, _SLOWER),
    "non_finite_gradient.start.1": (INFO, _SKIPPED),
    "non_finite_gradient.third.1": (INFO, _SKIPPED),
    "non_finite_gradient.late.1": (INFO, _SKIPPED),
    "batch_reuse.start.1": (FAINT, _UNHURT),
    "batch_reuse.third.1": (FAINT, _UNHURT),
    "batch_reuse.late.1": (FAINT, _UNHURT),
    "stale_batches.late.1": (FAINT, "a gap of 0.02 nats, as engines of lower precision have, and no harm"),
    "stale_weights.start.1": (FAINT, "a gap of 0.02 nats, as engines of lower precision have, and no harm"),
    "stale_weights.third.1": (FAINT, "a gap of 0.02 nats, as engines of lower precision have, and no harm"),
    "stale_weights.late.1": (FAINT, "a gap of 0.01 nats, as engines of lower precision have, and no harm"),
    "quantised_sampler.start.1": (FAINT, "a gap of 0.02 nats, as engines of lower precision have, and no harm"),
    "quantised_sampler.third.1": (FAINT, "a gap of 0.02 nats, as engines of lower precision have, and no harm"),
    "quantised_sampler.late.1": (FAINT, "a gap of 0.02 nats, as engines of lower precision have, and no harm"),
    "same_seed_in_group.start.1": (FAINT, _WEAK),
    "same_seed_in_group.start.2": (FAINT, _WEAK),
    "same_seed_in_group.third.1": (FAINT, _WEAK),
    "same_seed_in_group.late.1": (FAINT, _WEAK),
    "truncation_cap.start.1": (FAINT, "a few replies are cut off until the policy leaves out its fillers"),
    "truncation_cap.third.1": (FAINT, "a few replies are cut off until the policy leaves out its fillers"),
    "truncation_cap.late.1": (FAINT, "a few replies are cut off until the policy leaves out its fillers"),
}


def expected_of(case: Case) -> tuple[str, str]:
    """What to expect of a faulty run, and why where it is not a finding."""
    assert case.fault is not None
    if case.name in EXPECTED:
        return EXPECTED[case.name]
    return case.fault.expected, "nothing is broken" if case.fault.expected == INFO else ""
