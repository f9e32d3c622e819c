"""The layers: which exist, what they may import, and that the light ones work without torch."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "posttrain"
LIGHT = ("errors", "trajectory", "settings", "signals", "rundir", "environment", "schedule", "faultmap")

IMPORT_WITHOUT_TORCH = """
import importlib, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers", "peft", "safetensors"):
            raise ImportError(f"{name} is not there")

sys.meta_path.insert(0, Refuse())
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def modules_of(part: str) -> list[str]:
    folder = PACKAGE / part
    files = sorted(folder.rglob("*.py")) if folder.is_dir() else [PACKAGE / f"{part}.py"]
    names = [".".join(file.relative_to(ROOT / "src").with_suffix("").parts) for file in files]
    return [name.removesuffix(".__init__") for name in names if not name.endswith("__main__")]


@pytest.mark.parametrize("part", [*LIGHT, "cli"])
def test_a_light_layer_needs_no_torch(part: str) -> None:
    modules = modules_of(part)
    assert modules
    done = subprocess.run([sys.executable, "-c", IMPORT_WITHOUT_TORCH, *modules], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_every_folder_has_its_place_in_the_import_contract() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contract = settings["tool"]["importlinter"]["contracts"][0]
    listed = {layer.removeprefix("posttrain.") for layer in contract["layers"]}
    present = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    present |= {path.stem for path in PACKAGE.glob("*.py") if path.stem != "__init__"}
    assert present == listed


def test_files_stay_short_enough_to_read() -> None:
    too_long = {
        str(path.relative_to(ROOT)): lines
        for path in PACKAGE.rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > 400
    }
    assert too_long == {}


def test_the_versions_file_names_only_packages_that_are_declared_or_theirs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [*project["dependencies"], *(d for extra in project["optional-dependencies"].values() for d in extra)]
    names = {_normal(requirement) for requirement in declared}
    pinned = {
        _normal(line)
        for line in (ROOT / "scripts" / "tested-versions.txt").read_text().splitlines()
        if line and not line.startswith("#")
    }
    assert pinned - names <= {"accelerate", "huggingface-hub"}


def _normal(requirement: str) -> str:
    name = requirement
    for mark in "[<>=!~ ;":
        name = name.split(mark)[0]
    return name.lower().replace("_", "-")
