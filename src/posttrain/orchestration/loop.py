"""The training loop, on one screen: what happens in a step, and in which order."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import posttrain.orchestration.anchoring as anchoring
import posttrain.orchestration.measure as measure
from posttrain.environment.mixture import Cursor, TaskSampler
from posttrain.errors import NonFiniteError
from posttrain.faultmap.finding import Finding
from posttrain.orchestration.batch import Batch, build_batch, why_untrainable, write_columns
from posttrain.orchestration.critic import shared_head
from posttrain.orchestration.held_out import evaluate_policy, summaries
from posttrain.orchestration.interrupt import Interrupt
from posttrain.orchestration.journal import Draw, Journal
from posttrain.orchestration.progress import Progress, StepSummary
from posttrain.orchestration.sampling import baseline_member, grade, members_of, sample
from posttrain.orchestration.watch import Watch
from posttrain.orchestration.workbench import Workbench
from posttrain.policy.critic import CRITIC_FOLDER, CriticUpdate
from posttrain.policy.update import plan_blocks, update_policy
from posttrain.rundir.checkpoints import prune, write_checkpoint
from posttrain.rundir.directory import RunDirectory
from posttrain.rundir.metrics import MetricsWriter
from posttrain.rundir.trackers import Trackers
from posttrain.schedule.machine import Schedule
from posttrain.trajectory import GradeStatus, Group, Role, SamplingParams, group_id_of


@dataclass(slots=True)
class Loop:
    """The state of a run between steps, and the parts it works with. ``step`` is the last step done.

    ``saved`` is the step of the newest checkpoint known to be whole, if there is one. ``stopped_by`` is the finding
    that forbids a next step.
    """

    bench: Workbench
    run: RunDirectory
    journal: Journal
    schedule: Schedule
    sampler: TaskSampler
    cursor: Cursor
    metrics: MetricsWriter
    trackers: Trackers
    progress: Progress
    watch: Watch
    attempt: int
    step: int = 0
    trained_tokens: int = 0
    saved: int | None = None
    stopped_by: Finding | None = None
    clock: measure.PhaseClock = field(default_factory=measure.PhaseClock)

    def train(self, interrupt: Interrupt) -> bool:
        """Run the remaining steps. Returns False if something stopped it before; the state is saved either way."""
        settings = self.bench.settings
        while self.step < settings.run.steps and not interrupt.requested and self.stopped_by is None:
            self.train_step()
            last = self.step == settings.run.steps
            if settings.evaluation.every and self.step % settings.evaluation.every == 0 and not last:
                self.evaluate(settings.evaluation.samples_during)
            if settings.checkpoint.every and self.step % settings.checkpoint.every == 0 and not last:
                self.save()
        self.save()
        return self.step >= settings.run.steps

    def train_step(self) -> None:
        """One batch: draw, sample, grade, select, train, sync, write."""
        self.clock = measure.PhaseClock()
        started = time.perf_counter()
        bench, step, before = self.bench, self.step + 1, self.bench.engine.stats()
        broken = measure.grader_events(bench.environments)
        evicted = self._evict()
        sampled, refills = self._collect()
        engine = bench.engine.stats()
        selected = self._select(sampled, step)
        values = self._sampling_values(sampled, refills) | {"schedule/evicted": float(evicted)}
        values |= {n: v - broken[n] for n, v in measure.grader_events(bench.environments).items()}
        values |= measure.engine_signals(before, engine, self.clock.seconds["rollout"])
        try:
            values |= self._update(selected) if selected else {}
        except NonFiniteError:
            self._write_trajectories(step, sampled)
            raise
        with self._phase("sync"):
            version = bench.engine.load_weights(bench.trainer.export()) if selected else bench.trainer.version
        self.schedule.trained(version)
        self.journal.step_done(step, version)
        self.step = step
        with self._phase("writing"):
            every = bench.settings.rundir.trajectories_every
            if every and step % every == 0:
                self._write_trajectories(step, sampled)
        values |= self.schedule.counts.signals() | self.clock.signals()
        values |= {"time/step": time.perf_counter() - started} | measure.memory_signals()
        values |= {"run/tracker_failures": float(len(self.trackers.failures))}
        self._record("train", values)
        self._show(values)
        self.stopped_by = self.watch.look(step, last=step == bench.settings.run.steps)

    def _evict(self) -> int:
        """Discard groups that have grown too old for the batch that starts now; how many."""
        stale = self.schedule.evict(self.bench.trainer.version)
        for entry in stale:
            self.journal.discarded(entry.group_id, entry.reason, self.step + 1)
        return len(stale)

    def _collect(self) -> tuple[list[Group], int]:
        """Sample and grade one batch of groups, replacing filtered ones up to the cap. All groups, and the refills."""
        settings, bench = self.bench.settings, self.bench
        sampling = SamplingParams(
            bench.preparation.resolved.sizes.max_new_tokens,
            settings.rollout.temperature,
            stop_token_ids=bench.turns.stop_token_ids,
        )
        sampled: list[Group] = []
        refills = -1
        while (wanted := self.schedule.admit(bench.trainer.version)) and refills < bench.spec.group_filter.max_refills:
            refills += 1
            draws, self.cursor = self.sampler.draw(wanted, self.cursor)
            ordinal = self.journal.next_ordinal()
            named = [(group_id_of(d.task.task_id, d.epoch, d.draw), d.task) for d in draws]
            self.journal.drawn(Draw(g, task.task_id, ordinal + i) for i, (g, task) in enumerate(named))
            members = [
                member
                for group_id, task in named
                for member in members_of(
                    task, group_id, settings.rollout.group_size, Role.TRAIN, sampling, settings.run.seed
                )
            ]
            if bench.spec.advantage.baseline == "greedy":
                members += [baseline_member(task, g, settings.rollout.group_size, sampling) for g, task in named]
            self.journal.submitted([g for g, _ in named], bench.trainer.version)
            for group_id, _ in named:
                self.schedule.submitted(group_id, bench.trainer.version)
            with self._phase("rollout"):
                groups = sample(bench.engine, bench.turns, members, self.attempt)
            with self._phase("grading"):
                grade(bench.environments, bench.turns, [t for group in groups for t in group.attempts])
            for group in groups:
                self._judge(group)
            sampled += groups
        return sampled, refills

    def _judge(self, group: Group) -> None:
        """Book a graded group as ready, or discard it with the reason."""
        versions = [v for t in group for v in t.policy_versions[t.model_mask].tolist()] or [self.bench.trainer.version]
        self.schedule.finished(group.group_id, min(versions))
        self.journal.finished(group.group_id, min(versions), max(versions))
        statuses = [t.grade.status for t in group if t.grade is not None]
        self.journal.graded(
            group.group_id,
            gradable=statuses.count(GradeStatus.GRADED),
            ungradable=statuses.count(GradeStatus.UNGRADABLE),
            failed=statuses.count(GradeStatus.FAILED),
        )
        group.discard_reason = why_untrainable(group, self.bench.spec, self.bench.environments)
        if group.discard_reason:
            self.schedule.discard(group.group_id, group.discard_reason)
            self.journal.discarded(group.group_id, group.discard_reason, self.step + 1)
        else:
            self.schedule.graded(group.group_id)

    def _select(self, sampled: list[Group], step: int) -> list[Group]:
        ready = self.schedule.counts.ready
        if not ready:
            self.progress.finding(f"step {step}: no group can be trained, the policy stays as it is")
            return []
        chosen = self.schedule.select(ready, self.bench.trainer.version)
        self.journal.consumed(chosen, step)
        by_id = {group.group_id: group for group in sampled}
        return [by_id[group_id] for group_id in chosen]

    def _update(self, groups: list[Group]) -> dict[str, float]:
        bench = self.bench
        with self._phase("scoring"):
            batch = build_batch(bench, groups)
        with self._phase("training"):
            frozen = bench.critic is not None and self.step < bench.spec.critic.warmup_steps
            values = anchoring.pull(bench, batch, self.step + 1)
            result = update_policy(
                bench.trainer,
                batch.table,
                batch.sequences,
                bench.spec,
                bench.plan,
                terms=batch.terms,
                values=shared_head(bench.critic, batch.critic, frozen=frozen),
                frozen=frozen,
            )
        critic = self._update_critic(batch)
        write_columns(batch)
        self.trained_tokens += result.packed_tokens
        staleness = self.schedule.training_staleness
        values |= measure.update_signals(
            batch, result, self.clock.seconds["training"], bench.settings.policy.gradient_clip, critic
        )
        values |= anchoring.follow(bench, self.step + 1, values.get("policy/anchor_kl"))
        return values | {
            "schedule/staleness_mean": sum(staleness) / len(staleness),
            "schedule/staleness_max": float(max(staleness)),
        }

    def _update_critic(self, batch: Batch) -> CriticUpdate | None:
        """A critic of its own trains after the policy; a shared one has trained with it."""
        bench, critic = self.bench, self.bench.critic
        if critic is None or batch.critic is None:
            return None
        if critic.shared:
            return critic.result()
        with self._phase("critic"):
            plan = plan_blocks(bench.trainer, batch.sequences, bench.plan)
            return critic.train(plan, batch.table, batch.critic.columns)

    def _sampling_values(self, sampled: list[Group], refills: int) -> dict[str, float]:
        environments = self.bench.environments
        values = measure.sampling_signals([t for group in sampled for t in group], environments)
        values |= measure.group_signals(sampled, environments)
        dropped = sum(bool(g.discard_reason) for g in sampled)
        return values | {
            "policy/refills": float(refills),
            "policy/filtered_groups": float(dropped),
            "schedule/discarded": float(dropped),
        }

    def evaluate(self, samples: int) -> None:
        """Evaluate the current policy on the held-out tasks and record it at the current step."""
        self.clock = measure.PhaseClock()
        with self._phase("evaluation"):
            results = evaluate_policy(self.bench, self.step, samples, self.attempt, self.run)
        values = self.clock.signals()
        found = summaries(self.bench, results)
        for name, summary in found.items():
            values |= summary.signals()
            if (one := summary.pass_at.get(1)) is not None:
                self.progress.evaluation(name, self.step, one.value, one.low, one.high)
        if anchoring.judge(self.bench, found.values()):
            self.progress.message(f"step {self.step}: held-out reward stagnates, the reference is the policy now")
        self._record("evaluation", values)

    def save(self) -> None:
        """Write a checkpoint of the current step, unless it is saved already. A damaged one is replaced."""
        if self.saved == self.step:
            return
        version = self.bench.trainer.version
        with self._phase("checkpoint"):
            self.journal.checkpoint(self.step, version, self.cursor.to_json())
            seed = self.bench.settings.run.seed
            metadata = {"policy_version": version, "seed": seed, "schedule": self.schedule.snapshot().to_json()}
            write_checkpoint(self.run.checkpoints_path, self.step, self._fill_checkpoint, metadata)
            self.saved = self.step
            prune(self.run.checkpoints_path, self.bench.settings.checkpoint.keep)

    def _fill_checkpoint(self, directory: Path) -> None:
        self.bench.trainer.save(directory)
        if self.bench.critic is not None:
            folder = directory / CRITIC_FOLDER
            folder.mkdir()
            self.bench.critic.save(folder)
        if self.bench.reference is not None:
            self.bench.reference.save(directory)

    def _write_trajectories(self, step: int, groups: list[Group]) -> None:
        trajectories = [t for group in groups for t in group.attempts]
        texts = [self.bench.turns.text(t.model_token_ids) for t in trajectories]
        reasons = {g.group_id: g.discard_reason for g in groups if g.discard_reason}
        self.watch.trajectory_files[step] = self.run.write_step(step, trajectories, texts, reasons)

    def _record(self, phase: str, values: dict[str, float]) -> None:
        self.metrics.write(self.step, self.bench.trainer.version, phase, values)
        self.watch.add(self.step, values)
        self.trackers.log(self.step, values)

    def _show(self, values: dict[str, float]) -> None:
        self.progress.step(
            StepSummary(
                step=self.step,
                reward=values.get("reward/mean"),
                length=values["rollout/length_mean"],
                truncated_share=values["rollout/truncated_share"],
                rollout_rate=values["rollout/tokens_per_second"],
                training_rate=values.get("train/tokens_per_second", 0.0),
                seconds=values["time/step"],
                without_reward=values["reward/ungradable_share"],
            )
        )

    def _phase(self, name: str) -> AbstractContextManager[None]:
        self.progress.phase(name)
        return self.clock.measure(name)
