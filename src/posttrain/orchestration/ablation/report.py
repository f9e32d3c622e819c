"""Arms beside the base: differences paired by seed, as records, as a JSON document and as a table."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from posttrain.orchestration.ablation.outcome import Outcome, State, TaskScore
from posttrain.orchestration.ablation.paired import PairedDifference, holm, paired_difference, standard_deviation
from posttrain.orchestration.ablation.plan import AblationPlan, Arm, Job
from posttrain.orchestration.progress import duration
from posttrain.orchestration.statistics import Estimate, bootstrap_mean

SCHEMA_VERSION = 1
QUANTITIES: Mapping[str, Callable[[TaskScore], float]] = {
    "held_out_reward": lambda task: task.reward,
    "held_out_success": lambda task: task.success,
}


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run and how far it is; ``outcome`` only where it is finished, ``detail`` where it stopped or failed."""

    job: Job
    state: State
    outcome: Outcome | None = None
    detail: str = ""

    def to_json(self, folder: Path) -> dict[str, Any]:
        """JSON-compatible form; the path is relative to the ablation's folder."""
        data: dict[str, Any] = {
            "arm": self.job.arm.name,
            "seed": self.job.seed,
            "run": str(self.job.path.relative_to(folder)),
            "state": str(self.state),
            "detail": self.detail,
        }
        return data | (self.outcome.to_json() if self.outcome is not None else {})


@dataclass(frozen=True, slots=True)
class Comparison:
    """One arm against the base in one quantity.

    ``by_seed`` judges by the spread between seeds, ``over_tasks`` by that between clusters of held-out tasks, after
    the mean over the seeds: it says how far other tasks might differ, not other seeds. ``holm_p`` is adjusted for all
    arms of the ablation in this quantity.
    """

    arm: Arm
    quantity: str
    by_seed: PairedDifference
    over_tasks: Estimate | None
    holm_p: float | None

    def to_json(self) -> dict[str, Any]:
        """JSON-compatible form."""
        return {
            "arm": self.arm.name,
            "quantity": self.quantity,
            "difference": self.by_seed.to_json(),
            "over_tasks": None if self.over_tasks is None else self.over_tasks.to_json(),
            "holm_p": self.holm_p,
            "measured_differently": self.arm.measured_differently,
        }


def compare(plan: AblationPlan, records: Sequence[RunRecord]) -> tuple[Comparison, ...]:
    """Every arm that shares a finished seed with the base, in each quantity."""
    outcomes = {arm.name: _outcomes(records, arm) for arm in plan.arms}
    base = outcomes[plan.base.name]
    found: list[Comparison] = []
    for quantity, score in QUANTITIES.items():
        pairs: list[tuple[Arm, PairedDifference]] = []
        for arm in plan.arms[1:]:
            paired = paired_difference(_means(base, quantity), _means(outcomes[arm.name], quantity))
            if paired is not None:
                pairs.append((arm, paired))
        # An arm without a finished run is a comparison that was planned: it counts among those corrected for.
        missing = len(plan.arms) - 1 - len(pairs)
        adjusted = holm([paired.p for _, paired in pairs] + [None] * missing)
        for (arm, paired), p in zip(pairs, adjusted, strict=False):
            tasks = _over_tasks(base, outcomes[arm.name], paired.seeds, score)
            found.append(Comparison(arm, quantity, paired, tasks, p))
    return tuple(found)


def document(plan: AblationPlan, records: Sequence[RunRecord], folder: Path) -> dict[str, Any]:
    """The whole ablation as strict JSON data, at any time; ``complete`` once every run is finished."""
    return {
        "schema_version": SCHEMA_VERSION,
        "written": time.time(),
        "config": str(plan.config),
        "seeds": list(plan.seeds),
        "complete": all(r.state is State.FINISHED for r in records),
        "arms": [
            {"name": arm.name, "setting": arm.setting, "value": arm.text, "settings": arm.settings.to_mapping()}
            for arm in plan.arms
        ],
        "runs": [record.to_json(folder) for record in records],
        "summary": [_summary(arm, records) for arm in plan.arms],
        "comparisons": [comparison.to_json() for comparison in compare(plan, records)],
    }


