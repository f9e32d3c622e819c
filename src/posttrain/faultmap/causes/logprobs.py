"""Causes in layer 3: sampler and trainer are not numerically the same policy."""

from __future__ import annotations

from posttrain.faultmap.cause import Cause
from posttrain.faultmap.causes.remedies import remedies
from posttrain.signals.signal import Layer

CAUSES: tuple[Cause, ...] = (
    Cause(
        "temperature_not_matched",
        Layer.LOGPROBS,
        "Sampler and trainer use different temperatures",
        "The engine samples at one temperature and one side's log-probs are taken at another (raw log-probs from the "
        "engine, logits not divided in the trainer, or the log-prob instead of the logits divided). The gap is there "
        "from the first step, grows with the distance of the temperature from 1, and biases every ratio.",
        "Sample a few hundred tokens at temperature 1: the gap must vanish. At other temperatures the mean of "
        "trainer minus sampler log-prob has a steady sign.",
        "Divide the logits by the sampling temperature before the log-softmax on both sides, and let the engine "
        "return the log-probs of the distribution it samples from.",
        remedies(
            posttrain="`rollout.temperature` rules both sides of the native engine; an engine of your own must "
            "return log-probs of the tempered distribution.",
            trl="Update TRL (vLLM log-probs are tempered only with processed log-probs), or set `temperature=1.0`.",
            verl="Set `actor_rollout_ref.rollout.logprobs_mode=processed_logprobs` and one "
            "`actor_rollout_ref.rollout.temperature`.",
            prime_rl="Keep vLLM on `processed_logprobs`; the trainer divides the logits by the recorded temperature.",
            openrlhf="Use one sampling temperature for engine and trainer, or 1.0.",
        ),
        other_layer=Layer.ROLLOUT,
    ),
    Cause(
        "support_not_matched",
        Layer.LOGPROBS,
        "Top-p, top-k or min-p sampling is not replayed in the trainer",
        "The engine renormalises over the tokens it keeps, the trainer over the whole vocabulary. Every token's "
        "probability differs by the mass cut off: a steady shift of one sign (about -log p for top-p), not noise.",
        "Sample with top-p 1 and top-k off for one step: the shift vanishes.",
        "Sample from the whole vocabulary in training, or replay the mask in the trainer.",
        remedies(
            posttrain="Training refuses anything but `rollout.top_p = 1.0` and `rollout.top_k = 0`; an engine of "
            "your own must not cut either.",
            trl="Set `top_p=1.0, top_k=0, min_p=None`, and look at the model's `generation_config`: its values are "
            "merged in silently.",
            verl="Set `actor_rollout_ref.rollout.top_p=1` and `actor_rollout_ref.rollout.top_k=-1`.",
            prime_rl="Policy sampling forces top-p 1 and top-k -1: take back any override of the engine's.",
            openrlhf="Keep top-p at 1.0.",
        ),
        other_layer=Layer.ROLLOUT,
    ),
    Cause(
        "numerics_differ",
        Layer.LOGPROBS,
        "Types, kernels or quantisation differ between sampler and trainer",
        "The same weights give slightly different log-probs: bf16 against fp32 (most of all in the head), other "
        "attention kernels, FP8 or INT8 in the sampler, expert routing that flips. The gap is there from the first "
        "step, symmetric, and largest at unlikely tokens; it can grow as the policy sharpens.",
        "Score one batch twice in the trainer (must be equal), then in fp32 on both sides: the gap must shrink to "
        "rounding. With a learning rate of 0 it stays constant.",
        "Use the same type in both, an fp32 head on both sides, replay expert routes, or correct for the rest with a "
        "truncated or masked importance weight.",
        remedies(
            posttrain="One model runs in both; `model.compute_dtype` sets its type. Rows whose ratio has the "
            'sampler as denominator (`policy.ratio.denominator = "sampler"`) correct for it.',
            trl="Keep `vllm_importance_sampling_correction=True`; set `cast_lm_head_to_fp32=True` and the same "
            "dtype for model and vLLM.",
            verl="Set `algorithm.rollout_correction.rollout_is=token` (threshold 2.0); compare with "
            "`actor_rollout_ref.rollout.enforce_eager=True` and the same dtype.",
            prime_rl="Check FP8 settings and router replay; A/B one identical batch with FP8 off.",
            openrlhf="Set `--algo.advantage.is_correction_enable` (type `icepop` or `tis`).",
        ),
        other_layer=Layer.ROLLOUT,
    ),
    Cause(
        "prompt_handled_differently",
        Layer.LOGPROBS,
        "Sampler and trainer see different prompt tokens",
        "The chat template, a leading special token, re-tokenised text, left padding without positions or a dropped "
        "reasoning block makes the trainer condition on another prefix. The first sampled token is off most.",
        "Compare the token ids of one request with those in the training batch, one by one. The gap of the first "
        "sampled token is far above that of the rest.",
        "Keep the ids that were sampled and never tokenise text again; render each conversation once.",
        remedies(
            posttrain="Ids are kept from sampling to training; check an engine or template of your own with "
            "`logprobs/first_token_mismatch_mean`.",
            trl="Use a release that concatenates token ids in tool runs; return `prompt_ids` and `completion_ids` "
            "from `rollout_func` as they were sampled.",
            verl="Set `actor_rollout_ref.rollout.multi_turn.tokenization_sanity_check_mode=strict` and use the "
            "agent loop, which works on ids.",
            prime_rl="Use the renderer of the model family; an `auto` renderer for an unmapped model is an error.",
            openrlhf="Let the agent executor work on ids, not on text.",
        ),
        other_layer=Layer.ROLLOUT,
    ),
)
