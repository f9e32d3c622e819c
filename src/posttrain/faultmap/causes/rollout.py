"""Causes in layer 4: what the engine does."""

from __future__ import annotations

from posttrain.faultmap.cause import Cause
from posttrain.faultmap.causes.remedies import remedies
from posttrain.signals.signal import Layer

CAUSES: tuple[Cause, ...] = (
    Cause(
        "stale_weights",
        Layer.ROLLOUT,
        "The engine goes on sampling with old weights",
        "The update never reaches the engine, or is overwritten when it wakes up (weights read again from disk, an "
        "adapter that no request names). The gap between sampler and trainer is small while the weights are equal, "
        "jumps at the first update that counts and grows with every further one; the trained policy is never sampled.",
        "Give the engine a greedy prompt before and after a large update: an unchanged text means old weights. "
        "Compare a checksum of one tensor on both sides after each update.",
        "Send the weights again after waking, name the adapter in each request, and check a version or checksum with "
        "every update.",
        remedies(
            posttrain="The native engine stamps every segment with its version: compare "
            "`schedule/staleness_max` and the `policy_version` column of the trajectories.",
            trl="Set `vllm_enable_sleep_mode=False` and compare: in some versions waking loads the weights from "
            "disk after the update.",
            verl="Try `actor_rollout_ref.rollout.free_cache_engine=False`; with LoRA look whether the server has "
            "the adapter loaded at all.",
            prime_rl="Compare `watcher/policy_version` with the trainer's step, and look for a partial weight load.",
            openrlhf="Try without `--vllm.enable_sleep`, and check that the broadcast ends before generation.",
        ),
        other_layer=Layer.SCHEDULE,
    ),
    Cause(
        "stale_cache",
        Layer.ROLLOUT,
        "Keys and values of old weights are reused",
        "A prefix cache that is not emptied at a weight update serves prompts that recur (system prompts above all) "
        "with keys and values of earlier weights. The gap grows step by step as the cached weights age, and falls "
        "back after a restart.",
        "Compare the gap of prompts seen before with that of new prompts; switch prefix caching off for a few steps.",
        "Empty the cache at each update, or salt its key with the weight version.",
        remedies(
            posttrain="The native engine keeps no keys and values beyond a batch; an engine of your own must salt "
            "its cache with the version it was given.",
            trl="Reset vLLM's prefix cache after each weight update, or switch prefix caching off.",
            verl="Set `actor_rollout_ref.rollout.enable_prefix_caching=False` to compare, or "
            "`free_cache_engine=True` so that the cache is dropped between steps.",
            prime_rl="The cache key is salted per version; check that your client sends the salt.",
            openrlhf="Run without `--vllm.enable_prefix_caching`.",
        ),
        other_layer=Layer.SCHEDULE,
    ),
    Cause(
        "weights_corrupted_in_sync",
        Layer.ROLLOUT,
        "Weights are damaged on their way to the engine",
        "A tensor is permuted, cut, left out or written in another layout when the engine reloads (fused experts, tied "
        "head, quantised copies). Text turns to another language or to noise after one particular update, and the gap "
        "jumps to many times its level at once.",
        "Synchronise without an update: greedy text must be the same before and after. Compare checksums tensor by "
        "tensor.",
        "Repair or replace the loader; verify a checksum at each update and stop on a difference.",
        remedies(
            posttrain="The native engine takes the trainer's tensors as they are; for an engine of your own run "
            "the conformance suite under `tests/conformance`.",
            trl='Update vLLM together with TRL; for mixture-of-experts models compare with `vllm_mode="server"`.',
            verl="Compare another checkpoint engine backend, and bf16 instead of FP8 in the rollout.",
            prime_rl="Compare the `filesystem` broadcast with `nccl`; look for tensors the reload skipped.",
            openrlhf="Compare another `--vllm.sync_backend`.",
        ),
        other_layer=Layer.PARALLEL,
    ),
    Cause(
        "stop_token_missed",
        Layer.ROLLOUT,
        "The stop token is not recognised",
        "The model ends its turn with a token that the engine does not stop at, or that the trainer does not count as "
        "an end. In the first case every attempt runs to the cap; in the second the attempts are shorter than the cap "
        "and are still counted (and perhaps masked) as truncated.",
        "Look at the last token of ten attempts. Truncated share near 1 while the longest attempt stays below the cap "
        "is the second case; the model's own end token in mid-text is the first.",
        "Give engine and trainer every end token of the model (chat templates often add one).",
        remedies(
            posttrain="Stop tokens come from the model's generation settings and its template: see the finish "
            "reasons `rollout/finish/{reason}` and the last ids in `posttrain view RUN --show truncated`.",
            trl="Set every id as `eos_token_id` of the model's generation config (1.16 and later read them all); "
            "until then keep `mask_truncated_completions=False`.",
            verl="Check `eos_token_id` of the model's generation config and `actor_rollout_ref.rollout.ignore_eos`.",
            prime_rl="Check the renderer's stop tokens for this model family.",
            openrlhf="Check the end token of tokenizer and template; see `rollout/truncated_rate`.",
        ),
        other_layer=Layer.REWARD,
    ),
    Cause(
        "length_cap_too_short",
        Layer.ROLLOUT,
        "The cap on new tokens cuts answers off",
        "Attempts need more tokens than they may have. What is cut off is graded as a failure, so that the cap and not "
        "the policy decides the reward; as answers get longer in training, reward falls without any loss of ability.",
        "Grade ten truncated attempts after letting them go on with twice the cap. Compare the reward of finished and "
        "of truncated attempts.",
        "Raise the cap, or teach shorter answers (soft overlong penalty); do not punish cut attempts as wrong ones.",
        remedies(
            posttrain="Raise `rollout.max_new_tokens`, or set `policy.overlong.soft_penalty = true`, or "
            '`policy.overlong.filter = "loss"`.',
            trl="Raise `max_completion_length`, or set `mask_truncated_completions=True`.",
            verl="Raise `data.max_response_length` (and `max_model_len`), or use the overlong buffer of the `dapo` "
            "reward manager.",
            prime_rl="Raise `seq_len` and the sampling limit of the environment.",
            openrlhf="Raise `--rollout.max_new_tokens` and `--data.max_len`.",
        ),
        other_layer=Layer.REWARD,
    ),
    Cause(
        "degenerate_repetition",
        Layer.ROLLOUT,
        "Attempts end in repetition",
        "The policy (or the engine) falls into loops: the same phrase until the cap. Length and truncation rise, "
        "entropy is low inside the loops or the text is noise, reward falls.",
        "Read ten truncated attempts and count repeated n-grams. Sample the same prompts with the starting weights: "
        "if they loop as well, it is engine or template, else the update.",
        "If the engine does it: check template, stop tokens and cache. If the update does it: lower the learning "
        "rate, restart before the onset, and do not give long failures less weight per token.",
        remedies(
            posttrain="`posttrain view RUN --show truncated`; then `policy.learning_rate` or "
            '`policy.aggregation.kind = "token_mean"`.',
            trl='Read `log_completions`; lower `learning_rate`; `loss_type="dapo"`. Gradient checkpointing broke '
            "generation in some old versions.",
            verl="Set `trainer.rollout_data_dir` and read; `actor_rollout_ref.actor.loss_agg_mode=token-mean`.",
            prime_rl="Read the stored rollouts of the steps; lower `trainer.optim.lr`.",
            openrlhf="Read the `Sample:` lines; lower `--actor.adam.lr`.",
        ),
        other_layer=Layer.POLICY,
    ),
    Cause(
        "group_members_alike",
        Layer.ROLLOUT,
        "The members of a group are copies of each other",
        "Requests of a group share a seed, are sampled greedily, or one answer is stored for all of them. Rewards and "
        "texts look as ever, but within a group nothing differs: its advantages are 0 and it teaches nothing.",
        "Count different texts in a group: with a temperature of 1 nearly all differ. Held-out success and mean reward "
        "are as before, only the share of groups without a signal is far higher.",
        "Give every attempt its own seed (or none), sample above temperature 0, and look for a cache that answers "
        "equal prompts with the same text.",
        remedies(
            posttrain="`posttrain view RUN --show random`: texts of one group side by side; check "
            "`rollout.temperature`.",
            trl="Do not set `seed` in `generation_kwargs` or in the vLLM sampling parameters; check `temperature`.",
            verl="Check `actor_rollout_ref.rollout.temperature`, `do_sample` and that `rollout.n` draws samples of its "
            "own for every copy of a prompt.",
            prime_rl="Leave `seed` out of the sampling arguments; check the temperature.",
            openrlhf="Check `--rollout.temperature` and that no fixed seed is passed with each request.",
        ),
    ),
)
