"""Writes docs/reference/algorithms.md from the rows. Run: ``python -m posttrain.settings.algorithms_reference``."""

from __future__ import annotations

from pathlib import Path

from posttrain.settings.algorithms import ROWS
from posttrain.settings.field import Section, rationale
from posttrain.settings.objective import ObjectiveSpec
from posttrain.settings.rows.row import AlgorithmRow
from posttrain.settings.summary import advantage_words, bound_words, ratio_words

DEFAULT_PATH = Path("docs/reference/algorithms.md")

_HEAD = """# Algorithms

<!-- Written by `python -m posttrain.settings.algorithms_reference`; edit the rows, not this page. -->

An algorithm is a row of a table: *objective = advantage x ratio x trust region x correction x anchor x aggregation*,
preceded by what happens to rewards (overlong) and groups (group filter). Choose a row with `policy.algorithm`;
change one value of it with a table of the part's name, for example

```toml
[policy]
algorithm = "grpo"

[policy.trust_region]
clip_high = 0.28
```

Only the values written there replace the row's. `posttrain algorithms ROW` prints a row.

In the formulas: `A` advantage, `lp` log-prob of the policy (has gradient), `old` log-prob before the batch's first
update, `r = exp(lp - old)`, `R` reward, `G` group size, `S` sequences with a trained token, `N` trained tokens, `m` 1
where a token is trained, `|y|` trained tokens of a sequence, `L` generation budget. All denominators are counts over
the whole optimizer step, so micro-batches and ranks change nothing. Log ratios are held within +-20 before `exp`.
"""


def reference_text() -> str:
    """The whole page as Markdown."""
    parts = [_HEAD, _comparison(), *(_row(row) for row in ROWS.values()), _parts()]
    return "\n".join(parts)


def _comparison() -> str:
    lines = [
        "## All rows",
        "",
        "| row | baseline / scale | ratio | bound | aggregation | needs |",
        "|---|---|---|---|---|---|",
    ]
    for row in ROWS.values():
        spec = row.spec
        cells = (advantage_words(spec), ratio_words(spec), bound_words(spec), spec.aggregation.kind, _join(row.needs))
        lines.append(f"| [{row.name}](#{row.name}) | {' | '.join(_cell(cell) for cell in cells)} |")
    return "\n".join([*lines, ""])


def _row(row: AlgorithmRow) -> str:
    lines = [f"## {row.name}", "", f"**{row.title}.** Source: {row.source}.", "", "```", *row.formula, "```", ""]
    lines += [
        f"- Trains on data {row.distribution}.",
        f"- Needs: {_join(row.needs)}.",
        f"- Assumes: {row.assumes}.",
        f"- Addresses: {row.addresses}.",
        f"- Values that differ from the parts' defaults: {_overrides(row.spec)}.",
        "",
        "Pitfalls:",
        "",
    ]
    lines += [f"- {pitfall}" for pitfall in row.pitfalls]
    lines += ["", "Differences:", ""]
    lines += [f"- {who}: {what}." for who, what in row.differences]
    return "\n".join([*lines, ""])


def _parts() -> str:
    lines = ["## Parts", ""]
    for name, info in ObjectiveSpec.model_fields.items():
        part: type[Section] = type(info.default)
        lines += [f"### policy.{name}", "", (part.__doc__ or "").split(": ", 1)[-1].strip().capitalize(), ""]
        lines += ["| key | default | meaning | why |", "|---|---|---|---|"]
        for key, field in part.model_fields.items():
            text = rationale(field)
            why = text.reason if text.assumes == "any run" else f"{text.reason} (assumes: {text.assumes})"
            default = "absent" if field.default is None else f"`{_value(field.default)}`"
            lines.append(f"| `{key}` | {default} | {_cell(text.description)} | {_cell(why)} |")
        lines.append("")
    return "\n".join(lines)


def _overrides(spec: ObjectiveSpec) -> str:
    plain = ObjectiveSpec()
    found = [
        f"`{name}.{key} = {_value(value)}`"
        for name in ObjectiveSpec.model_fields
        for key, value in getattr(spec, name).model_dump().items()
        if value != getattr(getattr(plain, name), key)
    ]
    return ", ".join(found) if found else "none"


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else f"{value}"


def _join(items: tuple[str, ...]) -> str:
    return "; ".join(items) if items else "nothing beyond rewards"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    """Write the page into the current directory's docs."""
    DEFAULT_PATH.parent.mkdir(parents=True, exist_ok=True)
    DEFAULT_PATH.write_text(reference_text(), encoding="utf-8")


if __name__ == "__main__":
    main()
