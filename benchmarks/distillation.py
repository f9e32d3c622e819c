"""On-policy against off-policy distillation from one teacher, at equal trained tokens.

Three ways, each from the untrained model and with the same batch and learning rate: SFT on the teacher's own answers,
the student's answers judged token by token (on_policy_distillation), and over the whole vocabulary (gkd). Each stops at
the first step that reaches the token budget. Held-out success is then measured on the student's own answers, and where
the first tokens are the teacher's (does it know how to go on?) or the student's, finished by the teacher (can its own
beginnings be saved?).

The teacher is a run of the demo: ``posttrain train configs/demo.toml --run runs/demo``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.options import Size, options_of
from harness.prefixes import Attempted, continued, success_by_prefix
from harness.record import Record, Table, spread, versions_here, whole
from harness.sides import ROOT
from posttrain.environment.mixture import TaskSampler
from posttrain.model.packing import TrainSequence
from posttrain.model.weights import WeightSet
from posttrain.orchestration.batch import build_batch
from posttrain.orchestration.sampling import grade, members_of, sample
from posttrain.orchestration.workbench import Workbench, build, build_engine, prepare
from posttrain.policy.rows import RowTable, train_sequences
from posttrain.policy.teacher import TeacherBatch
from posttrain.policy.update import plan_blocks, update_policy
from posttrain.rollout.native.engine import NativeEngine
from posttrain.settings import load_settings
from posttrain.settings.algorithms import algorithm_row
from posttrain.settings.objective import Aggregation, ObjectiveSpec
from posttrain.trajectory import Group, Origin, Role, SamplingParams, Segment, Trajectory, group_id_of

SFT = "SFT on the teacher's answers"
WAYS: dict[str, dict[str, str]] = {
    SFT: {"algorithm": "on_policy_distillation"},
    "on_policy_distillation": {"algorithm": "on_policy_distillation"},
    "gkd": {"algorithm": "gkd"},
}
IMITATION: ObjectiveSpec = algorithm_row("reinforce").spec.override(aggregation=Aggregation(kind="token_mean"))
"""With advantage 1 the score-function loss is the cross-entropy of the given answers."""

GOES_ON = {
    "after_teachers_prefix": "the student, after the teacher's tokens",
    "teacher_after_students_prefix": "the teacher, after the student's tokens",
}


@dataclass
class Arm:
    """One student on its way: its bench, the teacher's engine, and where its tasks come from."""

    bench: Workbench
    teacher: NativeEngine
    way: str
    seed: int

    def __post_init__(self) -> None:
        self.environment = next(iter(self.bench.environments.values()))
        self.sampler = TaskSampler([self.environment], self.seed)
        self.sampling = SamplingParams(
            self.bench.preparation.resolved.sizes.max_new_tokens, 1.0, stop_token_ids=self.bench.turns.stop_token_ids
        )

    def train(self, budget: int, prompts: int, attempts: int) -> dict[str, Any]:
        """Steps until ``budget`` tokens are trained."""
        bench, tokens, steps, started = self.bench, 0, 0, time.perf_counter()
        gaps: list[float] = []
        bench.engine.load_weights(bench.trainer.export())
        for groups in self._batches(prompts, attempts):
            if self.way == SFT:
                rows = [t for group in groups for t in group]
                result = self._imitate(rows)
            else:
                batch = build_batch(bench, groups)
                result = update_policy(
                    bench.trainer, batch.table, batch.sequences, bench.spec, bench.plan, terms=batch.terms
                )
                assert batch.teacher is not None
                gaps.append(round(batch.teacher.signals()["distillation/gap"], 4))
            bench.engine.load_weights(bench.trainer.export())
            tokens, steps = tokens + result.trained_tokens, steps + 1
            if tokens >= budget:
                break
        return {"tokens": tokens, "steps": steps, "minutes": (time.perf_counter() - started) / 60, "gaps": gaps}

    def _batches(self, prompts: int, attempts: int) -> Iterator[list[Group]]:
        cursor = self.sampler.start()
        engine = self.teacher if self.way == SFT else self.bench.engine
        while True:
            draws, cursor = self.sampler.draw(prompts, cursor)
            members = [
                member
                for d in draws
                for member in members_of(
                    d.task,
                    group_id_of(d.task.task_id, d.epoch, d.draw),
                    attempts,
                    Role.TRAIN,
                    self.sampling,
                    self.seed,
                )
            ]
            groups = sample(engine, self.bench.turns, members, 0)
            grade(self.bench.environments, self.bench.turns, [t for group in groups for t in group])
            yield groups

    def _imitate(self, rows: list[Trajectory]) -> Any:
        table, sequences = table_of(rows)
        table.set_advantages(np.ones(len(rows)))
        return update_policy(self.bench.trainer, table, sequences, IMITATION, self.bench.plan)

    def measure(self, samples: int, lengths: list[int]) -> dict[str, Any]:
        """Held-out success by prefix, and the divergence to the teacher on both sides' answers."""
        bench, turns = self.bench, self.bench.turns
        tasks = [task for task in self.environment.tasks().evaluation for _ in range(samples)]
        none = [(task, np.empty(0, np.int32)) for task in tasks]
        theirs = continued(self.teacher, turns, self.environment, none, self.sampling)
        mine = continued(bench.engine, turns, self.environment, none, self.sampling)
        return {
            "success": float(np.mean([a.success for a in mine])),
            "teacher_success": float(np.mean([a.success for a in theirs])),
            "length": float(np.mean([len(a.token_ids) for a in mine])),
            "after_teachers_prefix": success_by_prefix(
                bench.engine, turns, self.environment, theirs, lengths, self.sampling
            ),
            "teacher_after_students_prefix": success_by_prefix(
                self.teacher, turns, self.environment, mine, lengths, self.sampling
            ),
            "reverse_kl": self._gap(mine),
            "forward_kl": -self._gap(theirs),
        }

    def _gap(self, answers: list[Attempted]) -> float:
        """Mean of the student's minus the teacher's log-prob over the answers' tokens."""
        bench, rows = self.bench, []
        for number, answer in enumerate(answers):
            rows.append(scored_row(bench, answer, number))
        table, sequences = table_of(rows)
        plan = plan_blocks(bench.trainer, sequences, bench.plan)
        bench.trainer.score(plan, table)
        assert bench.teacher is not None
        TeacherBatch(bench.teacher.model, table).score(plan, bench.trainer.model, 1.0)
        gap = table.trainer_logprob - table.teacher_logprob
        return float(gap[table.loss_mask].mean(dtype=np.float64))


