"""Causes in layer 6: order and age of the data."""

from __future__ import annotations

from posttrain.faultmap.cause import Cause
from posttrain.faultmap.causes.remedies import remedies
from posttrain.signals.signal import Layer

CAUSES: tuple[Cause, ...] = (
    Cause(
        "data_too_old",
        Layer.SCHEDULE,
        "The data is older than the correction bears",
        "Attempts were sampled several updates ago. Recomputed log-probs hide it (the ratio starts at 1, so that the "
        "clip never acts around the policy that sampled), or the importance weights get a heavy tail: few tokens "
        "decide the update, the gap grows with the lag, and the run breaks some hundred steps later.",
        "Plot gap and effective sample size against the age of the tokens. Train a few steps with an age of 0 from the "
        "same checkpoint: the gap must fall to its starting level.",
        "Lower the limit on staleness or update the engine more often; correct with the sampler's own log-probs, "
        "truncated or masked.",
        remedies(
            posttrain='Use the sampler as the ratio\'s denominator (`policy.ratio.denominator = "sampler"`), and '
            "lower `policy.updates_per_batch`.",
            trl="Lower `steps_per_generation` and `num_iterations`; in async runs allow less staleness.",
            verl="Lower `max_off_policy_threshold` or the parameter sync step; set "
            "`algorithm.rollout_correction.rollout_is=token`.",
            prime_rl="Lower `max_off_policy_steps` (default 8), and watch `off_policy/mean`.",
            openrlhf="Lower the size of the async queue, switch partial rollout off, and set "
            "`--algo.advantage.is_correction_enable`.",
        ),
        other_layer=Layer.LOGPROBS,
    ),
    Cause(
        "groups_lost",
        Layer.SCHEDULE,
        "Groups are lost or thrown away",
        "Attempts never come back, finished groups are dropped, or a filter leaves few to train. The batch shrinks or "
        "waits, and what remains is a biased choice: mostly the short and easy ones.",
        "Count: sampled = trained + discarded with a reason + still in work. Compare the length of the discarded with "
        "the trained ones.",
        "Give every wait a time limit, discard whole groups with a reason, and ask for replacement.",
        remedies(
            posttrain="The journal knows every group: see `schedule/discarded`, `schedule/evicted` and the "
            "reasons in `posttrain view RUN --show ungradable`.",
            trl="Compare samples per step with `per_device_train_batch_size`; the number of dropped samples is not "
            "logged everywhere.",
            verl="See `training/off_policy/evicted_samples` and `training/rollout_failure/evicted_samples`.",
            prime_rl="See `off_policy/dropped` and `dispatcher/cancelled/...`.",
            openrlhf="See the `Filtered out` lines and `dynamic_filtering_pass_rate`.",
        ),
        other_layer=Layer.ROLLOUT,
    ),
)
