"""What the rows say about themselves before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence

from posttrain.orchestration.fixed_data.dataset import Example, FixedData
from posttrain.orchestration.fixed_data.style import FEATURES, pair_auc, pair_features

_TELLING = 0.7
"""From here on a surface feature is named: it predicts seven of ten pairs."""


def data_signals(data: FixedData) -> dict[str, float]:
    """Counts, and how well length and style predict "chosen"."""
    found = {
        "data/train_rows": float(len(data.train)),
        "data/held_out_rows": float(len(data.held_out)),
        "data/too_long_rows": float(data.dropped.too_long),
        "data/unusable_rows": float(sum(data.dropped.unusable.values())),
    }
    for name, auc in _surface(data.train).items():
        found["data/length_auc" if name == "tokens" else f"data/style_auc/{name}"] = auc
    return found


def data_warnings(data: FixedData) -> list[str]:
    """One line for rows left out and for each feature that a policy or reward model could learn instead."""
    lines: list[str] = []
    if data.dropped.too_long:
        lines.append(f"! {data.dropped.too_long} rows were left out because they are longer than data.max_tokens")
    for reason, count in data.dropped.unusable.items():
        lines.append(f"! {count} rows were left out: {reason}")
    for name, auc in _surface(data.train).items():
        if max(auc, 1.0 - auc) >= _TELLING:
            more = "more" if auc > 0.5 else "fewer"
            lines.append(f"! the answer with {more} {name} was chosen in {max(auc, 1.0 - auc):.0%} of the pairs")
    return lines


def _surface(rows: Sequence[Example]) -> dict[str, float]:
    if len(rows[0].answers) < 2:
        return {}
    chosen, rejected = pair_features(rows)
    return {name: pair_auc(chosen[:, i], rejected[:, i]) for i, name in enumerate(FEATURES)}
