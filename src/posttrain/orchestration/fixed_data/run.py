"""Starting and resuming a run on fixed data."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from posttrain.errors import InputError
from posttrain.model.reward_head import save_reward_model
from posttrain.orchestration.accounting import memory_lines
from posttrain.orchestration.attempt import (
    OK,
    drop_damaged,
    ended_early,
    model_line,
    open_instruments,
    print_lines,
    recorded_attempt,
    run_info,
    watched_anew,
)
from posttrain.orchestration.fixed_data.data_report import data_signals, data_warnings
from posttrain.orchestration.fixed_data.held_out import gain_lines, read_held_out, summary_of
from posttrain.orchestration.fixed_data.identity import fixed_identity
from posttrain.orchestration.fixed_data.loop import FixedLoop
from posttrain.orchestration.fixed_data.methods import RewardMethod
from posttrain.orchestration.fixed_data.progress import FixedProgress
from posttrain.orchestration.fixed_data.references import (
    References,
    compute_references,
    read_references,
    write_references,
)
from posttrain.orchestration.fixed_data.style import fit_style, pair_features
from posttrain.orchestration.fixed_data.workbench import (
    FixedBench,
    FixedPreparation,
    build_fixed,
    fingerprint,
    prepare_fixed,
)
from posttrain.orchestration.interrupt import Interrupt
from posttrain.orchestration.outputs import LastingConsole, check_writable, replace_folder, save_model, save_tokenizer
from posttrain.orchestration.unedited import check_unedited
from posttrain.orchestration.watch import check_names
from posttrain.rundir.checkpoints import LatestGood, latest_good
from posttrain.rundir.directory import RunDirectory
from posttrain.rundir.info import RunInfo
from posttrain.rundir.trackers import check_trackers
from posttrain.settings import FixedSettings
from posttrain.settings.fixed import check_fixed_settings
from posttrain.settings.resolve import describe
from posttrain.settings.resolve_fixed import FixedResolved

FINGERPRINT = "data_fingerprint"


def train_fixed(settings: FixedSettings, path: Path) -> int:
    """Train from the beginning into a new run directory. Returns the exit code.

    Raises InputError before anything is written if settings, rows or model cannot be used.
    """
    console = LastingConsole(highlight=False)
    check_trackers(settings.rundir.trackers)
    check_names(settings.faultmap)
    check_writable(path)
    preparation = prepare_fixed(settings)
    _check_held_out(preparation)
    _say(console, preparation)
    bench = build_fixed(preparation)
    run = RunDirectory.create(path, _run_info(bench))
    save_tokenizer(bench.loaded, run)
    console.print(f"run directory: {path}")
    return _work(bench, run, console, None)


def resume_fixed(path: Path, overrides: Sequence[str] = ()) -> int:
    """Continue a run from its last complete checkpoint. Returns the exit code.

    Of the settings only those of ``[faultmap]`` may be given anew; InputError is raised for any other, and for rows
    that are not those the run began with.
    """
    console = LastingConsole(highlight=False)
    run = RunDirectory.open(path)
    info = run.info()
    stored = FixedResolved.from_mapping(info.settings.get("resolved", {}))
    resolved = replace(stored, settings=watched_anew(stored.settings, overrides))
    check_fixed_settings(resolved.settings)
    if run.evaluation_summary_path.exists() and (run.model_path / "config.json").is_file():
        console.print(f"{path} is finished: {resolved.settings.run.steps} steps, model in {run.model_path}")
        return OK
    check_unedited(run)
    preparation = prepare_fixed(resolved.settings, resolved)
    if fingerprint(preparation.data) != info.facts.get(FINGERPRINT):
        raise InputError(
            "data.path",
            resolved.settings.data.path,
            "the rows are not those the run began with",
            "Put the file back as it was, or start a new run.",
        )
    _say(console, preparation)
    return _work(build_fixed(preparation), run, console, latest_good(run.checkpoints_path))


def _check_held_out(preparation: FixedPreparation) -> None:
    wanted = preparation.settings.evaluation
    if (wanted.at_start or wanted.at_end or wanted.every) and not preparation.data.held_out:
        raise InputError(
            "data.evaluation_fraction",
            preparation.settings.data.evaluation_fraction,
            "no row is held out, so nothing can be evaluated",
            "Hold rows out, or set evaluation.at_start, at_end to false and every to 0.",
        )


def _say(console: Console, preparation: FixedPreparation) -> None:
    data, settings = preparation.data, preparation.settings
    console.print(model_line(preparation.facts))
    epochs = settings.run.steps * settings.data.rows_per_step / len(data.train)
    lines = (
        f"{len(data.train)} rows to train on, {len(data.held_out)} held out; the run is {epochs:.2g} passes over them",
        *data_warnings(data),
        preparation.allocator,
        *describe(preparation.resolved.choices),
        *memory_lines(preparation.memory),
    )
    print_lines(console, lines)


def _run_info(bench: FixedBench) -> RunInfo:
    preparation = bench.preparation
    identity = fixed_identity(preparation.settings, preparation.resolved.machine.compute_dtype, bench.method)
    more = {"packed_forward_gap": bench.forward_gap, FINGERPRINT: fingerprint(preparation.data)}
    return run_info(preparation.resolved, preparation.facts, preparation.memory, identity, more)


def _work(bench: FixedBench, run: RunDirectory, console: Console, found: LatestGood | None) -> int:
    """Everything of one attempt: references, loop, model, summary."""
    settings, data = bench.settings, bench.data
    with ExitStack() as stack:
        stack.enter_context(run.lock())
        held_out = data.held_out[: settings.evaluation.max_rows]
        references = _references(bench, run, console)
        step = _restore(bench, run, found, console)
        resumed_from = step if found is not None else None
        with recorded_attempt(run, resumed_from) as record, ExitStack() as opened:
            progress = FixedProgress(settings.run.steps, settings.run.name, step, console)
            instruments = open_instruments(opened, run, settings, record.number, step, progress)
            loop = FixedLoop(
                bench,
                run,
                instruments.metrics,
                instruments.trackers,
                progress,
                instruments.watch,
                held_out,
                references,
                fit_style(*pair_features(data.train)) if bench.method.answers == 2 else None,
                step=step,
                saved=step if found is not None and found.path is not None else None,
            )
            if step == 0:
                loop.metrics.write(0, bench.trainer.version, "data", data_signals(data))
            with progress, Interrupt(progress.stopping) as interrupt:
                finished = _run_loop(loop, interrupt)
            if not finished:
                return ended_early(record, run, loop.step, loop.stopped_by, console)
            _finish(loop, console)
            record.outcome = "finished"
            return OK


def _run_loop(loop: FixedLoop, interrupt: Interrupt) -> bool:
    evaluation = loop.bench.settings.evaluation
    if 0 < loop.step < loop.bench.settings.run.steps:
        loop.stopped_by = loop.watch.look(loop.step, last=True)
    if evaluation.at_start and loop.step == 0:
        loop.evaluate()
    if not loop.train(interrupt):
        return False
    if evaluation.at_end:
        loop.evaluate()
    return True


def _references(bench: FixedBench, run: RunDirectory, console: Console) -> References | None:
    """Read what an earlier attempt computed, or compute it; the trainer is still at the initial weights."""
    if not bench.method.reference:
        return None
    if (stored := read_references(run.path)) is not None:
        return stored
    console.print("computing the reference's log-probs")
    computed = compute_references(bench, bench.data.held_out[: bench.settings.evaluation.max_rows])
    write_references(run.path, computed)
    return computed


def _restore(bench: FixedBench, run: RunDirectory, found: LatestGood | None, console: Console) -> int:
    """Load the last whole checkpoint; the step it is of."""
    if found is None:
        return 0
    drop_damaged(found, run, console)
    if found.path is None or found.manifest is None:
        console.print("no checkpoint yet: the run starts again from its first step, with the same rows")
        return 0
    bench.trainer.load(found.path)
    console.print(f"resuming after step {found.manifest.step}, policy version {bench.trainer.version}")
    return found.manifest.step


def _finish(loop: FixedLoop, console: Console) -> None:
    """Write the model and the summary, and say what was learnt."""
    bench, run = loop.bench, loop.run
    if isinstance(bench.method, RewardMethod):
        replace_folder(
            run.model_path, lambda folder: save_reward_model(bench.loaded.model, bench.loaded.tokenizer, folder)
        )
    else:
        save_model(bench.loaded, bench.trainer.lora, run)
    document = summary_of(read_held_out(run, 0), read_held_out(run, loop.step))
    run.write_evaluation_summary(document)
    print_lines(console, (*gain_lines(document), f"model: {run.model_path}"))
