"""Body of a grading process: standard library only, run as a script.

Reads one JSON object a line on standard input, answers one a line on what was standard output. The code it
calls gets another standard output (the log) and an empty standard input, so that nothing it prints or reads
can disturb the exchange.

Requests: ``{"path": [...]}`` once, then ``{"do": "describe" | "call", "target": ..., "arguments": {...},
"limit_s": ...}``. Answers: ``{"value": ...}`` or ``{"error": text, "kind": "load" | "raise"}``.
"""

from __future__ import annotations

import asyncio
import faulthandler
import importlib
import importlib.util
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

_GRACE_S = 2.0


def load(target: str) -> Callable[..., Any]:
    """The function named by ``package.module:function`` or ``path/file.py:function``."""
    module_name, _, function_name = target.rpartition(":")
    if module_name.endswith(".py"):
        path = os.path.abspath(module_name)
        spec = importlib.util.spec_from_file_location(f"reward_{os.path.basename(path)[:-3]}", path)
        if spec is None or spec.loader is None or not os.path.isfile(path):
            raise FileNotFoundError(f"no file {path}")
        sys.path.insert(0, os.path.dirname(path))
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(module_name)
    found = getattr(module, function_name, None)
    if found is None:
        raise AttributeError(f"{module_name} has no {function_name}")
    if not callable(found):
        raise TypeError(f"{function_name} in {module_name} is not a function but {type(found).__name__}")
    return found


def describe(function: Callable[..., Any]) -> list[dict[str, Any]]:
    """Parameters of a function: name, kind, and whether it must be given."""
    return [
        {"name": p.name, "kind": p.kind.name, "required": p.default is inspect.Parameter.empty}
        for p in inspect.signature(function).parameters.values()
    ]


def plain(value: Any) -> Any:
    """Numbers and arrays of any library as plain ones; what has no plain form as its type's name."""
    for method in ("tolist", "item"):
        convert = getattr(value, method, None)
        if callable(convert):
            return convert()
    return f"<{type(value).__name__}>"


def answer(request: dict[str, Any], loaded: dict[str, Callable[..., Any]]) -> dict[str, Any]:
    """Serve one request. Never raises for what the called code does, short of ending the process."""
    target = request["target"]
    if target not in loaded:
        try:
            loaded[target] = load(target)
        except BaseException as error:
            return {"error": _text(error), "kind": "load"}
    try:
        if request["do"] == "describe":
            return {"value": describe(loaded[target])}
        value = loaded[target](**request["arguments"])
        return {"value": asyncio.run(value) if inspect.iscoroutine(value) else value}
    except BaseException as error:
        return {"error": _text(error), "kind": "raise"}


def _text(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"[:2000]


def serve() -> None:
    """Answer requests until standard input ends."""
    requests, answers = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(2, 1)
    silent = os.fdopen(nowhere, "w")
    sys.path[:] = json.loads(requests.readline())["path"]
    loaded: dict[str, Callable[..., Any]] = {}
    for line in requests:
        request = json.loads(line)
        # A timer outside the interpreter: it ends this process in a stuck call even if whoever
        # started it is gone and the call never lets another thread run.
        faulthandler.dump_traceback_later(request["limit_s"] + _GRACE_S, exit=True, file=silent)
        reply = answer(request, loaded)
        faulthandler.cancel_dump_traceback_later()
        try:
            text = json.dumps(reply, default=plain)
        except (TypeError, ValueError, RecursionError) as error:
            text = json.dumps({"error": _text(error), "kind": "raise"})
        answers.write(text + "\n")
        answers.flush()
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
