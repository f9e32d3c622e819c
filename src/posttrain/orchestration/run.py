"""Starting, resuming and evaluating a run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from posttrain.environment.mixture import Cursor, TaskSampler
from posttrain.errors import InputError
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
from posttrain.orchestration.closing import closing_lines
from posttrain.orchestration.evaluation import Summary
from posttrain.orchestration.held_out import evaluate_policy, final_report, stored_results, summaries
from posttrain.orchestration.identity import IdentityFacts, policy_identity
from posttrain.orchestration.interrupt import Interrupt
from posttrain.orchestration.journal import Journal
from posttrain.orchestration.lineage import LineageError
from posttrain.orchestration.loop import Loop
from posttrain.orchestration.measure import device_use
from posttrain.orchestration.outputs import LastingConsole, check_writable, save_model, save_tokenizer
from posttrain.orchestration.progress import Progress
from posttrain.orchestration.teacher_comparison import compare_teacher
from posttrain.orchestration.unedited import check_unedited
from posttrain.orchestration.watch import check_names
from posttrain.orchestration.workbench import (
    Preparation,
    Workbench,
    build,
    build_sampling,
    check_held_out,
    prepare,
)
from posttrain.policy.critic import CRITIC_FOLDER
from posttrain.rundir.checkpoints import LatestGood, latest_good, list_checkpoints
from posttrain.rundir.directory import RunDirectory
from posttrain.rundir.engine import EngineSampler
from posttrain.rundir.files import check_output, write_json
from posttrain.rundir.info import RunInfo
from posttrain.rundir.trackers import check_trackers
from posttrain.schedule.machine import Schedule
from posttrain.schedule.state import SchedulePlan, Snapshot
from posttrain.settings import Settings
from posttrain.settings.chosen import chosen_objective
from posttrain.settings.resolve import Resolved, describe
from posttrain.settings.rules import check_settings
from posttrain.settings.summary import composed


def train(settings: Settings, path: Path) -> int:
    """Train from the beginning into a new run directory. Returns the exit code.

    Raises InputError before anything is written if settings, tasks or model cannot be used.
    """
    console = LastingConsole(highlight=False)
    check_trackers(settings.rundir.trackers)
    check_names(settings.faultmap)
    preparation = prepare(settings)
    _say(console, preparation)
    check_held_out(preparation)
    check_writable(path)
    bench = build(preparation)
    _compare_teacher(bench, console)
    run = RunDirectory.create(path, _run_info(bench))
    save_tokenizer(bench.loaded, run)
    console.print(f"run directory: {path}")
    return _work(bench, run, console, None)


def _compare_teacher(bench: Workbench, console: Console) -> None:
    """Refuse a teacher that is worse than its student. Raises InputError; nothing is written yet."""
    try:
        print_lines(console, compare_teacher(bench))
    except BaseException:
        bench.close()
        raise


def resume(path: Path, overrides: Sequence[str] = ()) -> int:
    """Continue a run from its last complete checkpoint. Returns the exit code.

    Of the settings only those of ``[faultmap]`` may be given anew; InputError is raised for any other.
    """
    console = LastingConsole(highlight=False)
    run = RunDirectory.open(path)
    stored = Resolved.from_mapping(run.info().settings.get("resolved", {}))
    resolved = replace(stored, settings=watched_anew(stored.settings, overrides))
    check_settings(resolved.settings)
    if list_checkpoints(run.checkpoints_path) and not run.journal_path.is_file():
        problem = f"{run.journal_path.name} is missing, so nobody knows which groups its checkpoints have consumed"
        raise InputError("run", str(path), problem, "Restore the file, or start a new run.")
    if run.evaluation_summary_path.exists() and (run.model_path / "config.json").is_file():
        console.print(f"{path} is finished: {resolved.settings.run.steps} steps, model in {run.model_path}")
        if run.info().attempts[-1].outcome != "finished":  # killed, or ended by the very check, after its last file
            with Journal.open(run.journal_path, read_only=True) as journal:
                _check_lineage(journal, run)
        return OK
    check_unedited(run)
    preparation = prepare(resolved.settings, resolved)
    _say(console, preparation)
    return _work(build(preparation), run, console, latest_good(run.checkpoints_path))


def evaluate(settings: Settings, out: Path | None) -> int:
    """Evaluate a model on the held-out tasks of ``settings``; print a table and write JSON to ``out``."""
    console = LastingConsole(highlight=False)
    if out is not None:
        check_output("--out", out)
    preparation = prepare(settings, sampling_only=True)
    check_held_out(preparation)
    bench = build_sampling(preparation)
    try:
        results = summaries(bench, evaluate_policy(bench, 0, settings.evaluation.samples, 0, None))
    finally:
        bench.close()
    for name, summary in results.items():
        console.print(f"{name}: {_one_line(summary)}")
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_json(out, {name: summary.to_json() for name, summary in results.items()})
        console.print(f"written to {out}")
    return OK


def _one_line(summary: Summary) -> str:
    parts = [f"pass@{k} {e.value:.3f} ({e.low:.3f} to {e.high:.3f})" for k, e in summary.pass_at.items()]
    parts += [f"majority@{k} {e.value:.3f}" for k, e in summary.majority_at.items()]
    if summary.greedy is not None:
        parts.append(f"greedy {summary.greedy.value:.3f}")
    if summary.length is not None:
        parts.append(f"length {summary.length.value:.1f}")
    return f"{summary.tasks} tasks x {summary.samples // max(summary.tasks, 1)}: " + ", ".join(parts)


def _say(console: Console, preparation: Preparation) -> None:
    policy = preparation.settings.policy
    console.print(model_line(preparation.facts))
    objective = composed(policy, chosen_objective(policy))
    choices, memory = describe(preparation.resolved.choices), memory_lines(preparation.memory)
    print_lines(console, (objective, preparation.allocator, *choices, *memory))


def _run_info(bench: Workbench) -> RunInfo:
    preparation = bench.preparation
    settings, machine = preparation.settings, preparation.resolved.machine
    spec = chosen_objective(settings.policy)
    identity = policy_identity(
        IdentityFacts(
            compute_dtype=machine.compute_dtype,
            master_dtype=settings.model.master_dtype,
            exact_batching=False,
            shared_prompt_sampling=True,
            shared_prompt_training=bench.plan.share_prompts,
            lora=settings.model.lora is not None,
            temperature=settings.rollout.temperature,
            group_filter=spec.group_filter.rule if spec.group_filter.rule != "none" else "",
            overlong_filter=spec.overlong.filter != "off",
            soft_overlong=spec.overlong.soft_penalty,
            skip_zero_advantage=settings.policy.skip_zero_advantage,
            updates_per_batch=settings.policy.updates_per_batch,
            bounded_ratio=spec.trust_region.kind != "none" and spec.ratio.level != "none",
            mismatch_weight=spec.correction.weight if spec.correction.weight != "none" else "",
            corrects_mismatch=spec.ratio.level != "none" and spec.ratio.denominator == "sampler",
        )
    )
    more = {"packed_forward_gap": bench.forward_gap, "engine_weight_bytes": bench.engine.replica.nbytes}
    return run_info(preparation.resolved, preparation.facts, preparation.memory, identity, more)


def _work(bench: Workbench, run: RunDirectory, console: Console, found: LatestGood | None) -> int:
    """Everything from the attempt's first journal entry to its last: loop, final evaluation, model, summary."""
    settings = bench.settings
    with ExitStack() as stack:
        stack.callback(bench.close)
        stack.enter_context(run.lock())
        journal = stack.enter_context(Journal.open(run.journal_path))
        step, cursor, schedule = _restore(bench, run, journal, found, console)
        resumed_from = step if found is not None else None
        with recorded_attempt(run, resumed_from) as record, ExitStack() as opened:
            progress = Progress(settings.run.steps, title=settings.run.name, first_step=step, console=console)
            instruments = open_instruments(opened, run, settings, record.number, step, progress)
            sampler = TaskSampler(
                list(bench.environments.values()),
                settings.run.seed,
                {name: section.weight for name, section in settings.environments.items()},
            )
            loop = Loop(
                bench,
                run,
                journal,
                schedule,
                sampler,
                cursor or sampler.start(),
                instruments.metrics,
                instruments.trackers,
                progress,
                instruments.watch,
                record.number,
                step,
                saved=step if found is not None and found.path is not None else None,
            )
            bench.engine.load_weights(bench.trainer.export())
            opened.enter_context(
                EngineSampler(
                    run.engine_path,
                    record.number,
                    bench.engine.stats,
                    trained_tokens=lambda: loop.trained_tokens,
                    phase=lambda: loop.clock.phase,
                    device=device_use if bench.trainer.device.type == "cuda" else None,
                )
            )
            with progress, Interrupt(progress.stopping) as interrupt:
                finished = _run_loop(loop, interrupt)
            if not finished:
                return ended_early(record, run, loop.step, loop.stopped_by, console)
            _finish(loop, console)
            record.outcome = "finished"
            return OK


