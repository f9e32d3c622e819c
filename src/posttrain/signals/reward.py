"""Layer 1: what the environment says about the samples of a step."""

from __future__ import annotations

from posttrain.signals.signal import Evidence, HealthyRange, Layer, Reduction, Signal

SIGNALS: tuple[Signal, ...] = (
    Signal(
        "reward/mean",
        Layer.REWARD,
        "reward",
        "Mean reward of the gradable trajectories of the step. Ungradable and failed ones are in no denominator.",
        Reduction.MEAN,
    ),
    Signal(
        "reward/std",
        Layer.REWARD,
        "reward",
        "Standard deviation (denominator n) of the reward over all gradable trajectories of the step, between and "
        "within groups.",
        Reduction.LAST,
        assumes="Says nothing about the spread within groups: constant groups that differ from each other have one.",
    ),
    Signal(
        "reward/min",
        Layer.REWARD,
        "reward",
        "Lowest reward of a gradable trajectory.",
        Reduction.MIN,
    ),
    Signal(
        "reward/max",
        Layer.REWARD,
        "reward",
        "Highest reward of a gradable trajectory.",
        Reduction.MAX,
    ),
    Signal(
        "reward/group_std_mean",
        Layer.REWARD,
        "reward",
        "Standard deviation (denominator n - 1) of the reward within a group, averaged over groups with at least two "
        "gradable members.",
        Reduction.MEAN,
        assumes="Binary rewards near success rate 0 or 1 make it small without any fault.",
    ),
    Signal(
        "reward/success",
        Layer.REWARD,
        "share",
        "Share of gradable trajectories whose reward reaches the environment's success threshold.",
        Reduction.SHARE,
    ),
    Signal(
        "reward/part/{part}/mean",
        Layer.REWARD,
        "reward",
        "Mean of one named part of the reward before weighting, over the trajectories to which the part applies.",
        Reduction.MEAN,
    ),
    Signal(
        "reward/part/{part}/std",
        Layer.REWARD,
        "reward",
        "Standard deviation (denominator n) of one part over the trajectories to which it applies.",
        Reduction.LAST,
        assumes="A part that is constant for many steps is either solved or broken; look at examples.",
    ),
    Signal(
        "reward/environment/{environment}/mean",
        Layer.REWARD,
        "reward",
        "Mean reward of the gradable trajectories of one environment in a mixed run.",
        Reduction.MEAN,
    ),
    Signal(
        "reward/zero_variance_groups",
        Layer.REWARD,
        "share",
        "Share of groups with at least two gradable members in which all rewards are exactly equal. Such a group "
        "moves nothing under a group baseline.",
        Reduction.SHARE,
        HealthyRange(
            0.0,
            0.8,
            "a share of 1 in the first three steps has been a constant reward function wherever it was explained",
            Evidence.PROPOSED,
            "Group baseline, verifiable reward, tasks the model solves sometimes. Rises towards 1 when the tasks are "
            "solved.",
        ),
    ),
    Signal(
        "reward/all_success_groups",
        Layer.REWARD,
        "share",
        "Share of groups with at least two gradable members that all succeed: too easy for now.",
        Reduction.SHARE,
    ),
    Signal(
        "reward/all_fail_groups",
        Layer.REWARD,
        "share",
        "Share of groups with at least two gradable members that all fail: too hard for now, or graded wrongly.",
        Reduction.SHARE,
    ),
    Signal(
        "reward/all_fail_spread_groups",
        Layer.REWARD,
        "share",
        "Share of groups without a success whose rewards still differ: there only shaping terms speak.",
        Reduction.SHARE,
        assumes="Division by the group's standard deviation blows such a spread up to full size; public runs with a "
        "length term lost their accuracy to it.",
    ),
    Signal(
        "reward/small_groups",
        Layer.REWARD,
        "groups",
        "Groups with fewer than two gradable members, which have no group baseline.",
        Reduction.SUM,
        HealthyRange(
            None, 0.0, "a group loses members only by failures", Evidence.DERIVED, "Group size of at least two."
        ),
    ),
    Signal(
        "reward/graded",
        Layer.REWARD,
        "trajectories",
        "Trajectories of the step that have a reward.",
        Reduction.SUM,
    ),
    Signal(
        "reward/ungradable",
        Layer.REWARD,
        "trajectories",
        "Trajectories the grader could not judge (not a number, no part applies). They are no failures of the policy "
        "and never count as reward 0.",
        Reduction.SUM,
        HealthyRange(
            None, 0.0, "could not be graded means a fault of the grader", Evidence.DERIVED, "Any environment."
        ),
    ),
    Signal(
        "reward/failed",
        Layer.REWARD,
        "trajectories",
        "Trajectories whose grading failed: the grader raised, timed out or lost its process.",
        Reduction.SUM,
        HealthyRange(None, 0.0, "a grader that fails is a fault of the grader", Evidence.DERIVED, "Any environment."),
    ),
    Signal(
        "reward/ungradable_share",
        Layer.REWARD,
        "share",
        "Share of the trajectories of the step without a reward, for whatever reason.",
        Reduction.SHARE,
        HealthyRange(
            0.0,
            0.02,
            "a tool service that refused 62 % of its calls went unnoticed in a public run; 2 % is a proposal",
            Evidence.PROPOSED,
            "Any environment.",
        ),
    ),
    Signal(
        "reward/grader_timeouts",
        Layer.REWARD,
        "events",
        "Times a grader was killed because it did not answer in time.",
        Reduction.SUM,
        HealthyRange(None, 0.0, "a grader that is killed has graded nothing", Evidence.DERIVED, "Any environment."),
    ),
    Signal(
        "reward/grader_restarts",
        Layer.REWARD,
        "events",
        "Times a grading process was started again after it died or was killed.",
        Reduction.SUM,
        HealthyRange(None, 0.0, "a grader that dies has graded nothing", Evidence.DERIVED, "Any environment."),
    ),
    Signal(
        "reward/parsable_share",
        Layer.REWARD,
        "share",
        "Share of gradable trajectories in which the grader found an answer to judge.",
        Reduction.SHARE,
        HealthyRange(
            0.8,
            None,
            "where answers are not found, format instead of skill decides the reward",
            Evidence.PROPOSED,
            "After the first steps, in which a model learns the format.",
        ),
    ),
)
