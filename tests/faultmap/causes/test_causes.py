"""The map is whole: names agree, every symptom can be told apart, remedies name settings that exist."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from posttrain.faultmap.cause import Cause, Symptom
from posttrain.faultmap.causes import CAUSES, SYMPTOMS
from posttrain.settings.environments import EnvironmentBase
from posttrain.settings.schema import ENVIRONMENT_KINDS, walk
from posttrain.settings.tree import Settings
from posttrain.signals.framework import Framework
from posttrain.signals.registry import signal_for
from posttrain.signals.signal import Layer

TOLD_APART = (
    "entropy_collapse",
    "entropy_explosion",
    "kl_high",
    "gradient_spike",
    "reward_jump",
    "length_explosion",
    "clip_fraction_high",
    "ratio_tail",
)
SETTINGS = {".".join(path) for path, _ in walk(Settings)}
ENVIRONMENT_FIELDS = {n for m in (EnvironmentBase, *ENVIRONMENT_KINDS.values()) for n in m.model_fields}
OWN_SETTING = re.compile(rf"(?:{'|'.join(Settings.model_fields)})(?:\.\w+)+")


def test_a_name_is_given_once_and_is_the_key() -> None:
    assert all(name == cause.name for name, cause in CAUSES.items())
    assert all(name == symptom.name for name, symptom in SYMPTOMS.items())
    assert not CAUSES.keys() & SYMPTOMS.keys(), "explain finds either by its name"


def test_causes_are_ordered_by_layer() -> None:
    layers = [cause.layer for cause in CAUSES.values()]
    assert layers == sorted(layers)


@pytest.mark.parametrize("symptom", SYMPTOMS.values(), ids=list(SYMPTOMS))
def test_causes_of_a_symptom_exist_in_the_order_in_which_to_look(symptom: Symptom) -> None:
    assert len(set(symptom.causes)) == len(symptom.causes)
    layers = [CAUSES[name].layer for name in symptom.causes if not CAUSES[name].benign]
    assert layers == sorted(layers)
    for signal in symptom.signals:
        signal_for(re.sub(r"\{k\}", "1", re.sub(r"\{(?!k\})\w+\}", "x", signal)))


@pytest.mark.parametrize("name", TOLD_APART)
def test_the_great_symptoms_have_candidates_in_several_layers(name: str) -> None:
    layers = {CAUSES[cause].layer for cause in SYMPTOMS[name].causes}
    assert Layer.POLICY in layers
    assert len(layers) >= 4


def test_every_cause_is_a_candidate_of_some_symptom() -> None:
    assert set(CAUSES) == {name for symptom in SYMPTOMS.values() for name in symptom.causes}


@pytest.mark.parametrize("cause", CAUSES.values(), ids=list(CAUSES))
def test_every_cause_says_all_of_it(cause: Cause) -> None:
    for field in fields(Cause):
        value = getattr(cause, field.name)
        if isinstance(value, str) and field.name != "name" and field.name != "title":
            assert len(value) > 20, field.name
            assert value.endswith("."), field.name
    assert not cause.title.endswith(".")
    assert cause.other_layer != cause.layer
    known = {Framework.POSTTRAIN, Framework.TRL, Framework.VERL, Framework.PRIME_RL, Framework.OPENRLHF}
    if cause.name != "expected_by_construction":
        assert set(cause.remedies) == known


@pytest.mark.parametrize("cause", CAUSES.values(), ids=list(CAUSES))
def test_our_own_remedies_name_settings_and_signals_that_exist(cause: Cause) -> None:
    for code in re.findall(r"`([^`]+)`", cause.remedies.get(Framework.POSTTRAIN, "")):
        setting = OWN_SETTING.match(code)
        if setting and setting[0].startswith("environments.NAME."):
            assert setting[0].rpartition(".")[2] in ENVIRONMENT_FIELDS, code
        elif setting:
            assert setting[0] in SETTINGS, code
        elif re.fullmatch(r"(reward|rollout|schedule|logprobs|policy)/[\w/{}]+", code):
            signal_for(re.sub(r"\{\w+\}", "x", code))
