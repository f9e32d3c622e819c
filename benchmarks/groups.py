"""What does the group size change, at a fixed number of replies per batch?

Batches of 128 replies to the demo's task by its base model: few prompts with many replies each, or many with few.
Rates are of real batches: replies end when the model ends them, and rows without advantage cost no backward pass.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean

from harness.options import Size, options_of
from harness.record import Ratio, Record, Table, busy, spread, versions_here, whole
from harness.sides import Facts, Side, rates, take_turns
from harness.workloads import model_directory


def main() -> None:
    """Measure and report."""
    sizes = {"sizes": Size((4, 8, 16, 32)), "batch": Size(128, 32), "new_tokens": Size(32, 8)}
    options = options_of("groups", __doc__, repeats=6, sizes=sizes)
    with model_directory(options.model) as directory:
        record = measure(options, directory)
    record.finish(options.out)


def measure(options: argparse.Namespace, directory: Path) -> Record:
    """Group sizes take turns in one process."""
    spec = {"model": str(directory), "batch": options.batch, "new_tokens": options.new_tokens}
    with Side("groups", spec, threads=options.threads) as side:

        def both(size: int) -> Facts:
            sampled = side.do("sample", group_size=size)
            trained = side.do("train")
            return {
                "seconds": sampled["seconds"] + trained["seconds"],
                "tokens": sampled["tokens"],
                "sampled": sampled,
                "trained": trained,
                "other_cores_busy": max(sampled["other_cores_busy"], trained["other_cores_busy"]),
            }

        runs = {f"{size}": lambda _, size=size: both(size) for size in options.sizes}
        found = take_turns(runs, options.repeats)
    return report(options, found)


def report(options: argparse.Namespace, found: dict[str, list[Facts]]) -> Record:
    """One table of statistics, one of rates."""
    settings = {
        "model": options.model,
        "task": "differences of numbers under 20, base model, temperature 1",
        "threads": options.threads,
        "batch": options.batch,
        "new_tokens": options.new_tokens,
        "batches": options.repeats,
    }
    record = Record("groups", (__doc__ or "").strip(), settings, {"posttrain": versions_here()})

    def mean_of(facts: list[Facts], name: str) -> float:
        return mean(f["trained"][name] for f in facts)

    record.tables.append(
        Table(
            f"Statistics over {options.repeats} batches of {options.batch} replies",
            (
                "group size",
                "success",
                "groups without variance",
                "tokens with advantage",
                "advantage variance, leave-one-out",
                "advantage variance, divided by the group's std",
                "gradient norm",
            ),
            [
                (
                    size,
                    f"{mean_of(facts, 'success'):.3f}",
                    f"{100 * mean_of(facts, 'zero_variance'):.0f} %",
                    f"{100 * mean_of(facts, 'advantage_tokens'):.0f} %",
                    f"{mean_of(facts, 'unscaled_variance'):.4f}",
                    f"{mean_of(facts, 'variance'):.3f}",
                    f"{mean_of(facts, 'grad_norm'):.2f}",
                )
                for size, facts in found.items()
            ],
        )
    )
    record.tables.append(
        Table(
            "Rates",
            ("group size", "sampled tokens/s", "trained tokens/s", "seconds a batch", "other processes, cores"),
            [
                (
                    size,
                    spread(rates([f["sampled"] for f in facts]), whole),
                    spread(rates([f["trained"] for f in facts]), whole),
                    spread([f["seconds"] for f in facts], lambda s: f"{s:.1f}"),
                    busy(facts),
                )
                for size, facts in found.items()
            ],
        )
    )
    first, *others = found
    record.ratios = [
        Ratio.of(f"tokens/s of a whole batch: size {size} / size {first}", rates(found[size]), rates(found[first]))
        for size in others
    ]
    record.notes.append(
        "With a 0/1 reward of success rate p the leave-one-out advantage has variance p (1 - p) G / (G - 1): a larger "
        "group has the better baseline, a smaller one covers more prompts."
    )
    record.measurements = dict(found)
    return record


if __name__ == "__main__":
    main()
