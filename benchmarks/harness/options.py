"""The options of a benchmark from what it declares: its sizes, small with ``--quick``, and the rivals it may meet."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.record import arguments, parse, rival_python


@dataclass(frozen=True, slots=True)
class Size:
    """A number, or several, given as ``--name-of-it``. ``quick`` is its value with ``--quick`` (``None``: the same)."""

    value: int | tuple[int, ...]
    quick: int | tuple[int, ...] | None = None
    help: str | None = None


@dataclass(frozen=True, slots=True)
class Rival:
    """Another system with an interpreter of its own, given as ``--NAME-python`` and made by ``how``."""

    name: str
    title: str

    @property
    def folder(self) -> str:
        """Its virtual environment."""
        return f".venv-{self.name}"

    @property
    def how(self) -> str:
        """The command that makes it."""
        return f"make {self.name}"


VLLM, TRL = Rival("vllm", "vLLM"), Rival("trl", "TRL")


def options_of(
    name: str,
    description: str | None,
    *,
    repeats: int,
    sizes: Mapping[str, Size] | None = None,
    rivals: Sequence[Rival] = (),
    given: Sequence[str] | None = None,
) -> argparse.Namespace:
    """Options of the command line (or ``given``) of benchmark ``name``.

    What is given explicitly holds in quick runs too. ``options.NAME_python`` is the path of a rival's interpreter, or
    empty where it is left out: on request, and in quick runs by default. Ends the program if it is not there.
    """
    parser = arguments(name, description, repeats)
    for key, size in (sizes or {}).items():
        several = {"nargs": "+"} if isinstance(size.value, tuple) else {}
        shown = " ".join(map(str, size.value)) if isinstance(size.value, tuple) else str(size.value)
        text = f"{size.help}; default: {shown}" if size.help else f"default: {shown}"
        parser.add_argument(f"--{key.replace('_', '-')}", type=int, help=text, **several)
    for rival in rivals:
        text = f"default: {rival.folder}/bin/python ({rival.how}); '' leaves {rival.title} out"
        parser.add_argument(f"--{rival.name}-python", help=text)
    options = parse(parser, name, given)
    for key, size in (sizes or {}).items():
        if getattr(options, key) is None:
            value = size.quick if options.quick and size.quick is not None else size.value
            setattr(options, key, list(value) if isinstance(value, tuple) else value)
    for rival in rivals:
        key = f"{rival.name}_python"
        setattr(options, key, rival_python(options, getattr(options, key), rival.folder, rival.how))
    return options
