"""Causes in layer 2: the update."""

from __future__ import annotations

from posttrain.faultmap.cause import Cause
from posttrain.faultmap.causes.remedies import remedies
from posttrain.signals.signal import Layer

CAUSES: tuple[Cause, ...] = (
    Cause(
        "learning_rate_too_high",
        Layer.POLICY,
        "The learning rate is too high",
        "Each update moves the policy further than the batch can justify. Divergence rises within a few steps, the "
        "gradient norm jumps, then entropy falls to nothing (constant answers) or climbs (noise), and the reward goes.",
        "Start again from the same checkpoint with a third of the rate: the pattern must come later or not at all.",
        "Take a third to a tenth of the rate, warm up over the first steps, keep the gradient clip at 1, and go back "
        "to a checkpoint before the onset.",
        remedies(
            posttrain="Lower `policy.learning_rate`, set `policy.warmup_steps`, keep `policy.gradient_clip = 1.0`.",
            trl="Lower `learning_rate` (1e-6 for full fine-tuning, about ten times that for LoRA), set "
            "`warmup_steps`, keep `max_grad_norm=1.0`.",
            verl="Lower `actor_rollout_ref.actor.optim.lr`, set `lr_warmup_steps`, keep `grad_clip=1.0`.",
            prime_rl="Lower `trainer.optim.lr`, keep `trainer.optim.max_norm` at 1.0.",
            openrlhf="Lower `--actor.adam.lr`.",
        ),
    ),
    Cause(
        "learning_rate_too_low",
        Layer.POLICY,
        "The learning rate is too low to move anything",
        "There is signal in the groups, but the policy does not move: the rate is tiny, still in warm-up, has decayed "
        "to 0, or the weights are kept in bf16, where such an update rounds away.",
        "Divergence from the starting policy stays near 0 over many steps while the gradient norm is steady. Ten times "
        "the rate moves it.",
        "Raise the rate by three to ten, shorten the warm-up, keep the master weights in fp32.",
        remedies(
            posttrain="Raise `policy.learning_rate`, check `policy.learning_rate_schedule`, keep "
            '`model.master_dtype = "float32"`.',
            trl="Raise `learning_rate`; note that `lr_scheduler_type` decays to 0 by default.",
            verl="Raise `actor_rollout_ref.actor.optim.lr`; keep `fsdp_config.model_dtype=fp32`.",
            prime_rl="Raise `trainer.optim.lr`; keep the optimisation dtype at float32.",
            openrlhf="Raise `--actor.adam.lr`.",
        ),
    ),
    Cause(
        "batch_reused_too_often",
        Layer.POLICY,
        "A batch is used for too many updates",
        "Several optimizer steps on one batch move the policy away from the one that sampled it. Clipping grows with "
        "each pass, length and divergence blow up, and long bad answers gain.",
        "Compare the clip fraction of the first with the last update on a batch; one update per batch must cure it.",
        "Use one update per batch, or a lower rate with two to four.",
        remedies(
            posttrain="Lower `policy.updates_per_batch`.",
            trl="Lower `num_iterations` and `steps_per_generation`.",
            verl="Lower `actor_rollout_ref.actor.ppo_epochs`, or raise `ppo_mini_batch_size` to the batch size.",
            prime_rl="There is one optimizer step per batch: look at the age of the data instead.",
            openrlhf="Lower `--train.max_epochs`, or raise `--train.batch_size`.",
        ),
    ),
    Cause(
        "anchor_too_strong",
        Layer.POLICY,
        "The anchor holds the policy back",
        "The KL term outweighs the reward: the policy stays beside the reference although groups differ, and reward "
        "does not rise.",
        "Compare weight times KL with the size of the advantages; with the weight at a tenth the reward must rise.",
        "Lower the weight, reset the reference from time to time, or do without an anchor for verifiable rewards.",
        remedies(
            posttrain="Lower `policy.anchor.weight`.",
            trl="Lower `beta`, or set `sync_ref_model=True`.",
            verl="Lower `actor_rollout_ref.actor.kl_loss_coef` or `algorithm.kl_ctrl.kl_coef`.",
            prime_rl="Lower `kl_tau` of the loss.",
            openrlhf="Lower `--algo.kl.init_coef`.",
        ),
    ),
    Cause(
        "anchor_inert",
        Layer.POLICY,
        "The anchor has no effect",
        "A KL term is set, but its gradient is nothing: estimator and place do not fit (k1 in the loss has expected "
        "gradient 0), the reference follows the policy, or the weight is lost against the rest. KL grows freely.",
        "Multiply the weight by ten: if KL goes on as before, it is inert. Score the reference once with weights you "
        "changed by hand.",
        "Use k2 or k3 in the loss, or k1 in the reward, with a fixed reference.",
        remedies(
            posttrain="See `policy.anchor.estimator`, `policy.anchor.place` and `policy.anchor.weight`.",
            trl="Raise `beta`; check that `ref_model` is not the trained model itself.",
            verl="Use `kl_loss_type=low_var_kl` (or `k1+`, whose gradient is that of k2), and raise `kl_loss_coef`.",
            prime_rl="The default loss has no reference: its KL term holds to the sampler only.",
            openrlhf="Use `--algo.kl.use_loss` with `--algo.kl.estimator k2` or `k3`.",
        ),
    ),
    Cause(
        "no_exploration",
        Layer.POLICY,
        "The update itself uses up the entropy",
        "Reward keeps favouring the likeliest answers, the clip keeps rare tokens from growing, and nothing brings "
        "entropy back. It sinks steadily, attempts of a group become the same, and learning ends early.",
        "Entropy falls while reward still rises, then both are level; attempts of a group are equal; a higher upper "
        "clip or temperature slows it.",
        "Raise the upper clip bound, the temperature or the group size; give a small entropy bonus; bring in new "
        "tasks.",
        remedies(
            posttrain="Raise `policy.trust_region.clip_high` (0.28 in the row `dapo`), `rollout.temperature` or "
            "`rollout.group_size`.",
            trl="Raise `epsilon_high` to 0.28 and `temperature`; a small `entropy_coef` where the release has it.",
            verl="Raise `actor_rollout_ref.actor.clip_ratio_high` to 0.28; or `policy_loss.loss_mode=kl_cov`.",
            prime_rl="Raise the upper threshold of the loss or the sampling temperature.",
            openrlhf="Raise the upper value of `--actor.eps_clip_low_high`, or `--actor.entropy_coef`.",
        ),
    ),
    Cause(
        "anchor_only_gradient",
        Layer.POLICY,
        "Only the anchor moves the policy",
        "All groups are constant, so that the reward gives no gradient, but the KL (or entropy) term does. The "
        "gradient norm looks alive while nothing of the task is learnt: the policy is pulled back to the reference.",
        "Set the anchor's weight to 0 for one step: the gradient norm must be 0.",
        "Find out why the groups are constant (that is the cause to remove), and skip batches without signal.",
        remedies(
            posttrain="Set `policy.anchor.weight = 0.0`, or a row with a group filter.",
            trl="Set `beta=0.0`, or remove prompts whose groups are constant.",
            verl="Set `use_kl_loss=False`, or use `algorithm.filter_groups`.",
            prime_rl="Set `kl_tau` to 0 and keep the filter for zero advantages on.",
            openrlhf="Set `--algo.kl.init_coef 0` or `--algo.dynamic_filtering_enable`.",
        ),
        other_layer=Layer.REWARD,
    ),
    Cause(
        "length_bias",
        Layer.POLICY,
        "The aggregation favours one length",
        "Dividing each attempt by its own length gives long failures less weight per token (answers grow), or a "
        "length term in the reward pays for shortness or length itself. Length moves without a gain in reward.",
        "Compare the length of right and wrong attempts: wrong ones grow alone. Correlate advantage and length inside "
        "groups without a success.",
        "Average over tokens with one denominator for the whole step (or a constant length); pay a length term only "
        "on success.",
        remedies(
            posttrain='Set `policy.aggregation.kind = "token_mean"` or `"constant_length"`.',
            trl='Use `loss_type="dapo"` or `"dr_grpo"` instead of `"grpo"`.',
            verl="Set `actor_rollout_ref.actor.loss_agg_mode=token-mean`.",
            prime_rl="Losses are token means; look at the length penalty of the algorithm.",
            openrlhf="Keep the token-level loss; look at the overlong penalty.",
        ),
        other_layer=Layer.REWARD,
    ),
    Cause(
        "no_gradient_path",
        Layer.POLICY,
        "The loss reaches no trained weight",
        "Rewards differ within groups, and the gradient is exactly 0: every trainable parameter is cut off from the "
        "loss (frozen adapter, detached log-probs, wrong parameter group), or no token is left in the loss mask.",
        "Run one step and count the parameters that require a gradient and those that received one, and the tokens in "
        "the loss.",
        "Unfreeze what is to be trained, call the adapter's training mode after loading it, and look at the loss mask.",
        remedies(
            posttrain="Look at `policy/trained_tokens` and `policy/gradient_token_share`: 0 is the mask, above 0 the "
            "weights.",
            trl="Print `model.print_trainable_parameters()` after loading; with gradient checkpointing call "
            "`model.enable_input_require_grads()`.",
            verl="Look at `actor/grad_norm` of a run without adapter; check `actor_rollout_ref.model.lora_rank` and "
            "`target_modules`.",
            prime_rl="Check the adapter's target modules and the loss mask of a packed batch.",
            openrlhf="Check that the adapter is loaded as trainable, and its target modules.",
        ),
    ),
    Cause(
        "update_nonfinite",
        Layer.POLICY,
        "The update overflows",
        "A log ratio too large for exp, 0 times infinity under a mask, fp16, or an empty micro-batch makes loss or "
        "gradient infinite or NaN. If the optimizer applies it, the weights are lost for good.",
        "Compute the loss of the saved batch in fp64, token by token, and look for the first non-finite value; look "
        "for log ratios above 20.",
        "Clamp the log ratio, select before multiplying, refuse the step on a non-finite gradient, and go back to the "
        "last good checkpoint.",
        remedies(
            posttrain="The step is refused and its batch kept; the error names the token. Go on from the last "
            "checkpoint with a lower `policy.learning_rate`.",
            trl="Use bf16, not fp16; lower `max_grad_norm` and `learning_rate`; look at "
            "`sampling/importance_sampling_ratio/max`.",
            verl="Look for `grad_norm is not finite`; check that a rank's mini-batch is not smaller than its "
            "micro-batch.",
            prime_rl="There is no clamp on the ratio: lower the staleness, or clip harder.",
            openrlhf="Clamp the ratio (a NaN at a masked position still poisons the loss); `--ds.param_dtype bf16`.",
        ),
        other_layer=Layer.LOGPROBS,
    ),
    Cause(
        "tiny_std_division",
        Layer.POLICY,
        "Advantages are divided by a standard deviation near 0",
        "Groups that are equal but for rounding or a tiny shaping term get advantages of full size or far beyond, so "
        "that noise or the shaping term steers the update.",
        "The largest advantage is far above the root of the group size. In groups without a success the advantage "
        "follows the shaping term.",
        "Compare rewards exactly before dividing, put a floor under the deviation, or do not divide at all; filter by "
        "success, not by the shaped reward.",
        remedies(
            posttrain='Set `policy.advantage.scale = "none"`, or `policy.group_filter.rule = "mixed_success"`.',
            trl='Set `scale_rewards="none"` or `"batch"`.',
            verl="Set `algorithm.norm_adv_by_std_in_grpo=False`; filter by `acc`.",
            prime_rl="The default has no division: look at the length penalty.",
            openrlhf="Use `--algo.advantage.estimator dr_grpo`.",
        ),
        other_layer=Layer.REWARD,
    ),
    Cause(
        "policy_collapsed",
        Layer.POLICY,
        "The updates have destroyed the policy",
        "A policy that had learnt the task loses it for good within some tens of steps: reward falls to nothing while "
        "entropy or length leaves its band and the gradient norm grows. Small groups, a high rate and long stretches "
        "of truncated attempts make it likely.",
        "Evaluate the checkpoints around the onset on held-out tasks: ability must be gone, not only the reward of "
        "the training batches.",
        "Go back to the last checkpoint before the onset; lower the rate, enlarge groups or batch, and stop earlier "
        "when the tasks are solved.",
        remedies(
            posttrain="Start again from an earlier checkpoint with a lower `policy.learning_rate` and a larger "
            "`rollout.group_size`; keep more with `checkpoint.keep`.",
            trl="Restart from an earlier `checkpoint-N` with a lower `learning_rate` and more `num_generations`.",
            verl="Resume from an earlier `global_step_N` with a lower `optim.lr` and a larger `rollout.n`.",
            prime_rl="`--resume.step` of an earlier checkpoint with a lower `trainer.optim.lr`.",
            openrlhf="Load an earlier checkpoint with a lower `--actor.adam.lr`.",
        ),
    ),
    Cause(
        "critic_diverges",
        Layer.POLICY,
        "The value model does not follow the returns",
        "Its learning rate is too high or too low, its loss is clipped away, or returns changed their scale. Values "
        "worse than a constant make advantages noisier than no critic would, and the policy follows that noise.",
        "Compare values and returns of a saved batch: their correlation is near 0 or negative. With the returns' mean "
        "in place of the values the gradient norm of the policy must fall.",
        "Lower the critic's learning rate or give it more updates, train it alone first, normalise returns; or use a "
        "group baseline, which needs no critic.",
        remedies(
            posttrain="Use a group baseline: `policy.algorithm`.",
            trl="Use `GRPOTrainer` or `RLOOTrainer`; in PPO `vf_coef`, `cliprange_value`.",
            verl="`critic.optim.lr`, `critic.cliprange_value`, `trainer.critic_warmup`; or "
            "`algorithm.adv_estimator=grpo`.",
            prime_rl="It has no critic.",
            openrlhf="`--critic.adam.lr`, `--actor.freezing_steps`; or `--algo.advantage.estimator group_norm`.",
        ),
    ),
    Cause(
        "expected_by_construction",
        Layer.POLICY,
        "Expected by construction",
        "The number has this value whatever the policy does: with one update per batch and a group baseline the loss "
        "is 0 while its gradient is not; on policy the ratio is 1 and nothing is clipped.",
        "The gradient norm is above 0 and the reward, or the divergence from the start, moves.",
        "Nothing: judge by reward, held-out success and gradient norm instead of the loss.",
        benign=True,
    ),
)
