"""What holds for every test."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# How long a case or its input takes says how busy the machine is; no test is decided by that.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
