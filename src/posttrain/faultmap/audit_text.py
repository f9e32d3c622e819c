"""An audit in the terminal: what was found, worst first, then the numbers behind it."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from posttrain.faultmap.audit import AuditReport
from posttrain.faultmap.printable import printable
from posttrain.signals.audit import AuditTable
from posttrain.signals.severity import Severity

CELL_LIMIT = 100
COLOURS = {Severity.INFO: "cyan", Severity.WARN: "yellow", Severity.CRITICAL: "bold red"}


def print_audit(report: AuditReport, console: Console, *, details: bool = True) -> None:
    """Findings with their fixes, then the tables of the checks (``details``), then how many findings there are."""
    findings = report.findings()
    for check, finding in findings:
        head = Text(f"{finding.severity}", style=COLOURS[finding.severity])
        head.append(f"  {harmless(finding.subject)}: {harmless(finding.name)}", style="bold")
        head.append(f"  (layer {int(check.layer)})", style="dim")
        console.print(head)
        console.print(Padding(Text(harmless(finding.summary, 2000)), (0, 0, 0, 2)))
        console.print(Padding(Text(f"fix: {harmless(finding.fix, 2000)}", style="green"), (0, 0, 1, 2)))
    tables = [table for outcome in report.outcomes.values() for table in outcome.tables]
    for table in tables if details else []:
        console.print(_rich_table(table))
        console.print()
    severities = [finding.severity for _, finding in findings]
    counts = ", ".join(f"{severities.count(s)} {s}" for s in sorted(Severity, reverse=True))
    console.print(Text(f"Findings: {counts}."))


def harmless(text: str, limit: int = CELL_LIMIT) -> str:
    """A text on one line, without anything that could steer a terminal; a long one loses its middle."""
    line = printable(text.replace("\r", "\\r").replace("\n", "\\n").replace("\t", " "))
    return line if len(line) <= limit else f"{line[: limit // 2]} [...] {line[-limit // 3 :]}"


def _rich_table(table: AuditTable) -> Table:
    shown = Table(title=Text(harmless(table.title), style="bold"), title_justify="left", box=None, pad_edge=False)
    for column in table.columns:
        shown.add_column(Text(harmless(column)), overflow="fold")
    for row in table.rows:
        shown.add_row(*(Text(harmless(cell)) for cell in row))
    return shown
