"""How fast is one update on given trajectories, against a plain transformers loop and TRL?

Forward, backward, gradient clip and AdamW step on the same token ids and advantages. Weights are fp32 masters and
matrix products bf16 on all sides. Rates count completion tokens, the same on all sides, so they compare time alone.
"""

from __future__ import annotations

import argparse
from pathlib import Path

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
from harness.sides import Facts, Sides, rates, take_turns
from harness.workloads import Rows, distinct_rows, grouped_rows, model_directory, prompt_ids, questions

OURS, UNSHARED, HF, TRL_PLAIN, TRL_CHECKPOINTED = (
    "posttrain",
    "posttrain, prompts not shared",
    "plain transformers loop",
    "TRL, no checkpointing",
    "TRL, checkpointing (its default)",
)


def main() -> None:
    """Measure and report."""
    sizes = {
        "micro_batch_tokens": Size(2048, help="posttrain's token budget of one pass"),
        "micro_rows": Size(16, help="rows of one pass on the padded sides"),
    }
    options = options_of("training", __doc__, repeats=3, sizes=sizes, rivals=[TRL])
    with model_directory(options.model) as directory:
        record = measure(options, directory)
    record.finish(options.out)


def measure(options: argparse.Namespace, directory: Path) -> Record:
    """Start all sides, let them take turns on both sets of rows, and compare."""
    from posttrain.model.load import inspect_model

    vocabulary = inspect_model(str(directory)).vocabulary
    texts = questions(64)
    prompts = prompt_ids(directory, [f"{text} Reply with only the number." for text in texts])
    sets = {
        "grouped": grouped_rows(prompts[:8], 8, vocabulary, 8, 64),
        "distinct": distinct_rows(prompts, vocabulary, 32),
    }
    spec = {
        "model": str(directory),
        "rows": {name: rows.rows for name, rows in sets.items()},
        "micro_batch_tokens": options.micro_batch_tokens,
        "micro_rows": options.micro_rows,
        "entropy": True,
    }
    versions = {"posttrain, transformers": versions_here()}
    with Sides(spec, options.threads) as contest:
        sides = {OURS: contest.start("trainer"), HF: contest.start("hf_loop")}
        if options.trl_python:
            versions["TRL"] = versions_of(options.trl_python)
            more = {
                "weights": "float32",
                "batch_rows": 64,
                "group_size": 8,
                "new_tokens": 64,
                "questions": texts,
                "tokens": {name: rows.completion_tokens for name, rows in sets.items()},
            }
            sides[TRL_PLAIN] = contest.start("trl_grpo", python=options.trl_python, checkpointing=False, **more)
            sides[TRL_CHECKPOINTED] = contest.start("trl_grpo", python=options.trl_python, checkpointing=True, **more)
        found: dict[str, dict[str, list[Facts]]] = {}
        for name in sets:
            print(f"{sets[name].name}:", flush=True)
            runs = {
                side: lambda _, process=process, name=name: process.do("update", rows=name, share=True)
                for side, process in sides.items()
            }
            found[name] = take_turns(runs, options.repeats)
        peaks = {side: process.peak_bytes for side, process in sides.items()}
        ours = sides[OURS]
        print("with and without shared prompts:", flush=True)
        found["sharing"] = take_turns(
            {
                OURS: lambda _: ours.do("update", rows="grouped", share=True),
                UNSHARED: lambda _: ours.do("update", rows="grouped", share=False),
            },
            options.repeats,
        )
        profile = sides[OURS].do("profile", rows="grouped", share=True)
    return report(options, versions, sets, found, peaks, profile)


def report(
    options: argparse.Namespace,
    versions: dict[str, dict[str, str]],
    sets: dict[str, Rows],
    found: dict[str, dict[str, list[Facts]]],
    peaks: dict[str, int],
    profile: Facts,
) -> Record:
    """Tables and ratios."""
    settings = {
        "model": options.model,
        "weights": "float32 masters, bfloat16 products, float32 AdamW",
        "threads": options.threads,
        "repeats": options.repeats,
        "micro_batch_tokens": options.micro_batch_tokens,
        "micro_rows": options.micro_rows,
        "rows": {name: {"what": s.name, "completion_tokens": s.completion_tokens} for name, s in sets.items()},
    }
    record = Record("training", (__doc__ or "").strip(), settings, versions)
    for name, rows in sets.items():
        record.tables.append(
            Table(
                f"{rows.name}: {rows.completion_tokens} completion tokens, {rows.all_tokens} with prompts",
                ("side", "seconds", "completion tokens/s", "other processes, cores"),
                [
                    (
                        side,
                        spread([f["seconds"] for f in facts], lambda s: f"{s:.2f}"),
                        spread(rates(facts), lambda r: f"{r:.0f}"),
                        busy(facts),
                    )
                    for side, facts in found[name].items()
                ],
            )
        )
        ours = rates(found[name][OURS])
        record.ratios += [
            Ratio.of(f"{name}: posttrain / {side}", ours, rates(facts), 1.5)
            for side, facts in found[name].items()
            if side != OURS
        ]
    sharing = found["sharing"]
    record.ratios.append(
        Ratio.of("grouped: prompts shared / not shared", rates(sharing[OURS]), rates(sharing[UNSHARED]))
    )
    record.tables.append(
        Table(
            "Peak memory of the process over both sets, model loading included",
            ("side", "MiB"),
            [(side, f"{peak / 2**20:.0f}") for side, peak in peaks.items()],
        )
    )
    record.tables.append(
        Table(
            "posttrain under the profiler, grouped rows: share of operator time",
            ("operator", "calls", "share"),
            [(name, str(count), f"{100 * share:.1f} %") for name, count, share in profile["operators"]],
        )
    )
    record.notes.append(bound(profile))
    smallest = min(peak for side, peak in peaks.items() if side != OURS)
    record.ratios.append(Ratio.of("peak memory: least of the others / posttrain", [smallest], [peaks[OURS]], 1.0))
    record.measurements = {**found, "peak_bytes": peaks, "profile": profile}
    return record


def bound(profile: Facts) -> str:
    """What keeps the ratio on distinct prompts low."""
    products = sum(share for name, _, share in profile["operators"] if name in ("aten::mm", "aten::bmm"))
    return (
        f"Matrix products take {100 * products:.0f} % of posttrain's operator time. Distinct prompts share nothing, so "
        "every side computes the same ones: only the rest, and what a side pads or computes twice, can be saved there."
    )


if __name__ == "__main__":
    main()
