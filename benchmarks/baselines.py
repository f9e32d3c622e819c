"""What does a critic buy? Variance that each baseline removes, against the memory and time it costs.

The same batches of a policy that stands still for the while are given every baseline: none, the mean of the batch (what
whitening gives to a critic that knows nothing), the group's mean, leave-one-out, and a critic. *Advantages*: their
mean square over tokens. *Gradient*: the trace of the covariance of a batch's gradient, at equal expectation (the group
mean's is scaled by n/(n-1), which makes it leave-one-out's).

First a tiny model from scratch on a toy task (repeat the prompt's digit; the reward is the share of right
characters), measured while PPO trains policy and critic. Then the demo model on the demo's task: the policy stays and
its critic learns.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from harness.noise import BASELINES, measured
from harness.options import Size, options_of
from harness.record import Record, Table, spread, versions_here
from harness.sides import HERE, ROOT
from posttrain.environment.mixture import TaskSampler
from posttrain.orchestration.batch import Batch, build_batch
from posttrain.orchestration.critic import critic_signals
from posttrain.orchestration.sampling import grade, members_of, sample
from posttrain.orchestration.workbench import Workbench, build, prepare
from posttrain.policy.gae import explained_variance
from posttrain.policy.update import plan_blocks, update_policy
from posttrain.settings import Settings, load_settings, settings_from_mapping
from posttrain.trajectory import Role, SamplingParams, group_id_of

EXPLAINED = "policy/critic_explained_variance"


@dataclass
class Arm:
    """A policy with its critic, and where its tasks come from."""

    bench: Workbench
    seed: int

    def __post_init__(self) -> None:
        self.sampler = TaskSampler(list(self.bench.environments.values()), self.seed)
        self.sampling = SamplingParams(
            self.bench.preparation.resolved.sizes.max_new_tokens, 1.0, stop_token_ids=self.bench.turns.stop_token_ids
        )
        self.batches = self._batches()
        self.bench.engine.load_weights(self.bench.trainer.export())

    def _batches(self) -> Iterator[tuple[Batch, float, float]]:
        """Batches with the processor seconds of sampling, and of scoring values."""
        bench, rollout, cursor = self.bench, self.bench.settings.rollout, self.sampler.start()
        while True:
            started = time.process_time()
            draws, cursor = self.sampler.draw(rollout.prompts_per_step, cursor)
            ids = [group_id_of(d.task.task_id, d.epoch, d.draw) for d in draws]
            members = [
                m
                for d, group_id in zip(draws, ids, strict=True)
                for m in members_of(d.task, group_id, rollout.group_size, Role.TRAIN, self.sampling, self.seed)
            ]
            groups = sample(bench.engine, bench.turns, members, 0)
            grade(bench.environments, bench.turns, [t for group in groups for t in group])
            sampled = time.process_time()
            batch = build_batch(bench, groups)
            yield batch, sampled - started, time.process_time() - sampled

    def step(self, *, frozen: bool) -> dict[str, Any]:
        """One step of PPO, or of its critic alone."""
        bench, critic = self.bench, self.bench.critic
        assert critic is not None
        batch, sampling, scoring = next(self.batches)
        assert batch.critic is not None
        started = time.process_time()
        policy = 0.0
        if not frozen:
            update_policy(bench.trainer, batch.table, batch.sequences, bench.spec, bench.plan)
            policy = time.process_time() - started
            bench.engine.load_weights(bench.trainer.export())
        started = time.process_time()
        update = critic.train(
            plan_blocks(bench.trainer, batch.sequences, bench.plan), batch.table, batch.critic.columns
        )
        seconds = time.process_time() - started
        signals = critic_signals(batch.critic, update, batch.table)
        return {
            "reward": float(batch.rewards.mean()),
            "explained": signals.get(EXPLAINED),
            "sampling": sampling,
            "scoring": scoring,
            "policy": policy,
            "critic": seconds,
        }

    def measure(self, count: int, *, gradients: bool) -> dict[str, Any]:
        """Every baseline on ``count`` new batches. Neither policy nor critic moves."""
        batches = [next(self.batches)[0] for _ in range(count)]
        known = [e for e in map(_explained, batches) if e is not None]
        return {
            "reward": float(np.mean([b.rewards.mean() for b in batches])),
            "explained": float(np.mean(known)) if known else None,
            "baselines": measured(self.bench, batches, self.bench.settings.rollout.group_size, gradients),
        }


def _explained(batch: Batch) -> float | None:
    assert batch.critic is not None
    return explained_variance(batch.critic.columns.value, batch.critic.columns.returns, batch.table.loss_mask)


def toy(folder: Path, options: Any, seed: int, steps: int) -> Settings:
    """A tiny model that learns to repeat a digit."""
    rows = [{"id": f"{c}{d}", "prompt": f"{c}{d}", "digit": str(d)} for c in "abcd" for d in range(10)]
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return settings_from_mapping(
        {
            "run": {"steps": steps, "seed": seed, "threads": options.threads, "device": "cpu"},
            "model": {"path": "tiny:llama", "compute_dtype": "float32"},
            "environments": {
                "toy": {
                    "kind": "function",
                    "reward": f"{HERE / 'harness' / 'rewards.py'}:share_of_digit",
                    "reward_kind": "verifiable",
                    "path": str(file),
                    "id_column": "id",
                    "gold_column": "digit",
                }
            },
            "rollout": {"prompts_per_step": 10, "group_size": options.attempts, "max_new_tokens": 4},
            "policy": {"algorithm": "ppo", "learning_rate": 2e-3, "critic": {"learning_rate": 2e-3}},
            "evaluation": {"at_start": False, "at_end": False},
        }
    )


def demo(options: Any) -> Settings:
    """The demo's model and task, under PPO."""
    overrides = [
        f"--model.path={options.model}",
        f"--run.threads={options.threads}",
        f"--rollout.group_size={options.demo_attempts}",
        f"--rollout.prompts_per_step={options.demo_prompts}",
        "--policy.algorithm=ppo",
        "--policy.critic.learning_rate=1e-4",
        "--evaluation.at_start=false",
        "--evaluation.at_end=false",
    ]
    return load_settings(ROOT / "configs/demo.toml", overrides)


