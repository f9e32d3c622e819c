"""The table of algorithms: overrides, needs, and a page that is current."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from pydantic import ValidationError
from rich.console import Console

from posttrain.cli.algorithms import print_row
from posttrain.errors import InputError
from posttrain.settings.algorithms import ROWS, algorithm_row
from posttrain.settings.algorithms_reference import DEFAULT_PATH, reference_text
from posttrain.settings.objective import Advantage, Anchor, Need, ObjectiveSpec, Overlong, Ratio, TrustRegion


def test_reference_page_is_current():
    page = Path(__file__).parents[2] / DEFAULT_PATH
    assert page.read_text(encoding="utf-8") == reference_text(), (
        "run: python -m posttrain.settings.algorithms_reference"
    )


def test_an_override_replaces_only_what_is_written():
    spec = algorithm_row("dapo").spec.override(trust_region=TrustRegion(clip_low=0.1), advantage=None)
    assert spec.trust_region.clip_low == 0.1
    assert spec.trust_region.clip_high == 0.28
    assert spec.advantage == ROWS["dapo"].spec.advantage


def test_an_override_may_restore_a_default():
    """Writing a part's own default is an override too: unset and equal to the default are different things."""
    assert algorithm_row("dapo").spec.override(trust_region=TrustRegion(clip_high=0.2)).trust_region.clip_high == 0.2


@pytest.mark.parametrize(
    "parts",
    [
        {"trust_region": TrustRegion(kind="clip")},
        {"advantage": Advantage(scale="group_std", baseline="group_mean"), "trust_region": TrustRegion(kind="clip")},
    ],
)
def test_a_clip_without_a_ratio_is_refused(parts):
    with pytest.raises(ValidationError, match="ratio"):
        algorithm_row("reinforce_loo").spec.override(**parts)


def test_an_unknown_part_is_a_programming_error():
    with pytest.raises(KeyError, match="trust_regoin"):
        ObjectiveSpec().override(trust_regoin=TrustRegion())


def test_unknown_row_names_the_nearest_and_all():
    with pytest.raises(InputError, match="'grpo'") as caught:
        algorithm_row("grop")
    assert "reinforce_loo" in str(caught.value)


def test_needs_follow_the_parts():
    grpo = algorithm_row("grpo").spec
    assert Need.REFERENCE not in grpo.needs
    assert Need.REFERENCE in grpo.override(anchor=Anchor(weight=0.04)).needs
    assert Need.SINGLE_UPDATE in algorithm_row("reinforce_loo").needs
    assert Need.GROUP not in algorithm_row("reinforce").needs
    by_sampler = grpo.override(ratio=Ratio(denominator="sampler"))
    assert Need.SAMPLER_LOGPROBS in by_sampler.needs
    assert Need.PROXIMAL_LOGPROBS not in by_sampler.needs


def test_generation_budget_fills_only_what_was_left_open():
    assert algorithm_row("dr_grpo").spec.for_generation_budget(512).aggregation.length == 512
    assert algorithm_row("grpo").spec.for_generation_budget(512) == algorithm_row("grpo").spec
    dapo = algorithm_row("dapo").spec
    assert dapo.for_generation_budget(20480).overlong.buffer_tokens == 4096
    written = dapo.override(overlong=Overlong(buffer_tokens=7)).for_generation_budget(20480)
    assert written.overlong.buffer_tokens == 7


@pytest.mark.parametrize(
    ("place", "estimator", "pair"),
    [
        ("loss", "k1", "k1_in_loss"),
        ("loss", "k2", None),
        ("loss", "k3", None),
        ("loss", "k3_corrected", None),
        ("reward", "k1", None),
        ("reward", "k3", "k3_in_reward"),
    ],
)
def test_biased_anchors_are_named(place, estimator, pair):
    assert Anchor(place=place, estimator=estimator).biased_pair == pair


@pytest.mark.parametrize("estimator", ["k2", "k3_corrected"])
def test_estimators_that_work_by_their_gradient_have_no_place_in_the_reward(estimator):
    with pytest.raises(ValidationError, match="place is 'loss'"):
        Anchor(place="reward", estimator=estimator)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_every_row_is_complete(row):
    assert row.name == next(name for name, other in ROWS.items() if other is row)
    assert all((row.title, row.formula, row.source, row.assumes, row.addresses, row.pitfalls, row.differences))


def test_a_critics_settings_are_shown_where_they_are_read():
    def shown(name):
        console = Console(record=True, width=200, file=io.StringIO())
        print_row(name, console)
        return console.export_text()

    assert "critic.gae_lambda" in shown("ppo")
    assert "critic." not in shown("grpo").split("parts (override")[1]
