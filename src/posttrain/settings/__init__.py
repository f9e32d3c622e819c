"""The configuration tree as typed data, validated before anything starts; algorithm rows as data. No torch."""

from posttrain.settings.load import load_settings, settings_from_mapping
from posttrain.settings.tree import Settings

__all__ = ["Settings", "load_settings", "settings_from_mapping"]
