"""``posttrain explain``: the fault map itself, without a run."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter


def explain(
    name: Annotated[
        str | None,
        Parameter(
            help="A symptom, a cause, a detector, a signal, or a key of another framework's log. Default: the map."
        ),
    ] = None,
    /,
) -> int:
    """Print the fault map, or what it knows under one name: symptoms, causes, checks, remedies.

    For example:

        posttrain explain

        posttrain explain entropy_collapse

        posttrain explain stale_weights

        posttrain explain completions/clipped_ratio
    """
    from posttrain.cli.console import pipe_console
    from posttrain.faultmap import explain as work

    pipe_console().print(work.whole_map() if name is None else work.explain(name))
    return 0