def run_toy(options: Any, seed: int) -> list[dict[str, Any]]:
    """A record at each mark of one run."""
    found: list[dict[str, Any]] = []
    with TemporaryDirectory() as folder:
        bench = build(prepare(toy(Path(folder), options, seed, max(options.marks) + 1)))
        arm, steps = Arm(bench, seed), list[dict[str, Any]]()
        for mark in sorted(options.marks):
            while len(steps) < mark:
                steps.append(arm.step(frozen=False))
            record = {"seed": seed, "step": mark, **arm.measure(options.batches, gradients=True)}
            record["seconds"] = {
                name: float(np.median([s[name] for s in steps])) for name in ("sampling", "scoring", "policy", "critic")
            }
            record["memory"] = {item.name: item.bytes for item in bench.preparation.memory}
            print({k: v for k, v in record.items() if k not in ("memory", "baselines")}, flush=True)
            found.append(record)
        bench.close()
    return found


def run_demo(options: Any) -> dict[str, Any]:
    """The course of a critic on a policy that stays, what it removes in the end, and what it costs."""
    bench = build(prepare(demo(options)))
    arm, seconds = Arm(bench, 0), list[dict[str, Any]]()
    for number in range(options.demo_batches):
        seconds.append(arm.step(frozen=True))
        print(number, {k: v and round(v, 3) for k, v in seconds[-1].items()}, flush=True)
    record = arm.measure(options.demo_measured, gradients=False)
    # The policy's own update last, so that everything before is of one policy.
    costs = [arm.step(frozen=False) for _ in range(options.repeats)]
    record |= {"course": seconds, "costs": costs}
    record["memory"] = {item.name: item.bytes for item in bench.preparation.memory}
    bench.close()
    return record


