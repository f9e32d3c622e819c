"""What is seen, and the causes to be told apart, in the order in which to look."""

from __future__ import annotations

from posttrain.faultmap.cause import Symptom
from posttrain.faultmap.causes.symptoms import logprobs, policy, reward, rollout

SYMPTOMS: tuple[Symptom, ...] = (*reward.SYMPTOMS, *policy.SYMPTOMS, *logprobs.SYMPTOMS, *rollout.SYMPTOMS)
