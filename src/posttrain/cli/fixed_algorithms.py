"""``posttrain algorithms`` for the rows that train on fixed data."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from posttrain.settings.field import rationale
from posttrain.settings.fixed_algorithms import FIXED_ROWS, fixed_row


def print_fixed_table(target: Console) -> None:
    """A few lines for each row."""
    for row in FIXED_ROWS.values():
        target.print(Text.assemble((row.name, "bold"), f"  {row.title}"))
        target.print(Padding(Text(f"on {row.needs[0]}; {row.formula[-1]}", style="dim"), (0, 0, 0, 4)))
        target.print(Padding(Text(f"addresses {row.addresses}"), (0, 0, 0, 4)))


def print_fixed_row(name: str, target: Console) -> None:
    """Everything about one row. Raises InputError naming the nearest one."""
    row = fixed_row(name)
    target.print(Text(f"{row.name}: {row.title}", style="bold"))
    sections = (
        ("formula", row.formula),
        ("source", (row.source,)),
        ("trains on", (row.distribution.value,)),
        ("needs", row.needs),
        ("learning rate", (f"{row.learning_rate:g} (full fine-tuning), ten times that with LoRA",)),
        ("assumes", (row.assumes,)),
        ("addresses", (row.addresses,)),
        ("pitfalls", tuple(f"- {text}" for text in row.pitfalls)),
        ("differences", tuple(f"- {other}: {text}" for other, text in row.differences)),
    )
    for heading, lines in sections:
        target.print(Text(f"\n{heading}", style="bold"))
        for line in lines:
            target.print(Padding(Text(line), (0, 0, 0, 2)))
    target.print(Text(f"\nits part (override under [policy.{row.part_name}])", style="bold"))
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column("setting", no_wrap=True)
    table.add_column("value", no_wrap=True)
    table.add_column("meaning", overflow="fold", style="dim")
    for key, info in type(row.part).model_fields.items():
        value = getattr(row.part, key)
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        table.add_row(Text(f"{row.part_name}.{key}"), Text(shown), Text(rationale(info).description))
    target.print(Padding(table, (0, 0, 0, 2)))
