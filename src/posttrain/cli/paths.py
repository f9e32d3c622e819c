"""Errors about a relative path that is not there: where it was looked for, and whether it lies beside the settings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from posttrain.errors import InputError

_SETTINGS = re.compile(
    r"settings file|run|model\.(path|tokenizer)|environments\.[^.]+(\.[^.]+)*\.(path|evaluation_path|reward)"
)
_NO_PATHS = ("tiny:", "package:")
_FUNCTION = re.compile(r"(.*\.py):[^:/]+")


def explain_path(error: InputError, arguments: Sequence[str]) -> InputError:
    """The error itself, or one that also says which absolute path was tried and why that one.

    ``arguments`` are those of the command line: a file in them that ends in ``.toml`` holds the settings. Paths in it
    are taken from the current directory, which is easily forgotten where the file lies elsewhere.
    """
    path = _missing(error)
    if path is None:
        return error
    config = next((Path(a) for a in arguments if a.endswith(".toml") and Path(a).is_file()), None)
    fix = error.fix if error.fix.endswith((".", "?")) else f"{error.fix}."
    if config is not None and (beside := config.parent / path).exists():
        fix += f" There is one beside {config}: write {str(beside)!r}."
    problem = f"{error.problem}; tried {path.absolute()}, because paths are relative to the current directory"
    return InputError(error.setting, error.value, problem, fix)


def _missing(error: InputError) -> Path | None:
    if not isinstance(error.value, str) or not _SETTINGS.fullmatch(error.setting):
        return None
    text = error.value
    if error.setting.endswith(".reward"):
        function = _FUNCTION.fullmatch(text)
        if function is None:
            return None
        text = function[1]
    path = Path(text).expanduser()
    relative = bool(text) and not text.startswith(_NO_PATHS) and not path.is_absolute()
    return path if relative and not path.exists() else None
