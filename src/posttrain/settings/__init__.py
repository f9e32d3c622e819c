"""The configuration tree as typed data, validated before anything starts; algorithm rows as data. No torch."""

from posttrain.settings.fixed import FixedSettings
from posttrain.settings.load import (
    any_settings_from_mapping,
    load_any_settings,
    load_settings,
    settings_from_mapping,
)
from posttrain.settings.tree import Settings

__all__ = [
    "FixedSettings",
    "Settings",
    "any_settings_from_mapping",
    "load_any_settings",
    "load_settings",
    "settings_from_mapping",
]