def _run_loop(loop: Loop, interrupt: Interrupt) -> bool:
    evaluation = loop.bench.settings.evaluation
    if 0 < loop.step < loop.bench.settings.run.steps:
        loop.stopped_by = loop.watch.look(loop.step, last=True)
    if evaluation.at_start and loop.step == 0:
        loop.evaluate(evaluation.samples)
    if not loop.train(interrupt):
        return False
    if evaluation.at_end:
        loop.evaluate(evaluation.samples)
    return True


def _restore(
    bench: Workbench, run: RunDirectory, journal: Journal, found: LatestGood | None, console: Console
) -> tuple[int, Cursor | None, Schedule]:
    """State to continue from: last step done, task cursor, schedule."""
    plan = SchedulePlan(bench.settings.rollout.prompts_per_step)
    journal.begin_attempt()
    if found is None:
        return 0, None, Schedule(plan)
    drop_damaged(found, run, console)
    if found.path is None or found.manifest is None:
        journal.rollback_to(0)
        console.print("no checkpoint yet: the run starts again from its first step, with the same seeds")
        return 0, None, Schedule(plan)
    rollback = journal.rollback_to(found.manifest.step)
    bench.trainer.load(found.path)
    if bench.critic is not None:
        bench.critic.load(found.path / CRITIC_FOLDER)
    if bench.reference is not None:
        bench.reference.load(found.path)
    snapshot = Snapshot.from_json(found.manifest.metadata["schedule"])
    schedule = Schedule.restore(plan, snapshot, journal.closed_groups())
    console.print(f"resuming after step {rollback.step}, policy version {bench.trainer.version}")
    return rollback.step, Cursor.from_json(rollback.cursor), schedule


def _finish(loop: Loop, console: Console) -> None:
    """Write the model and the summary, say what was learnt, and check the lineage of what was written.

    Raises LineageError at the very end: what was trained is kept, and the run does not pass for a good one.
    """
    bench, run = loop.bench, loop.run
    save_model(bench.loaded, bench.trainer.lora, run)
    before, after = (stored_results(bench, run, step, loop.progress.message) for step in (0, loop.step))
    document, gains = final_report(bench, before, after)
    run.write_evaluation_summary(document)
    print_lines(console, closing_lines(document, gains, run.path))
    _check_lineage(loop.journal, run)


def _check_lineage(journal: Journal, run: RunDirectory) -> None:
    if broken := journal.verify_lineage():
        raise LineageError(run.path, broken)
