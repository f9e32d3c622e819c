"""``posttrain audit``: checks before a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from posttrain.errors import InputError
from posttrain.signals.audit import AuditOptions
from posttrain.signals.severity import Severity


def audit(
    config: Annotated[Path, Parameter(help="Settings file (TOML).")],
    /,
    *overrides: Annotated[
        str,
        Parameter(
            name="SETTINGS",
            allow_leading_hyphen=True,
            help="Settings that replace those of CONFIG: `--section.key value`.",
        ),
    ],
    only: Annotated[
        str | None, Parameter(help="Checks to run, by name, separated by commas: `environment`. Default: all.")
    ] = None,
    json: Annotated[bool, Parameter(negative="", help="Print one JSON object instead.")] = False,
    fail_on: Annotated[
        Literal["info", "warn", "critical", "off"], Parameter(help="Lowest severity that makes the exit code 1.")
    ] = "warn",
    tasks: Annotated[int, Parameter(help="How many tasks of each environment are tried.")] = AuditOptions().tasks,
) -> int:
    """Check a configuration before a run: send its rewards what no honest policy sends, and right answers oddly spelt.

    Needs no torch. Rewards run as in training, in processes that can be killed.

    For example:

        posttrain audit configs/demo.toml

        posttrain audit mine.toml --only environment --json --fail-on critical
    """
    from posttrain.faultmap.audit import chosen_checks, run_audit
    from posttrain.settings import load_settings

    if tasks < 1:
        raise InputError("--tasks", tasks, "tries nothing", "Give 1 or more; 12 is the default.")
    names = [name.strip() for name in (only or "").split(",") if name.strip()]
    chosen_checks(names)
    report = run_audit(load_settings(config, overrides), names, AuditOptions(tasks))
    if json:
        from posttrain.rundir.files import strict_json

        print(strict_json(report.to_json(), indent=1))
    else:
        from posttrain.cli.console import pipe_console
        from posttrain.faultmap.audit_text import print_audit

        print_audit(report, pipe_console())
    return 0 if fail_on == "off" else report.exit_code(Severity[fail_on.upper()])
