"""The documentation: links lead somewhere, every name in it exists, its snippets work."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from synthetic_run import build_run

from posttrain.cli.main import app
from posttrain.environment.build import build_environments
from posttrain.model.tiny import CONTEXT_LENGTH, tiny_tokenizer
from posttrain.orchestration.fixed_data.dataset import load_data
from posttrain.orchestration.fixed_data.render import Renderer
from posttrain.orchestration.journal import Draw, Journal
from posttrain.settings.environments import EnvironmentBase
from posttrain.settings.fixed import FixedSettings, check_fixed_settings, chosen_part
from posttrain.settings.load import any_settings_from_mapping, load_any_settings
from posttrain.settings.rules import check_settings
from posttrain.settings.schema import ENVIRONMENT_KINDS, section_of, walk
from posttrain.settings.tree import Settings
from posttrain.signals.registry import SIGNALS, UnknownSignalError, signal_for

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
GENERATED = {ROOT / "docs" / name for name in ("benchmarks.md", "fault-map.md", "metrics.md", "run-directory.md")}
WRITTEN = [p for p in PAGES if p not in GENERATED and p.parent.name != "reference"]
MINIMAL: Mapping[str, Any] = {"model": {"path": "tiny:llama"}, "environments": {"a": {"kind": "arithmetic"}}}
COMMANDS = ("train", "resume", "eval", "report", "view", "algorithms", "doctor", "explain", "audit", "ablate")
SECTIONS = tuple({**Settings.model_fields, **FixedSettings.model_fields})
LAYERS = {name.partition("/")[0] for name in SIGNALS}


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and what the comment above it says (``run``, ``file: NAME``)."""

    page: Path
    line: int
    language: str
    text: str
    mark: str

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def file(self) -> str:
        return self.mark.removeprefix("file:").strip() if self.mark.startswith("file:") else ""


def blocks_of(page: Path) -> Iterator[Block]:
    lines = page.read_text().splitlines()
    start, language, mark = -1, "", ""
    for number, line in enumerate(lines):
        fence = re.fullmatch(r"\s*```(\w*)", line)
        if not fence:
            continue
        if start < 0:
            above = lines[number - 1] if number else ""
            comment = re.fullmatch(r"<!-- (.*) -->", above)
            start, language, mark = number, fence[1], comment[1] if comment else ""
        else:
            yield Block(page, start + 1, language, "\n".join(lines[start + 1 : number]) + "\n", mark)
            start = -1
    assert start < 0, f"{page}: a block is not closed"


BLOCKS = [block for page in WRITTEN for block in blocks_of(page)]


def prose_of(page: Path) -> str:
    return re.sub(r"^\s*```.*?^\s*```", "", page.read_text(), flags=re.S | re.M)


def inline_code(page: Path) -> list[str]:
    return re.findall(r"`([^`\n]+)`", prose_of(page))


def anchors_of(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", prose_of(page), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", h.strip().lower()).replace(" ", "-") for h in headings}


def names(pages: list[Path]) -> list[str]:
    return [str(p.relative_to(ROOT)) for p in pages]


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(page)):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{target} does not exist"
        if anchor:
            assert anchor in anchors_of(file), f"{target}: there is no such heading"


def test_the_index_links_every_page() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / t).resolve() for t in re.findall(r"\]\(([^)#\s]+)\)", index.read_text())}
    missing = [str(p) for p in ROOT.glob("docs/**/*.md") if p != index and p not in linked]
    assert missing == []


def command_lines() -> Iterator[tuple[str, list[str]]]:
    for block in BLOCKS:
        if block.language in ("", "bash", "sh"):
            for line in block.text.splitlines():
                yield block.name, line.partition("  #")[0].split()
    for page in WRITTEN:
        for code in inline_code(page):
            yield str(page.relative_to(ROOT)), code.split()


def parameters_of(command: str) -> set[str]:
    known = {"--help", "--version"}
    for argument in app[command].assemble_argument_collection():
        known |= set(argument.names)
    return known


def test_commands_and_flags_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    known = {name: parameters_of(name) for name in COMMANDS}
    seen: set[str] = set()
    for place, words in command_lines():
        if words[:1] == ["make"] and len(words) > 1:
            assert words[1] in targets, f"{place}: there is no make {words[1]}"
        if words[:1] != ["posttrain"] or len(words) < 2 or words[1].startswith("-"):
            continue
        command = words[1]
        assert command in COMMANDS, f"{place}: there is no posttrain {command}"
        seen.add(command)
        for word in words[2:]:
            flag = word.partition("=")[0]
            if flag.startswith("--") and "." not in flag:
                assert flag in known[command], f"{place}: posttrain {command} has no {flag}"
    assert seen == set(COMMANDS)


def setting_names() -> set[str]:
    """Every dotted name that may be written, sections included; environments under ``environments.NAME``."""
    found = {".".join(path) for root in (Settings, FixedSettings) for path, _ in walk(root)}
    for model in (EnvironmentBase, *ENVIRONMENT_KINDS.values()):
        for name, info in model.model_fields.items():
            inner = section_of(info.annotation)
            found.add(f"environments.NAME.{name}")
            found |= {f"environments.NAME.{name}.{below}" for below in (inner.model_fields if inner else ())}
    prefixes = {".".join(name.split(".")[:n]) for name in found for n in range(1, name.count(".") + 2)}
    return found | prefixes


KNOWN_SETTINGS = setting_names()
A_SETTING = re.compile(rf"(?:--)?((?:{'|'.join(SECTIONS)})(?:\.\w+)+)")
FILE_ENDINGS = (".json", ".jsonl", ".toml", ".py", ".parquet", ".sqlite", ".md")


