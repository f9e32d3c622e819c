"""A run in the terminal: curves in one line each, evaluation, and some of its trajectories."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from posttrain.errors import InputError
from posttrain.faultmap.printable import printable
from posttrain.faultmap.report_data import problems_of, success_thresholds
from posttrain.faultmap.report_evaluation import ends_of, rows_of
from posttrain.faultmap.report_facts import title_of
from posttrain.faultmap.report_findings import diagnosis_of, finding_lines
from posttrain.faultmap.report_samples import Kind, is_success, outcome, rank
from posttrain.faultmap.report_summary import summary_of
from posttrain.faultmap.scales import finite, format_number, sparkline
from posttrain.rundir.metrics import MetricsTable
from posttrain.rundir.reading import LoadedRun, load_run
from posttrain.rundir.trajectories import StoredTrajectory
from posttrain.signals.registry import UnknownSignalError, signal_for
from posttrain.trajectory import Trajectory

SIGNALS = (
    "reward/mean",
    "reward/success",
    "held_out/loss",
    "held_out/accuracy",
    "preference/accuracy",
    "preference/margin",
    "preference/chosen_logprob_change",
    "preference/length_margin_correlation",
    "reward/ungradable_share",
    "reward/zero_variance_groups",
    "rollout/length_mean",
    "rollout/truncated_share",
    "policy/entropy",
    "policy/grad_norm",
    "policy/clip_fraction_high",
    "policy/ratio_ess",
    "logprobs/mismatch_mean",
    "logprobs/mismatch_max",
    "rollout/tokens_per_second",
    "train/tokens_per_second",
    "time/step",
)
"""Shown where the run has them, in the order in which to look."""
BAR_WIDTH = 20
TEXT_LIMIT = 1200


def print_view(
    run: Path, *, step: int | None = None, show: Kind = "best", limit: int = 3, console: Console | None = None
) -> None:
    """Print a run: its last metrics and their course, evaluation, and ``limit`` trajectories of one step.

    ``step`` defaults to the newest one with trajectories; ``show`` says which. Raises InputError if ``run`` is
    no run directory or has no trajectories of ``step``, and for a ``limit`` below 1.
    """
    if limit < 1:
        raise InputError("--limit", limit, "shows nothing", "Give 1 or more.")
    screen = console or Console(highlight=False)
    loaded = load_run(run)
    steps = list(loaded.trajectory_files)
    if step is not None and step not in loaded.trajectory_files:
        known = f"Steps {steps[0]} to {steps[-1]} have some." if steps else "This run has none yet."
        raise InputError("--step", step, "has no trajectories", known)
    screen.print(Text(printable(title_of(loaded)), style="bold"))
    screen.print(_metrics(loaded.metrics) if loaded.metrics.rows else Text("No metrics yet.", style="dim"))
    diagnosis = diagnosis_of(loaded)
    if diagnosis is not None and (lines := finding_lines(diagnosis)):
        screen.print(Padding(Group(*lines, Text(f"why: posttrain doctor {run}", style="dim")), (1, 0, 0, 0)))
    _print_evaluation(screen, loaded)
    if steps:
        chosen = step if step is not None else steps[-1]
        _print_trajectories(screen, loaded, chosen, show, limit)
    problems = problems_of(loaded)
    if problems:
        screen.print(Text("\nCould not be read:", style="bold yellow"))
        for problem in problems:
            screen.print(Text(f"  {printable(problem)}", style="yellow"))


def _metrics(table: MetricsTable) -> Table:
    grid = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("signal", "first", "last"):
        grid.add_column(name, justify="left" if name == "signal" else "right", no_wrap=True)
    last = table.rows[-1].step
    grid.add_column(f"steps {table.rows[0].step} to {last}", no_wrap=True)
    for name in SIGNALS:
        values: list[float] = table.series(name)[1].tolist()
        if values:
            unit = _unit(name)
            lost = len(values) - len(finite(values))
            course = Text(sparkline(values, BAR_WIDTH), style="green")
            course.append(f" {lost} not finite" if lost else "", style="bold red")
            grid.add_row(name, format_number(values[0], unit), format_number(values[-1], unit), course)
    return grid


def _print_evaluation(screen: Console, run: LoadedRun) -> None:
    for ends in ends_of(run.metrics):
        grid = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        grid.add_column(f"held out, {printable(ends.environment)}")
        grid.add_column(f"step {ends.first_step}", justify="right")
        if ends.has_change:
            grid.add_column(f"step {ends.last_step}", justify="right")
        for name, first, last in rows_of(ends):
            grid.add_row(name, *((first, last) if ends.has_change else (last,)))
        sentences = summary_of(run.evaluation_summary, ends.environment).sentences
        screen.print(Padding(Group(grid, *(Text(printable(s)) for s in sentences)), (1, 0, 0, 0)))


def _print_trajectories(screen: Console, run: LoadedRun, step: int, show: Kind, limit: int) -> None:
    stored, thresholds = run.trajectories(step), success_thresholds(run.info)
    chosen = rank(stored, show)
    shown = chosen[: max(0, limit)]
    title = f"\nStep {step}: {len(shown)} of {len(chosen)} {show} of {len(stored)} trajectories"
    if show in ("best", "worst"):
        title = f"\nStep {step}: the {len(shown)} {show} of {len(stored)} trajectories"
    screen.print(Text(title, style="bold"))
    for one in shown:
        _print_one(screen, one, is_success(one.trajectory, thresholds))


def _print_one(screen: Console, stored: StoredTrajectory, success: bool) -> None:
    t = stored.trajectory
    head = Text.assemble(
        (f"{outcome(t)} ", "bold green" if success else "bold yellow"),
        (f"{printable(t.trajectory_id)}  {t.num_model_tokens} tokens, {t.finish_reason or 'unfinished'}", "dim"),
    )
    screen.print(head)
    for message in t.task.messages:
        screen.print(Padding(Text.assemble((f"{message.role}: ", "dim"), _cut(message.content)), (0, 0, 0, 2)))
    completion = _cut(stored.completion) if stored.completion is not None else _ids(t)
    screen.print(Padding(Text.assemble(("model: ", "dim"), (completion or "(no text)", "cyan")), (0, 0, 0, 2)))
    reason = (t.grade.reason if t.grade else "") or t.failure
    if reason:
        screen.print(Padding(Text(_cut(reason), style="dim"), (0, 0, 0, 2)))
    if stored.group_discard_reason:
        discarded = f"its group was not trained: {_cut(stored.group_discard_reason)}"
        screen.print(Padding(Text(discarded, style="dim"), (0, 0, 0, 2)))


def _ids(trajectory: Trajectory) -> str:
    return _cut("token ids " + " ".join(map(str, trajectory.model_token_ids.tolist())))


def _cut(text: str) -> str:
    shown = printable(text)
    return shown if len(shown) <= TEXT_LIMIT else f"{shown[:TEXT_LIMIT]} … ({len(shown) - TEXT_LIMIT} characters more)"


def _unit(name: str) -> str:
    try:
        return signal_for(name).unit
    except UnknownSignalError:
        return ""
