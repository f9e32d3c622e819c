"""How fast is a whole training step, against TRL's GRPOTrainer?

64 replies of 32 forced tokens to 8 prompts, temperature 1, one GRPO update per batch: sampling, grading, advantages,
forward, backward, clip, AdamW, handing the weights to the sampler, and writing logs. posttrain also writes its
journal and every trajectory to disk. The reward costs nothing and differs within each group, so no group is skipped.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median

from harness.options import TRL, Size, options_of
from harness.record import (
    Ratio,
    Record,
    Table,
    busy,
    spread,
    versions_here,
    versions_of,
)
from harness.sides import Facts, Sides, take_turns
from harness.workloads import model_directory, questions

OURS, UNSHARED = "posttrain", "posttrain, prompts not shared"
TRL_PLAIN, TRL_CHECKPOINTED, TRL_BF16 = (
    "TRL, no checkpointing",
    "TRL, checkpointing (its default)",
    "TRL, bf16 weights and optimizer, no checkpointing",
)


def main() -> None:
    """Measure and report."""
    sizes = {
        "prompts": Size(8),
        "group_size": Size(8),
        "new_tokens": Size(32, 8),
        "micro_rows": Size(16, help="TRL's per_device_train_batch_size"),
    }
    options = options_of("step", __doc__, repeats=3, sizes=sizes, rivals=[TRL])
    with model_directory(options.model) as directory:
        record = measure(options, directory)
    record.finish(options.out)


def measure(options: argparse.Namespace, directory: Path) -> Record:
    """Start all sides and let them take turns."""
    spec = {
        "model": str(directory),
        "questions": [f"{text} Reply with only the number." for text in questions(64)],
        "prompts": options.prompts,
        "group_size": options.group_size,
        "new_tokens": options.new_tokens,
    }
    versions = {"posttrain": versions_here()}
    with Sides(spec, options.threads) as contest:
        ours = contest.start("loop", share=True)
        sides = {OURS: ours}
        if options.trl_python:
            versions["TRL"] = versions_of(options.trl_python)
            rows = options.prompts * options.group_size
            more = {
                "python": options.trl_python,
                "batch_rows": rows,
                "micro_rows": options.micro_rows,
                "tokens": {"": rows * options.new_tokens},
            }
            sides |= {
                TRL_PLAIN: contest.start("trl_grpo", weights="float32", checkpointing=False, **more),
                TRL_CHECKPOINTED: contest.start("trl_grpo", weights="float32", checkpointing=True, **more),
                TRL_BF16: contest.start("trl_grpo", weights="bfloat16", checkpointing=False, **more),
            }
        runs = {name: lambda _, side=side: side.do("step") for name, side in sides.items()}
        found = take_turns(runs, options.repeats)
        peaks = {name: side.peak_bytes for name, side in sides.items()}
        for name, side in sides.items():
            if name != OURS:
                side.close()  # their memory is needed
        unshared = contest.start("loop", share=False)
        sharing = take_turns(
            {OURS: lambda _: ours.do("step"), UNSHARED: lambda _: unshared.do("step")}, options.repeats
        )
        peaks[UNSHARED] = unshared.peak_bytes
    return report(options, versions, found, sharing, peaks)


def report(
    options: argparse.Namespace,
    versions: dict[str, dict[str, str]],
    found: dict[str, list[Facts]],
    sharing: dict[str, list[Facts]],
    peaks: dict[str, int],
) -> Record:
    """Tables and ratios."""
    settings = {
        "model": options.model,
        "weights": "float32 masters, bfloat16 products, float32 AdamW, unless the side's name says otherwise",
        "threads": options.threads,
        "repeats": options.repeats,
        "prompts": options.prompts,
        "group_size": options.group_size,
        "new_tokens": options.new_tokens,
        "trl_micro_rows": options.micro_rows,
    }
    record = Record("step", (__doc__ or "").strip(), settings, versions)
    replies = options.prompts * options.group_size
    record.tables.append(
        Table(
            f"One step of {replies} replies with {options.new_tokens} tokens each",
            ("side", "seconds", "replies/s", "peak MiB", "other processes, cores"),
            [
                (
                    name,
                    spread([f["seconds"] for f in facts], lambda s: f"{s:.2f}"),
                    f"{replies / median(f['seconds'] for f in facts):.1f}",
                    f"{peaks[name] / 2**20:.0f}",
                    busy(facts),
                )
                for name, facts in (found | {UNSHARED: sharing[UNSHARED]}).items()
            ],
        )
    )
    phases = list(sharing[OURS][0]["phases"])
    record.tables.append(
        Table(
            "Where posttrain's step goes, seconds",
            ("phase", OURS, UNSHARED),
            [
                (phase, *(f"{median(f['phases'].get(phase, 0.0) for f in sharing[s]):.2f}" for s in (OURS, UNSHARED)))
                for phase in phases
            ],
        )
    )
    pace = {name: [1 / f["seconds"] for f in facts] for name, facts in found.items()}
    aims = {TRL_PLAIN: 4.0, TRL_CHECKPOINTED: 4.0}
    record.ratios = [
        Ratio.of(f"posttrain / {name}", pace[OURS], values, aims.get(name, 0.0))
        for name, values in pace.items()
        if name != OURS
    ]
    shared, not_shared = ([1 / f["seconds"] for f in sharing[name]] for name in (OURS, UNSHARED))
    record.ratios.append(Ratio.of("posttrain: prompts shared / not shared", shared, not_shared))
    record.measurements = {"steps": found, "sharing": sharing, "peak_bytes": peaks}
    return record


if __name__ == "__main__":
    main()
