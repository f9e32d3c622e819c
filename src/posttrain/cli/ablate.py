"""``posttrain ablate``: paired runs, one change at a time."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def ablate(
    config: Annotated[Path, Parameter(help="Settings file (TOML): the base.")],
    /,
    *overrides: Annotated[
        str,
        Parameter(
            name="SETTINGS",
            allow_leading_hyphen=True,
            help="Settings that replace those of CONFIG in every run: `--section.key value`.",
        ),
    ],
    change: Annotated[
        list[str] | None,
        Parameter(
            negative="",
            help="`section.key=VALUE,VALUE`: each value is an arm, compared with the base. May be given several times.",
        ),
    ] = None,
    seeds: Annotated[int, Parameter(help="Runs of each arm, on seeds from `run.seed` on.")] = 3,
    out: Annotated[
        Path | None,
        Parameter(help="Directory of the runs; finished ones are kept. Default: ablate-NAME-DATE under `rundir.root`."),
    ] = None,
    json: Annotated[bool, Parameter(negative="", help="Print the result as one JSON object instead.")] = False,
) -> int:
    """Change one setting at a time, on paired seeds, and tell a difference from chance.

    Every run is an ordinary `posttrain train` in a process and a directory of its own. Arms are compared with the base
    by held-out reward and success at the end, seed by seed. Settings of all arms are checked before the first starts.
    The same command with the same `--out` goes on where it was left; more seeds or values may be added to it.

    For example:

        posttrain ablate configs/demo.toml --change policy.algorithm=grpo,dapo --seeds 3

        posttrain ablate configs/demo.toml --change rollout.group_size=8,16 --change policy.learning_rate=1e-5

        posttrain ablate mine.toml --change policy.algorithm=dr_grpo --seeds 5 --out runs/why --json --run.steps 50
    """
    import time

    from rich.console import Console

    from posttrain.cli.console import pipe_console
    from posttrain.orchestration.ablation.plan import plan_ablation
    from posttrain.orchestration.ablation.report import document, print_report
    from posttrain.orchestration.ablation.run import INTERRUPTED, Ablation
    from posttrain.rundir.directory import default_run_path

    plan = plan_ablation(config, change or [], seeds, overrides)
    settings = plan.base.settings
    folder = out or default_run_path(f"ablate-{settings.run.name}", time.time(), Path(settings.rundir.root))
    console = Console(stderr=True, highlight=False, markup=False)
    ablation = Ablation(plan, folder, console)
    ablation.open()
    again = [str(config), *overrides, *(f"--change={c}" for c in change or []), f"--seeds={seeds}", f"--out={folder}"]
    console.print(f"{len(plan.arms)} arms x {seeds} seed{'s' if seeds > 1 else ''} in {folder}", soft_wrap=True)
    if seeds == 1:
        console.print("One seed: there will be no interval, no effect size and no p.")
    try:
        code = ablation.run()
    except KeyboardInterrupt:
        code = INTERRUPTED
    if code == INTERRUPTED:
        console.print(f"stopped; go on with: posttrain ablate {shlex.join(again)}", soft_wrap=True)
        return code
    if json:
        from posttrain.rundir.files import strict_json

        print(strict_json(document(plan, ablation.records, folder), indent=1))
    else:
        print_report(plan, ablation.records, pipe_console())
        print(f"result: {folder / 'ablation.json'}")
    return code