def scored_row(bench: Workbench, answer: Attempted, number: int) -> Trajectory:
    """An answer as a row to be scored."""
    row = Trajectory(f"a/{number}", f"a{number}", answer.task, SamplingParams(1))
    row.append(Segment(Origin.PROMPT, bench.turns.prompt_ids(answer.task)))
    ids = answer.token_ids.astype(np.int32)
    row.append(Segment(Origin.MODEL, ids, np.full(len(ids), -1.0, np.float32), 0))
    return row


def table_of(rows: list[Trajectory]) -> tuple[RowTable, list[TrainSequence]]:
    """All rows in the loss, none anchored."""
    return RowTable.of(rows, np.ones(len(rows), np.bool_), [0.0] * len(rows)), train_sequences(rows)


def make_arm(options: Any, way: str, seed: int) -> Arm:
    """The untrained student with its teacher beside it."""
    chosen = WAYS[way]
    overrides = [f"--policy.{name}={value}" for name, value in chosen.items()]
    overrides += [f"--teacher.path={options.teacher}", "--teacher.compare_samples=0"]
    overrides += [f"--run.seed={seed}", f"--run.threads={options.threads}", f"--rollout.group_size={options.attempts}"]
    overrides += [f"--rollout.prompts_per_step={options.prompts}", "--policy.warmup_steps=0"]
    overrides += [f"--model.path={options.model}", "--rundir.trackers=[]"]
    overrides += ["--logprobs.keep_logits_mb=256", "--policy.micro_batch_tokens=1024"]
    bench = build(prepare(load_settings(ROOT / "configs/demo.toml", overrides)))
    assert bench.teacher is not None
    assert bench.teacher.facts is not None
    model: Any = bench.teacher.model.model
    engine = build_engine(bench.preparation, model, bench.teacher.facts.context_length)
    engine.load_weights(WeightSet.of(0, {name: p.detach() for name, p in model.named_parameters()}))
    return Arm(bench, engine, way, seed)


