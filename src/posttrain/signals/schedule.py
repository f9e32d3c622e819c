"""Layer 6: which groups are where, and how old their data is."""

from __future__ import annotations

from posttrain.signals.signal import Layer, Reduction, Signal

SIGNALS: tuple[Signal, ...] = (
    Signal(
        "schedule/in_flight",
        Layer.SCHEDULE,
        "groups",
        "Groups given to the engine and not finished.",
        Reduction.LAST,
    ),
    Signal(
        "schedule/being_scored",
        Layer.SCHEDULE,
        "groups",
        "Groups finished and not yet graded.",
        Reduction.LAST,
    ),
    Signal(
        "schedule/ready",
        Layer.SCHEDULE,
        "groups",
        "Groups graded and waiting to be trained.",
        Reduction.LAST,
    ),
    Signal(
        "schedule/staleness_mean",
        Layer.SCHEDULE,
        "versions",
        "Trainer's version when a group's batch starts to be used minus the version of its oldest token, averaged over "
        "the selected groups.",
        Reduction.MEAN,
    ),
    Signal(
        "schedule/staleness_max",
        Layer.SCHEDULE,
        "versions",
        "Largest such difference among the selected groups.",
        Reduction.MAX,
    ),
    Signal(
        "schedule/discarded",
        Layer.SCHEDULE,
        "groups",
        "Groups discarded since the last step, for whatever reason.",
        Reduction.SUM,
    ),
    Signal(
        "schedule/evicted",
        Layer.SCHEDULE,
        "groups",
        "Of those, groups discarded because they were older than the staleness limit.",
        Reduction.SUM,
    ),
)
