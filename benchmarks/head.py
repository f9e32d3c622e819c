"""What do log-probs and the loss of a 152k vocabulary cost, in time and memory, beside TRL's and a naive way?

Hidden states of a 0.5-billion-parameter model's width, in bfloat16: log-probs of the targets, entropies, a clipped
policy loss, and the gradient of hidden states and head. Each side and size runs in a process of its own, so peak memory
is its own. A way whose full logits do not fit into the machine is not run, and the table says what it would need.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import psutil

from harness.options import TRL, Size, options_of
from harness.record import Ratio, Record, Table, busy, spread, versions_here, versions_of
from harness.sides import Facts, Side, take_turns

GIB = 2**30
USABLE = 0.75
"""Share of the free memory the full logits may take: gradients, log-softmax and other processes need the rest."""


@dataclass(frozen=True, slots=True)
class Way:
    """``full_logits`` bytes per logit that live at once where the whole matrix exists; 0 for chunked ways."""

    name: str
    side: str
    method: str
    full_logits: int
    keep_bytes: int = 0


OURS = Way("posttrain, nothing kept", "head", "chunked", 0)
WAYS = (
    OURS,
    Way("posttrain, 2 GiB of logits kept", "head", "chunked", 0, 2 * GIB),
    Way("TRL, fused head", "trl_head", "chunked", 0),
    Way("TRL, full logits", "trl_head", "full", 4),
    Way("naive", "head", "naive", 10),
)


def main() -> None:
    """Measure and report."""
    sizes = {
        "tokens": Size((4096, 32768), (256, 512)),
        "width": Size(896, 64),
        "vocabulary": Size(151936, 2048),
    }
    options = options_of("head", __doc__, repeats=3, sizes=sizes, rivals=[TRL])
    versions = {"posttrain": versions_here()}
    if options.trl_python:
        versions["TRL"] = versions_of(options.trl_python)
    settings = {"threads": options.threads, "repeats": options.repeats, "dtype": "bfloat16"}
    record = Record(
        "head", (__doc__ or "").strip(), settings | {name: getattr(options, name) for name in sizes}, versions
    )
    for tokens in options.tokens:
        print(f"{tokens} tokens", flush=True)
        measure(options, tokens, record)
    record.finish(options.out)


def measure(options: argparse.Namespace, tokens: int, record: Record) -> None:
    """All ways that fit on one number of tokens."""
    memory = USABLE * psutil.virtual_memory().available
    sides: dict[Way, Side] = {}
    unfit: dict[Way, int] = {}
    try:
        for way in WAYS:
            if way.side == "trl_head" and not options.trl_python:
                continue
            needed = tokens * options.vocabulary * way.full_logits
            if needed > memory:
                unfit[way] = needed
                continue
            spec = {
                "method": way.method,
                "keep_bytes": way.keep_bytes,
                "tokens": tokens,
                "width": options.width,
                "vocabulary": options.vocabulary,
                "seed": 1,
            }
            python = {"python": options.trl_python} if way.side == "trl_head" else {}
            sides[way] = Side(way.side, spec, threads=options.threads, **python)
        found = take_turns(
            {way.name: lambda _, side=side: side.do("run") for way, side in sides.items()}, options.repeats
        )
        peaks = {way.name: side.peak_bytes for way, side in sides.items()}
    finally:
        for side in sides.values():
            side.close()
    add(record, tokens, found, peaks, unfit)


def add(
    record: Record, tokens: int, found: dict[str, list[Facts]], peaks: dict[str, int], unfit: dict[Way, int]
) -> None:
    """One table, and the ratios against the first way."""
    rows = [
        (
            name,
            spread([f["seconds"] for f in facts], lambda s: f"{s:.2f}"),
            f"{peaks[name] / GIB:.2f}",
            f"{facts[0]['logprob_mean']:.4f}",
            f"{facts[0]['hidden_grad_norm']:.4g}",
            busy(facts),
        )
        for name, facts in found.items()
    ]
    rows += [
        (way.name, "not run", f"more than {needed / GIB:.0f} for logits alone", "", "", "")
        for way, needed in unfit.items()
    ]
    columns = ("way", "seconds", "peak GiB of the process", "mean log-prob", "gradient norm", "other processes, cores")
    record.tables.append(Table(f"{tokens} tokens", columns, rows))
    ours = [1 / f["seconds"] for f in found[OURS.name]]
    for name, facts in found.items():
        if name != OURS.name:
            theirs = [1 / f["seconds"] for f in facts]
            record.ratios.append(Ratio.of(f"{tokens} tokens, speed: posttrain / {name}", ours, theirs))
            memory = Ratio.of(f"{tokens} tokens, peak memory: {name} / posttrain", [peaks[name]], [peaks[OURS.name]])
            record.ratios.append(memory)
    record.measurements[str(tokens)] = {"runs": found, "peak_bytes": peaks}


if __name__ == "__main__":
    main()