def main() -> None:
    """Every way with every seed, and the untrained student once."""
    sizes = {
        "seeds": Size((0, 1, 2), (0,)),
        "tokens": Size(4_000, 60, "trained tokens of each student"),
        "prompts": Size(16, 2),
        "attempts": Size(4, 2),
        "samples": Size(8, 1, "held-out attempts a task"),
        "lengths": Size((0, 2, 4, 6), (0, 2), "tokens that somebody else wrote"),
    }
    options = options_of("distillation", __doc__, repeats=1, sizes=sizes)
    options.teacher = str(ROOT / "runs/demo/model") if not options.quick else options.model
    if Path(str(options.teacher)).is_dir() or options.quick:
        found = run_all(options)
        report(options, found).finish(options.out)
        return
    raise SystemExit("there is no runs/demo/model: posttrain train configs/demo.toml --run runs/demo")


def run_all(options: Any) -> list[dict[str, Any]]:
    """One record for the untrained student and one for each way and seed."""
    found: list[dict[str, Any]] = []
    for seed in options.seeds:
        for way in ("untrained", *WAYS) if seed == options.seeds[0] else WAYS:
            arm = make_arm(options, SFT if way == "untrained" else way, seed)
            facts: dict[str, Any] = {"way": way, "seed": seed, "tokens": 0, "steps": 0, "minutes": 0.0, "gaps": []}
            if way == "untrained":
                arm.bench.engine.load_weights(arm.bench.trainer.export())
            else:
                facts |= arm.train(options.tokens, options.prompts, options.attempts)
            facts |= arm.measure(options.samples, list(options.lengths))
            arm.teacher.close()
            arm.bench.close()
            print({k: v for k, v in facts.items() if k != "gaps"}, flush=True)
            found.append(facts)
    return found


def report(options: Any, found: list[dict[str, Any]]) -> Record:
    """Medians over seeds, with the range."""
    record = Record(
        benchmark="distillation",
        question=(__doc__ or "").splitlines()[0],
        settings={
            name: getattr(options, name)
            for name in ("model", "seeds", "tokens", "prompts", "attempts", "samples", "lengths", "threads")
        }
        | {"teacher": "runs/demo/model", "config": "configs/demo.toml"},
        versions={"here": versions_here()},
    )
    ways = ["untrained", *WAYS]
    rows: list[tuple[str, ...]] = []
    prefixes: list[tuple[str, ...]] = []
    for way in ways:
        of_way = [f for f in found if f["way"] == way]
        columns = ("tokens", "steps", "success", "length", "reverse_kl", "forward_kl", "minutes")
        formats = (whole, whole, three, one, three, three, one)
        rows.append((way, *(spread([f[c] for f in of_way], g) for c, g in zip(columns, formats, strict=True))))
        for name, who in GOES_ON.items():
            cells = [spread([f[name][length] for f in of_way], three) for length in options.lengths]
            prefixes.append((way, who, *cells))
    head = ("student", "tokens", "steps", "held-out success", "length", "reverse KL", "forward KL", "minutes")
    record.tables.append(Table("at equal tokens", head, rows))
    record.tables.append(
        Table(
            "success by prefix length", ("student", "who goes on", *(f"{n} tokens" for n in options.lengths)), prefixes
        )
    )
    teacher = [f["teacher_success"] for f in found]
    record.notes.append(f"the teacher's own held-out success: {spread(teacher, three)}")
    record.measurements = {"runs": found}
    return record


def one(value: float) -> str:
    """One decimal."""
    return f"{value:.1f}"


def three(value: float) -> str:
    """Three decimals."""
    return f"{value:.3f}"


if __name__ == "__main__":
    main()
