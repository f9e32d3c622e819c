"""Most groups teach nothing, though not all: their tasks are solved, too hard, or graded without a look."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posttrain.faultmap.detector import Detector
from posttrain.faultmap.detectors.reward_hacking import TASK
from posttrain.faultmap.finding import Finding, Observation, Severity
from posttrain.faultmap.history import Course, History, Values
from posttrain.faultmap.patterns import last_run, rolling_mean
from posttrain.faultmap.patterns_events import first_of
from posttrain.faultmap.patterns_progress import Progress, progress
from posttrain.faultmap.patterns_reward import compact, part_names, signal_share
from posttrain.faultmap.weighing import scene_of, supported
from posttrain.faultmap.weighing_update import causes_of

NAME = "few_groups"
MOST, EARLY, SPREAD_LEFT, SPREAD_KEPT = 0.6, 0.3, 0.15, 0.8
POINTS, SETTLED, LONG = 15, 20, 40
SOLVED, HARD, HARD_PART = 0.88, 0.2, 0.1
NO_GAIN = 0.25
"""Of the spread that was there: less than that is no gain that would explain silent groups."""


def judge(history: History) -> Sequence[Finding]:
    """What silences most groups over the last points of the log."""
    signal = compact(signal_share(history))
    if len(signal) < 2 * POINTS or signal.name in ("reward/group_std_mean", "reward/std"):
        return ()
    silent = rolling_mean(1.0 - signal.values, POINTS)
    start = last_run((silent >= MOST) & (np.arange(len(silent)) >= POINTS - 1))
    p = progress(history, signal.steps)
    if start is None or not p.known:
        return ()
    raw = 1.0 - signal.values
    first = next((i for i in range(start - POINTS + 1, start + 1) if float(np.mean(raw[i : i + 5])) >= MOST), start)
    found = _why(history, signal, silent, first, p)
    if found is None:
        return ()
    cause, severity, confidence, reason = found
    onset, share = int(signal.steps[first]), float(silent[-1])
    return (
        Finding(
            NAME, "no_group_signal", cause, severity, confidence,
            f"In {share:.0%} of the groups every attempt has the same reward since step {onset}: {reason}.",
            onset, None,
            (
                Observation("reward/zero_variance_groups", int(signal.steps[-1]), share, "teach nothing"),
                Observation(p.name, int(signal.steps[-1]), float(p.now[-1]), f"at the start {p.start:.3g}"),
            ),
            causes_of(scene_of(history, onset), "no_group_signal", supported(cause, reason)),
        ),
    )  # fmt: skip


def _why(
    history: History, signal: Course, silent: Values, first: int, p: Progress
) -> tuple[str, Severity, float, str] | None:
    place = float(p.attained[-1])
    spread = compact(history.course("reward/std"))
    if float(silent[SETTLED - 1]) <= EARLY and len(spread) >= 2 * SETTLED:
        began = int(np.flatnonzero(silent[SETTLED - 1 :] <= EARLY)[-1]) + SETTLED - 1
        usual = float(np.median(spread.between(-1, int(signal.steps[began])).values[-SETTLED:]))
        left = float(np.median(spread.values[-POINTS:]))
        # Who solves tasks gains as the spread goes: of a reward that is 0 or 1 at least half the spread.
        if float(p.steady[-1] - p.steady[began]) <= NO_GAIN * usual and _is_alive(history):
            kept = "went" if left < SPREAD_LEFT * usual else "stayed" if left > SPREAD_KEPT * usual else ""
            reason = (
                f"the reward gained nothing by it, and the spread of all rewards {kept} from {usual:.2g} to {left:.2g}"
            )
            if kept:
                return "reward_dead", Severity.WARN, 0.5, f"{reason}: attempts are no longer told apart"
    if place >= SOLVED:
        return "tasks_solved", Severity.INFO, 0.7, f"the reward stands at {place:.0%} of its range"
    parts = [compact(history.course(f"reward/part/{name}/mean")) for name in part_names(history) if TASK.search(name)]
    low = next((c for c in parts if _is_low(c)), None)
    if len(signal) >= LONG and first <= SETTLED and ((place <= HARD and bool(p.stands[-1])) or low is not None):
        what = f"the reward stands at {place:.0%} of its range"
        if low is not None:
            what = f"{low.name} stands at {np.median(low.values[-POINTS:]):.2g}"
        return "tasks_too_hard", Severity.WARN, 0.6, f"it has been so from the start, and {what}"
    return None


def _is_low(part: Course) -> bool:
    """The part that stands for the task is next to nothing and has not risen."""
    if len(part) < LONG:
        return False
    start, now = float(np.median(part.values[:POINTS])), float(np.median(part.values[-POINTS:]))
    return now <= HARD_PART and now - start <= 0.3 * HARD_PART


def _is_alive(history: History) -> bool:
    """The texts still differ, as far as entropy tells: a policy with one answer has silent groups, too."""
    entropy = first_of(history, "policy/entropy", "policy/sampled_entropy").values
    return not len(entropy) or float(np.median(entropy[-POINTS:])) > 0.3 * float(np.median(entropy[:POINTS]))


DETECTOR = Detector(
    name=NAME,
    symptom="no_group_signal",
    title="Most groups teach nothing",
    pattern="In the mean of 15 points at least 60 % of the groups are silent, up to the end of the log. It was under "
    "30 %, the reward has gained less than a quarter of its spread since, the spread is gone (15 %) or as before (80 "
    "%), and entropy is still there: attempts are no longer told apart. Else, reward at 88 % of its range: solved "
    "(info). From the start on, with a reward that stands at 20 % of its range or a task part that stands under 0.1: "
    "too hard.",
    needs=(("reward/zero_variance_groups", "reward/all_fail_groups"), ("reward/mean", "reward/success")),
    judge=judge,
    sharpened_by=("reward/std", "reward/part/{part}/mean", "reward/success"),
    yields_to=(
        "no_group_signal", "reward_dead", "reward_shift", "grader_failing", "constant_policy", "reward_collapse",
        "entropy_collapse", "truncation", "learning_rate", "mismatch", "entropy_explosion", "held_out_deficit",
    ),
)  # fmt: skip
