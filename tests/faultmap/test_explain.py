"""The map without a run: every name leads somewhere, and a wrong one to the nearest."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console, RenderableType

from posttrain.errors import InputError
from posttrain.faultmap.causes import CAUSES, SYMPTOMS
from posttrain.faultmap.detectors import DETECTORS
from posttrain.faultmap.explain import explain, whole_map
from posttrain.faultmap.lookup import look_up
from posttrain.signals.aliases import ALIASES
from posttrain.signals.framework import Framework
from posttrain.signals.registry import SIGNALS


def text(renderable: RenderableType) -> str:
    out = io.StringIO()
    Console(file=out, width=80, highlight=False, markup=False).print(renderable)
    assert max(len(line) for line in out.getvalue().splitlines()) <= 80
    return " ".join(out.getvalue().split())


def test_the_map_has_every_symptom_under_its_layer_with_its_causes() -> None:
    shown = text(whole_map())
    assert all(name in shown for name in SYMPTOMS)
    assert "4:stale_weights, stale_cache" in shown
    assert shown.index("2 update") < shown.index("kl_high") < shown.index("3 log-probs") < shown.index("mismatch_jump")


@pytest.mark.parametrize("names", [list(SYMPTOMS), list(CAUSES), [d.name for d in DETECTORS], list(SIGNALS)])
def test_every_name_of_the_map_is_explained(names: list[str]) -> None:
    for name in names:
        assert name in text(explain(name))


def test_keys_of_every_framework_leads_to_its_signal() -> None:
    for framework, aliases in ALIASES.items():
        for alias in aliases[::9] if framework is not Framework.PLAIN else ():
            entry = look_up(re.sub(r"\{\w+\}", "x", re.sub(r"\{[kn]\}", "4", alias.key)))
            assert entry.keys or entry.signal, f"{framework} {alias.key}"


def test_a_symptom_tells_its_causes_apart() -> None:
    shown = text(explain("kl_high"))
    assert "2 update learning_rate_too_high" in shown
    assert "6 schedule data_too_old" in shown
    assert "Check: Multiply the weight by ten" in shown


def test_a_cause_says_its_remedy_in_every_framework_and_where_it_is_seen() -> None:
    shown = text(explain("anchor_too_strong"))
    for part in ("policy.anchor.weight", "TRL Lower `beta`", "verl Lower", "prime-rl", "OpenRLHF", "anchor_blocks"):
        assert part in shown, part


def test_a_foreign_key_is_told_with_its_caveat_and_its_signal() -> None:
    shown = text(explain("completions/clipped_ratio"))
    assert "TRL `rollout/truncated_share`" in shown
    assert "signal in 4 rollout" in shown
    assert "response_length/clip_ratio" in shown, "what others call it"


@pytest.mark.parametrize(
    ("wrong", "right"), [("entropy_colapse", "entropy_collapse"), ("policy/entrop", "policy/entropy"), ("", "explain")]
)
def test_a_wrong_name_leads_to_the_nearest(wrong: str, right: str) -> None:
    with pytest.raises(InputError, match=right):
        explain(wrong)