def report(options: Any, toys: list[dict[str, Any]], real: dict[str, Any]) -> Record:
    """Shares removed and costs."""
    names = ("attempts", "seeds", "marks", "batches", "demo_prompts", "demo_attempts", "demo_batches", "demo_measured")
    settings = {name: getattr(options, name) for name in (*names, "model", "threads")}
    record = Record("baselines", (__doc__ or "").strip(), settings, {"posttrain": versions_here()})

    def removed(found: list[dict[str, Any]], name: str, what: str) -> str:
        shares = [100 * (1 - f["baselines"][name][what] / f["baselines"]["none"][what]) for f in found]
        return spread(shares, lambda x: f"{x:.0f} %")

    for mark in sorted(options.marks):
        found = [f for f in toys if f["step"] == mark]
        reward = spread([f["reward"] for f in found], lambda x: f"{x:.2f}")
        explained = spread([f["explained"] or 0.0 for f in found], lambda x: f"{x:.2f}")
        record.tables.append(
            Table(
                f"Toy task after {mark} steps: reward {reward}, explained variance {explained}",
                ("baseline", "advantages: variance removed", "gradient: variance removed"),
                [(name, removed(found, name, "mean_square"), removed(found, name, "variance")) for name in BASELINES],
            )
        )
    course = [step["explained"] for step in real["course"] if step["explained"] is not None]
    record.tables.append(
        Table(
            f"Demo model after {options.demo_batches} batches of its critic: reward {real['reward']:.2f}, explained "
            f"variance {real['explained'] or 0.0:.2f}",
            ("baseline", "advantages: variance removed"),
            [(name, removed([real], name, "mean_square")) for name in BASELINES],
        )
    )
    record.tables.append(_costs(toys, real))
    quarters = [q for q in np.array_split(np.array(course, np.float64), 4) if q.size]
    record.notes += [
        "Explained variance on the demo's task by quarters of the critic's batches: "
        + ", ".join(f"{q.mean():.2f}" for q in quarters),
        "Lambda 0.95 also shrinks the advantage of early tokens, so part of what it removes is signal.",
        "Group baselines need several attempts at each task; a critic does not.",
    ]
    record.measurements = {"toy": toys, "demo": real}
    return record


def _costs(toys: list[dict[str, Any]], real: dict[str, Any]) -> Table:
    def row(name: str, memory: dict[str, int], seconds: dict[str, list[float]]) -> tuple[str, ...]:
        critic = memory["critic weights"] + memory["critic training"]
        models = sum(v for k, v in memory.items() if k != "keys and values")
        extra = [s + c for s, c in zip(seconds["scoring"], seconds["critic"], strict=True)]
        step = [a + b for a, b in zip(seconds["sampling"], seconds["policy"], strict=True)]
        return (
            name,
            f"{critic / 2**20:,.1f} MiB",
            f"+{100 * critic / (models - critic):.0f} %",
            spread([e / p for e, p in zip(extra, seconds["policy"], strict=True)], lambda x: f"{x:.2f}"),
            spread([100 * e / s for e, s in zip(extra, step, strict=True)], lambda x: f"+{x:.0f} %"),
        )

    columns = (
        "model",
        "critic's memory",
        "of the other copies",
        "critic over policy update (processor time)",
        "of a step's processor time",
    )
    keys = ("sampling", "scoring", "policy", "critic")
    tiny = {k: [f["seconds"][k] for f in toys] for k in keys}
    big = {k: [c[k] for c in real["costs"]] for k in keys}
    return Table(
        "What the critic costs (a group baseline: 0)",
        columns,
        [row("toy", toys[0]["memory"], tiny), row("demo", real["memory"], big)],
    )


def main() -> None:
    """Every seed of the toy task, then the demo model."""
    sizes = {
        "seeds": Size((0, 1, 2), (0,)),
        "attempts": Size(8, 2, "attempts at each of 10 prompts of the toy task"),
        "marks": Size((30, 60, 90), (2,), "steps of PPO after which every baseline is measured"),
        "batches": Size(40, 2, "batches measured at a mark"),
        "demo_prompts": Size(16, 2),
        "demo_attempts": Size(4, 2),
        "demo_batches": Size(40, 2, "batches that the demo model's critic learns from"),
        "demo_measured": Size(16, 2, "batches measured then"),
    }
    options = options_of("baselines", __doc__, repeats=4, sizes=sizes)
    toys = [record for seed in options.seeds for record in run_toy(options, seed)]
    report(options, toys, run_demo(options)).finish(options.out)


if __name__ == "__main__":
    main()
