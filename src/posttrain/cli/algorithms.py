"""``posttrain algorithms``: the table of rows, and one row in full."""

from __future__ import annotations

import difflib

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from posttrain.cli.console import PipeConsole
from posttrain.cli.fixed_algorithms import print_fixed_row, print_fixed_table
from posttrain.settings.algorithms import ROWS, algorithm_row
from posttrain.settings.field import rationale
from posttrain.settings.fixed_algorithms import FIXED_ROWS
from posttrain.settings.objective import Need, ObjectiveSpec
from posttrain.settings.rows.row import AlgorithmRow
from posttrain.settings.summary import advantage_words, bound_words, ratio_words


def print_table(console: Console | None = None) -> None:
    """A few lines for each algorithm: what it is made of and what it is good against."""
    target = console or PipeConsole()
    for row in ROWS.values():
        target.print(Text.assemble((row.name, "bold"), f"  {row.title}"))
        target.print(Padding(Text(_summary(row.spec), style="dim"), (0, 0, 0, 4)))
        target.print(Padding(Text(f"addresses {row.addresses}"), (0, 0, 0, 4)))
    target.print(Text("\non fixed data, given as [data]", style="bold"))
    print_fixed_table(target)
    target.print('\nOne in full: posttrain algorithms NAME. Use one: policy.algorithm = "NAME".', highlight=False)


def print_row(name: str, console: Console | None = None) -> None:
    """Everything about one algorithm. Raises InputError naming the nearest one."""
    target = console or PipeConsole()
    nearest = difflib.get_close_matches(name, [*ROWS, *FIXED_ROWS], n=1, cutoff=0.4)
    if name not in ROWS and nearest and nearest[0] in FIXED_ROWS:
        print_fixed_row(name, target)
        return
    row = algorithm_row(name)
    target.print(Text(f"{row.name}: {row.title}", style="bold"))
    for heading, lines in _sections(row):
        target.print(Text(f"\n{heading}", style="bold"))
        for line in lines:
            target.print(Padding(Text(line), (0, 0, 0, 2)))
    target.print(Text("\nparts (override under [policy.PART])", style="bold"))
    target.print(Padding(_parts(row.spec), (0, 0, 0, 2)))


def _summary(spec: ObjectiveSpec) -> str:
    ratio = "" if spec.ratio.level == "none" else f"; ratio {ratio_words(spec)}"
    return f"advantage {advantage_words(spec)}{ratio}; {bound_words(spec)}; {spec.aggregation.kind}"


def _sections(row: AlgorithmRow) -> list[tuple[str, list[str]]]:
    return [
        ("formula", list(row.formula)),
        ("source", [row.source]),
        ("trains on", [f"data {row.distribution.value}"]),
        ("needs", [need.value for need in row.needs] or ["nothing beyond a reward"]),
        ("assumes", [row.assumes]),
        ("addresses", [row.addresses]),
        ("pitfalls", [f"- {text}" for text in row.pitfalls]),
        ("differences", [f"- {other}: {text}" for other, text in row.differences]),
    ]


def _parts(spec: ObjectiveSpec) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column("setting", no_wrap=True)
    table.add_column("value", no_wrap=True)
    table.add_column("meaning", overflow="fold", style="dim")
    for part in ObjectiveSpec.model_fields:
        if part == "critic" and Need.CRITIC not in spec.needs:
            continue
        section = getattr(spec, part)
        for key, info in type(section).model_fields.items():
            value = getattr(section, key)
            shown = "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
            table.add_row(Text(f"{part}.{key}"), Text(shown), Text(rationale(info).description))
    return table