def print_report(plan: AblationPlan, records: Sequence[RunRecord], console: Console) -> None:
    """Tables with one row for each arm, then what the numbers rest on."""
    compared = {(c.arm.name, c.quantity): c for c in compare(plan, records)}
    for quantity in QUANTITIES:
        table = _table(quantity.replace("_", "-", 1).replace("_", " "), "difference (95 %)", "effect", "Holm p")
        for arm in plan.arms:
            found = compared.get((arm.name, quantity))
            table.add_row(
                arm.name,
                _mean_text(_summary(arm, records)[quantity]),
                _difference_text(found),
                _number(None if found is None else found.by_seed.effect, "+.2f"),
                _number(None if found is None else found.holm_p, ".3f"),
            )
        console.print(table)
        console.print()
    table = _table("training reward", "steps", "time of a run", "seeds finished")
    for arm in plan.arms:
        summary = _summary(arm, records)
        table.add_row(
            arm.name,
            _mean_text(summary["training_reward"]),
            str(summary["steps"]),
            duration(summary["seconds"]) if summary["seconds"] is not None else "",
            f"{summary['finished']} of {len(plan.seeds)}",
        )
    console.print(table)
    for line in _notes(plan, records):
        console.print(line, soft_wrap=True, markup=False)


def _table(*heads: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("arm", overflow="fold")
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    return table


def _notes(plan: AblationPlan, records: Sequence[RunRecord]) -> list[str]:
    number = len(plan.arms) - 1
    lines = [
        f"{number} arm{'s' if number > 1 else ''} beside the base, {len(plan.seeds)} seed"
        f"{'s' if len(plan.seeds) > 1 else ''}. Held-out tasks after the last step; differences are arm "
        "minus base on the same seed, with the t interval over seeds; effect is the difference over the standard "
        "deviation of the base's seeds; Holm p is adjusted for the number of arms."
    ]
    if len(plan.seeds) == 1:
        lines.append("With one seed there is no interval, no effect size and no p: give --seeds 3 or more.")
    lines += [
        f"{arm.name}: measured by other tasks or rewards than the base, so its difference is not one of skill alone."
        for arm in plan.arms
        if arm.measured_differently
    ]
    for record in records:
        if record.state in (State.STOPPED, State.FAILED):
            lines.append(f"{record.job.arm.name}, seed {record.job.seed} {record.state}: {record.detail}")
    return lines


def _outcomes(records: Sequence[RunRecord], arm: Arm) -> dict[int, Outcome]:
    return {r.job.seed: r.outcome for r in records if r.job.arm.name == arm.name and r.outcome is not None}


def _means(outcomes: Mapping[int, Outcome], quantity: str) -> dict[int, float]:
    score = QUANTITIES[quantity]
    return {
        seed: math.fsum(score(t) for t in outcome.tasks.values()) / len(outcome.tasks)
        for seed, outcome in outcomes.items()
        if outcome.tasks
    }


def _over_tasks(
    base: Mapping[int, Outcome], arm: Mapping[int, Outcome], seeds: Sequence[int], score: Callable[[TaskScore], float]
) -> Estimate | None:
    """Bootstrap over clusters of the tasks that every run has; a task's difference is its mean over the seeds."""
    shared = set.intersection(*(set(side[seed].tasks) for side in (base, arm) for seed in seeds))
    keys = [key for key in base[seeds[0]].tasks if key in shared]
    if not keys:
        return None
    values = [
        math.fsum(score(arm[s].tasks[key]) - score(base[s].tasks[key]) for s in seeds) / len(seeds) for key in keys
    ]
    return bootstrap_mean(values, [base[seeds[0]].tasks[key].cluster for key in keys])


def _summary(arm: Arm, records: Sequence[RunRecord]) -> dict[str, Any]:
    """Mean and standard deviation over the finished seeds of one arm; ``seconds`` is their mean."""
    outcomes = list(_outcomes(records, arm).values())
    return {
        "arm": arm.name,
        "finished": len(outcomes),
        "held_out_reward": _spread([o.reward for o in outcomes]),
        "held_out_success": _spread([o.success for o in outcomes]),
        "training_reward": _spread([o.training_reward for o in outcomes]),
        "steps": arm.settings.run.steps,
        "seconds": math.fsum(o.seconds for o in outcomes) / len(outcomes) if outcomes else None,
    }


def _spread(values: Sequence[float]) -> dict[str, float | None] | None:
    finite = [v for v in values if math.isfinite(v)]
    if not finite:
        return None
    return {"mean": math.fsum(finite) / len(finite), "standard_deviation": standard_deviation(finite)}


def _mean_text(spread: Mapping[str, float] | None) -> str:
    return "" if spread is None else f"{spread['mean']:.3f}"


def _difference_text(comparison: Comparison | None) -> str:
    if comparison is None:
        return ""
    found = comparison.by_seed
    interval = "" if found.low is None else f" ({found.low:+.3f} to {found.high:+.3f})"
    return f"{found.mean:+.3f}{interval}"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