def is_known_setting(name: str) -> bool:
    parts = name.split(".")
    if parts[0] == "environments":
        return ".".join(["environments", "NAME", *parts[2:]]) in KNOWN_SETTINGS
    return any(part.isupper() for part in parts) or name in KNOWN_SETTINGS


def mentioned_settings(page: Path) -> Iterator[str]:
    shell = " ".join(b.text for b in BLOCKS if b.page == page and b.language in ("", "bash", "sh"))
    for code in [*inline_code(page), *re.findall(r"--[\w.]+", shell)]:
        for word in code.split():
            match = A_SETTING.match(word)
            if match and not match[1].endswith(FILE_ENDINGS):
                yield match[1]


@pytest.mark.parametrize("page", WRITTEN, ids=names(WRITTEN))
def test_settings_and_sections_exist(page: Path) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name in mentioned_settings(page):
        assert is_known_setting(name), f"there is no setting {name}"
    for code in inline_code(page):
        for table in re.findall(r"^\[([a-z_.A-Z]+)\]$", code):
            assert table in extras or is_known_setting(table) or table in KNOWN_SETTINGS, f"there is no [{table}]"


def test_a_wrong_setting_would_be_noticed() -> None:
    assert not is_known_setting("policy.learning_rates")
    assert not is_known_setting("environments.mine.sucess_threshold")
    assert is_known_setting("environments.mine.success_threshold")
    assert is_known_setting("policy.trust_region.clip_high")


@pytest.mark.parametrize("page", WRITTEN, ids=names(WRITTEN))
def test_signals_and_files_exist(page: Path) -> None:
    for code in inline_code(page):
        word = code.split()[0]
        if re.match(r"(configs|src|scripts|tests|benchmarks|docs)/[\w./-]+$", word):
            assert (ROOT / word).exists(), f"there is no {word}"
        head, slash, rest = word.partition("/")
        if not slash or head not in LAYERS or not rest or word.endswith(("/", *FILE_ENDINGS)) or "*" in word:
            continue
        if (ROOT / "src" / "posttrain" / word).exists() or word in SIGNALS:
            continue
        try:
            signal_for(word)
        except UnknownSignalError as error:
            pytest.fail(str(error))


TOML = [b for b in BLOCKS if b.language == "toml"]


@pytest.mark.parametrize("block", TOML, ids=lambda b: b.name)
def test_settings_files_are_accepted(block: Block) -> None:
    """Sections that a snippet leaves out are those of the smallest run; what it writes must be valid together."""
    written = tomllib.loads(block.text)
    settings = any_settings_from_mapping(written if "data" in written else {**MINIMAL, **written})
    if isinstance(settings, FixedSettings):
        check_fixed_settings(settings)
    else:
        check_settings(settings)


PAGES_WITH_FILES = sorted({b.page for b in BLOCKS if b.file.endswith(".toml")})


@pytest.mark.parametrize("page", PAGES_WITH_FILES, ids=names(PAGES_WITH_FILES))
def test_the_files_of_a_page_work_together(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written side by side as a reader would, they give tasks and graders (real processes)."""
    files = [b for b in BLOCKS if b.page == page and b.file]
    for block in files:
        (tmp_path / block.file).write_text(block.text)
    monkeypatch.chdir(tmp_path)
    for block in files:
        if not block.file.endswith(".toml"):
            continue
        settings = load_any_settings(block.file)
        if isinstance(settings, FixedSettings):
            check_fixed_settings(settings)
            row, _ = chosen_part(settings.policy)
            rows = load_data(settings.data, row.row_kind, Renderer(tiny_tokenizer(), ()), CONTEXT_LENGTH)
            assert rows.train
            assert rows.held_out
            continue
        if any(e.kind == "reasoning_gym" for e in settings.environments.values()):
            pytest.importorskip("reasoning_gym")
        environments = build_environments(settings.environments)
        try:
            assert all(e.tasks().train and e.tasks().evaluation for e in environments)
        finally:
            for environment in environments:
                environment.close()


PYTHON = [b for b in BLOCKS if b.language == "python"]


@pytest.mark.parametrize("block", PYTHON, ids=lambda b: b.name)
def test_python_compiles(block: Block) -> None:
    compile(block.text, block.name, "exec")


@pytest.fixture(scope="module")
def finished_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``runs/NAME`` and ``runs/OTHER``, as the pages assume."""
    folder = tmp_path_factory.mktemp("docs")
    for seed, name in enumerate(("NAME", "OTHER")):
        path = folder / "runs" / name
        build_run(path, seed=seed)
        with Journal.open(path / "journal.sqlite") as journal:
            journal.begin_attempt()
            journal.drawn([Draw("a/0/0", "a", 0), Draw("b/0/1", "b", 1)])
            journal.consumed(["a/0/0"], 1)
            journal.discarded("b/0/1", "all members succeed", 1)
            journal.step_done(1, 1)
    return folder


RUNNABLE = [b for b in PYTHON if b.mark == "run"]


@pytest.mark.parametrize("block", RUNNABLE, ids=lambda b: b.name)
def test_python_runs(
    block: Block, finished_runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if "pandas" in block.text:
        pytest.importorskip("pandas")
    monkeypatch.chdir(finished_runs)
    exec(compile(block.text, block.name, "exec"), {"__name__": "snippet"})
    printed = capsys.readouterr().out
    assert printed.strip()
    assert "nan" not in printed.lower().split()


def test_json_lines_are_json() -> None:
    for block in BLOCKS:
        if block.language == "json" and block.file.endswith(".jsonl"):
            for line in block.text.splitlines():
                json.loads(line)


def test_no_snippet_reads_what_it_should_not() -> None:
    """Pages are read by strangers: no absolute path of anybody's machine."""
    for page in PAGES:
        assert not re.search(r"(?<![\w.])/(work|home|root|tmp|Users)/", page.read_text()), page
