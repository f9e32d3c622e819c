"""The loop of a run on fixed data: what happens in a step, and in which order."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from posttrain.errors import NonFiniteError
from posttrain.faultmap.finding import Finding
from posttrain.orchestration.fixed_data.batch import Array, FixedBatch, placed
from posttrain.orchestration.fixed_data.dataset import Example, rows_of_step
from posttrain.orchestration.fixed_data.held_out import HeldOut, write_held_out
from posttrain.orchestration.fixed_data.methods import AnswerMethod, style_signals
from posttrain.orchestration.fixed_data.progress import FixedProgress
from posttrain.orchestration.fixed_data.references import References
from posttrain.orchestration.fixed_data.style import StylePredictor, pair_features
from posttrain.orchestration.fixed_data.workbench import FixedBench
from posttrain.orchestration.interrupt import Interrupt
from posttrain.orchestration.measure import PhaseClock, memory_signals
from posttrain.orchestration.watch import Watch
from posttrain.policy.fixed_update import FixedUpdate, fixed_update
from posttrain.policy.preference import kto_kl
from posttrain.rundir.checkpoints import prune, write_checkpoint
from posttrain.rundir.directory import RunDirectory
from posttrain.rundir.metrics import MetricsWriter
from posttrain.rundir.trackers import Trackers


@dataclass(slots=True)
class FixedLoop:
    """The state of a run between steps, and the parts it works with. ``step`` is the last step done.

    ``held_out`` are the held-out rows that are evaluated; ``style`` is fitted on the training pairs, where there are
    any. ``saved`` is the step of the newest checkpoint known to be whole; ``stopped_by`` forbids a next step.
    """

    bench: FixedBench
    run: RunDirectory
    metrics: MetricsWriter
    trackers: Trackers
    progress: FixedProgress
    watch: Watch
    held_out: Sequence[Example]
    references: References | None
    style: StylePredictor | None
    step: int = 0
    saved: int | None = None
    stopped_by: Finding | None = None
    clock: PhaseClock = field(default_factory=PhaseClock)

    def train(self, interrupt: Interrupt) -> bool:
        """Run the remaining steps. Returns False if something stopped it before; the state is saved either way."""
        settings = self.bench.settings
        while self.step < settings.run.steps and not interrupt.requested and self.stopped_by is None:
            self.train_step()
            last = self.step == settings.run.steps
            if settings.evaluation.every and self.step % settings.evaluation.every == 0 and not last:
                self.evaluate()
            if settings.checkpoint.every and self.step % settings.checkpoint.every == 0 and not last:
                self.save()
        self.save()
        return self.step >= settings.run.steps

    def train_step(self) -> None:
        """One batch: take its rows, update, measure, write."""
        self.clock = PhaseClock()
        started = time.perf_counter()
        bench, step = self.bench, self.step + 1
        settings, rows = bench.settings, bench.data.train
        chosen = np.array(rows_of_step(step, settings.data.rows_per_step, len(rows), settings.run.seed))
        examples = [rows[i] for i in chosen]
        reference = self.references
        batch = FixedBatch.of(examples, bench.method.answers, None if reference is None else reference.train[chosen])
        with self._phase("scoring"):
            mismatched = None if reference is None else reference.train_mismatched[chosen]
            kl = self._kl(examples, mismatched)
        with self._phase("training"):
            plan = bench.plan(batch.units)
            try:
                loss = bench.method.begin(batch, kl)
                result = fixed_update(bench.trainer, plan, len(batch), loss, bench.method.scorer)
            except NonFiniteError as error:
                raise placed(error, batch) from error
        self.step = step
        values = self._update_signals(result, len(batch)) | self._measured(batch, result.values, kl)
        values |= {"data/epoch": step * settings.data.rows_per_step / len(rows)}
        values |= self.clock.signals() | memory_signals()
        values |= {
            "time/step": time.perf_counter() - started,
            "run/tracker_failures": float(len(self.trackers.failures)),
        }
        self._record("train", values)
        self.progress.step(step, values)
        self.stopped_by = self.watch.look(step, last=step == settings.run.steps)

    def _kl(self, examples: Sequence[Example], reference: Array | None) -> float:
        """KTO's reference point over these rows; 0 for every other method."""
        method = self.bench.method
        if not isinstance(method, AnswerMethod) or reference is None:
            return 0.0
        values = self.bench.score_mismatched(examples)
        having = ~np.isnan(values)
        tokens = [example.mismatched.targets for example in examples if example.mismatched is not None]
        return kto_kl(
            torch.from_numpy(values[having]), torch.from_numpy(reference[having]), torch.tensor(tokens), method.spec
        )

    def _update_signals(self, result: FixedUpdate, sequences: int) -> dict[str, float]:
        norm, seconds = result.step.grad_norm, self.clock.seconds["training"]
        found = {
            "policy/loss": result.loss,
            "policy/grad_norm": norm,
            "policy/grad_clipped": float(norm > self.bench.settings.policy.gradient_clip),
            "policy/learning_rate": result.step.learning_rate,
            "policy/updates": float(norm > 0),
            "policy/trained_tokens": float(result.trained_tokens),
            "policy/trained_sequences": float(sequences),
            "train/tokens_per_second": result.packed_tokens / max(seconds, 1e-9),
            "train/computed_tokens": float(result.packed_tokens),
            "train/micro_batches": float(result.micro_batches),
        }
        return found if np.isnan(result.entropy) else found | {"policy/entropy": result.entropy}

    def _measured(self, batch: FixedBatch, values: Array, kl: float) -> dict[str, float]:
        measured = {**self.bench.method.measure(batch, values), **style_signals(batch)}
        if isinstance(self.bench.method, AnswerMethod):
            measured["kl"] = kl
        names = {"token_nll": "policy/sampled_entropy"}
        return {names.get(name, f"preference/{name}"): value for name, value in measured.items()}

    def evaluate(self) -> None:
        """Loss and accuracy on the held-out rows under the current policy, recorded at the current step."""
        bench, reference = self.bench, self.references
        if not self.held_out:
            return
        self.clock = PhaseClock()
        with self._phase("evaluation"):
            method = bench.method
            batch = FixedBatch.of(self.held_out, method.answers, None if reference is None else reference.held_out)
            untrained = reference is not None and bench.trainer.version == 0
            scores = batch.reference if untrained else bench.score(batch)
            kl = self._kl(self.held_out, None if reference is None else reference.held_out_mismatched)
            loss = method.begin(batch, kl)(np.arange(len(batch)), torch.from_numpy(scores))
            measured = {**method.measure(batch, scores), "loss": float(loss), "rows": float(len(self.held_out))}
            if self.style is not None:
                measured["style_accuracy"] = self.style.accuracy(*pair_features(self.held_out))
        name, outcomes = method.outcomes(batch, scores)
        result = HeldOut(self.step, name, outcomes, measured)
        write_held_out(self.run, result)
        self.progress.message(f"held-out after step {self.step}: {result.line()}")
        self._record("evaluation", {f"held_out/{key}": value for key, value in measured.items()} | self.clock.signals())

    def save(self) -> None:
        """Write a checkpoint of the current step, unless it is saved already. A damaged one is replaced."""
        if self.saved == self.step:
            return
        with self._phase("checkpoint"):
            metadata = {"policy_version": self.bench.trainer.version, "seed": self.bench.settings.run.seed}
            write_checkpoint(self.run.checkpoints_path, self.step, self._fill_checkpoint, metadata)
            self.saved = self.step
            prune(self.run.checkpoints_path, self.bench.settings.checkpoint.keep)

    def _fill_checkpoint(self, directory: Path) -> None:
        self.bench.trainer.save(directory)

    def _record(self, phase: str, values: dict[str, float]) -> None:
        self.metrics.write(self.step, self.bench.trainer.version, phase, values)
        self.watch.add(self.step, values)
        self.trackers.log(self.step, values)

    def _phase(self, name: str) -> AbstractContextManager[None]:
        return self.clock.measure(name)
