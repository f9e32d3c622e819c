"""``posttrain doctor``: what is wrong with a run, from its log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from posttrain.errors import InputError
from posttrain.signals.framework import Framework


def doctor(
    path: Annotated[
        Path | None,
        Parameter(
            help="A run directory, or a log: TRL `trainer_state.json` or console output, verl JSONL or console lines, "
            "TensorBoard events, a wandb export, plain JSONL or CSV."
        ),
    ] = None,
    /,
    *,
    json: Annotated[bool, Parameter(negative="", help="Print one JSON object instead.")] = False,
    fail_on: Annotated[
        Literal["info", "warn", "critical", "off"], Parameter(help="Lowest severity that makes the exit code 1.")
    ] = "warn",
    follow: Annotated[
        bool, Parameter(negative="", help="Go on reading as the log grows and print what changes; Ctrl-C ends.")
    ] = False,
    framework: Annotated[
        Framework | None, Parameter(help="Whose log it is, where that cannot be told from the log.")
    ] = None,
    example: Annotated[
        bool, Parameter(negative="", help="Look at the sick run that is shipped with posttrain instead of PATH.")
    ] = False,
) -> int:
    """Say what is wrong with a run, from its log alone: six layers, findings, causes, checks, remedies.

    Exit codes: 0 nothing at or above `--fail-on`; 1 a finding; 2 the log cannot be read; 3 a detector failed.

    For example:

        posttrain doctor --example

        posttrain doctor runs/first

        posttrain doctor outputs/checkpoint-500/trainer_state.json --json

        posttrain doctor runs/first --follow --fail-on critical
    """
    from posttrain.faultmap import doctor as work

    if example == (path is not None):
        fix = "Give one: posttrain doctor PATH, or posttrain doctor --example."
        raise InputError("PATH", None if path is None else str(path), "is needed unless --example is given", fix)
    if json and follow:
        raise InputError("--json", True, "prints one object, --follow never ends", "Give one of the two.")
    target = work.EXAMPLE if path is None else path
    if json:
        return _print_json(target, framework, fail_on)

    from posttrain.cli.console import pipe_console
    from posttrain.faultmap.doctor_text import print_diagnosis

    console = pipe_console()
    if follow:
        from posttrain.faultmap.doctor_follow import follow as go_on

        return work.exit_code(go_on(target, lambda: work.examine(target, framework), console), fail_on)
    diagnosis = work.examine(target, framework)
    print_diagnosis(diagnosis, console)
    return work.exit_code(diagnosis, fail_on)


def _print_json(target: Path, framework: Framework | None, fail_on: Literal["info", "warn", "critical", "off"]) -> int:
    from posttrain.faultmap import doctor as work
    from posttrain.faultmap.doctor_json import diagnosis_json
    from posttrain.rundir.files import strict_json

    diagnosis = work.examine(target, framework)
    print(strict_json(diagnosis_json(diagnosis), indent=2))
    return work.exit_code(diagnosis, fail_on)
