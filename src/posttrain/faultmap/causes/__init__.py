"""The map: what is seen (``SYMPTOMS``) and what can be wrong (``CAUSES``), by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from posttrain.faultmap.cause import Cause, Symptom
from posttrain.faultmap.causes import logprobs, policy, reward, rollout, schedule, symptoms

CAUSES: Mapping[str, Cause] = MappingProxyType(
    {
        cause.name: cause
        for table in (reward.CAUSES, policy.CAUSES, logprobs.CAUSES, rollout.CAUSES, schedule.CAUSES)
        for cause in table
    }
)
"""All causes by name, by layer in the order in which to look."""

SYMPTOMS: Mapping[str, Symptom] = MappingProxyType({symptom.name: symptom for symptom in symptoms.SYMPTOMS})
"""All symptoms by name."""
