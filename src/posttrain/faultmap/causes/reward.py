"""Causes in layer 1: tasks, grader, reward."""

from __future__ import annotations

from posttrain.faultmap.cause import Cause
from posttrain.faultmap.causes.remedies import remedies
from posttrain.signals.signal import Layer

CAUSES: tuple[Cause, ...] = (
    Cause(
        "reward_dead",
        Layer.REWARD,
        "The reward function returns a constant",
        "The grader gives every attempt the same number: the gold answer is not wired in, the answer is never found in "
        "the text, or an error inside the grader is turned into 0. All groups are constant, every advantage is 0, and "
        "the run ends without having learnt anything.",
        "Grade five answers you know to be right and five you know to be wrong through the very path that training "
        "uses (same process, same thread, same message shape). Right ones must score higher.",
        "Repair the grader before anything else; let an error inside it be an error, never a 0.",
        remedies(
            posttrain='Look at what it was given: `posttrain view RUN --show ungradable`. For `kind = "function"` '
            "check the columns it reads and what it returns; return None for what cannot be graded.",
            trl="Set `log_completions=True` and read the table; the dataset column must have the name of the reward "
            "function's argument.",
            verl="Read the printed `[ground_truth]` and `[score]` lines or set `trainer.rollout_data_dir`; the "
            "built-in maths graders search only the last 300 characters and score a timeout as 0.",
            prime_rl="A reward function of an old-style environment that raises is logged and scored 0: search the "
            "log of the environment server for it.",
            openrlhf="An exception in the reward file is logged at INFO only and leaves the reward empty: search "
            "the log for it.",
        ),
    ),
    Cause(
        "reward_hacked",
        Layer.REWARD,
        "The reward pays for something that is not the task",
        "The grader accepts text that does not solve the task (all candidates listed, a copied prompt, an empty "
        "expected output, a format part that can be collected without the answer). The policy finds it because it is "
        "rewarded for it: training reward jumps or climbs while held-out success stays or falls.",
        "Read ten of the best paid attempts after the jump. Grade the same texts with a second, independent grader; "
        "more than one in a hundred that only the first accepts is a leak.",
        "Close the leak (exactly one answer, anchored extraction, right answer required before any other part pays), "
        "add the texts found as tests of the grader, and restart from a checkpoint before the jump.",
        remedies(
            posttrain="Read them: `posttrain view RUN --show best`. Keep `evaluation.every` above 0 with a grader "
            "that is not the training reward.",
            trl="Set `log_completions=True` and read the top rows; lower the weight of the leaking function in "
            "`reward_weights` or repair it.",
            verl="Set `trainer.rollout_data_dir` and read the highest `score`; keep `trainer.test_freq` above 0.",
            prime_rl="Compare `train/.../rewards/<name>` with the evaluation of the same environment, and set the "
            "weight of the leaking part to 0.",
            openrlhf="Read the printed `Sample:` lines and add an evaluation set (`--eval.dataset`).",
        ),
        other_layer=Layer.POLICY,
    ),
    Cause(
        "tasks_too_hard",
        Layer.REWARD,
        "No attempt ever succeeds",
        "The tasks are beyond the policy (or the answer format is), so that all attempts of a group fail alike and "
        "there is nothing to prefer. With shaping terms the groups still differ, and only the shaping is learnt.",
        "Sample 64 attempts at 20 tasks from the starting model: pass@64 of 0 means no signal can come. Grade the same "
        "texts leniently: if that finds successes, it is the format or the grader, not the difficulty.",
        "Take easier tasks first, larger groups, or a short supervised warm-up on the answer format; filter tasks the "
        "starting model never solves.",
        remedies(
            posttrain="Raise `rollout.group_size`, mix in an easier environment under `[environments.NAME]`, or "
            "use the row `dapo`, which replaces groups without a mix of successes and failures.",
            trl="Raise `num_generations`, and filter the dataset by the pass rate of the starting model.",
            verl="Raise `actor_rollout_ref.rollout.n`; `algorithm.filter_groups` replaces groups that all fail.",
            prime_rl="Raise the group size and use the `difficulty_pool` sampler with the `advantage_range` gate.",
            openrlhf="Raise `--rollout.n_samples_per_prompt` and set `--algo.dynamic_filtering_enable`.",
        ),
    ),
    Cause(
        "tasks_solved",
        Layer.REWARD,
        "The tasks are solved; there is nothing left to learn",
        "Nearly every attempt succeeds, so that groups are constant and carry no gradient. Nothing is broken; further "
        "steps mostly spend compute, and long idling can let the policy drift.",
        "Success share near 1 and share of all-success groups near 1, with the held-out score level as well.",
        "Stop here and keep the checkpoint, or go on with harder tasks.",
        remedies(
            posttrain="Add a harder environment, or let the row `dapo` replace groups that all succeed.",
            trl="Filter the dataset by the pass rate of the present model.",
            verl="`algorithm.filter_groups` replaces groups that all succeed.",
            prime_rl="The `difficulty_pool` sampler draws fewer easy tasks.",
            openrlhf="Set `--algo.dynamic_filtering_enable`.",
        ),
        benign=True,
    ),
    Cause(
        "tasks_exhausted",
        Layer.REWARD,
        "These tasks teach the policy nothing more",
        "What it can learn from this set in this setup is learnt: the rest is too hard for it, or too rarely solved to "
        "be found. Groups still differ by chance, the gradient is alive, and the mean reward stands still.",
        "Success by task over the last epochs: some are always solved, the rest hardly ever, and few move. A harder or "
        "fresh set must bring movement, or a larger group must find solutions to what is never solved.",
        "Bring tasks of middle difficulty, filter those that are settled, enlarge the group, or stop here.",
        remedies(
            posttrain="Change the environment's tasks, or `rollout.group_size` and `policy.group_filter.rule`.",
            trl="Change the dataset; a larger `num_generations`.",
            verl="`data.train_files`; a larger `actor_rollout_ref.rollout.n`; filter groups.",
            prime_rl="Change the environment's tasks; a larger group; online difficulty filtering.",
            openrlhf="`--data.prompt_dataset`; a larger `--rollout.n_samples_per_prompt`; dynamic filtering.",
        ),
    ),
    Cause(
        "reward_parts_cancel",
        Layer.REWARD,
        "Parts of the reward cancel inside a group",
        "Single parts differ, but their weighted sum is the same for all members of a group (one part pays what "
        "another takes), or a part differs only between prompts. The group has no spread, though each part looks "
        "alive in the log.",
        "Compute the weighted sum within ten groups by hand. A part whose standard deviation is above 0 while the "
        "groups are constant differs between prompts, not within them.",
        "Change the weights so that success dominates, or pay the other parts only on success.",
        remedies(
            posttrain="Compare `reward/part/{part}/std` with `reward/group_std_mean`, and weigh the parts in your "
            "reward function so that they cannot add up to the same.",
            trl="Change `reward_weights`; `rewards/<func>/std` is over the batch and says nothing about groups.",
            verl="Return one score in which the parts are weighed; the parts in the dump show which cancel.",
            prime_rl="Change the weights of the rewards in the rubric.",
            openrlhf="Weigh the parts anew in the reward file.",
        ),
    ),
    Cause(
        "grader_failing",
        Layer.REWARD,
        "The grader fails or cannot judge many attempts",
        "A service is down, a check times out, a process dies, or the answer format is not parsed. Where such attempts "
        "count as 0 the policy is punished for nothing; where they are left out the batch shrinks to what happens to "
        "be gradable.",
        "Take ten attempts without a grade and grade them alone, with the error shown. Look whether the share grows "
        "with the length of the attempts or with the load.",
        "Repair the service, give it more time or its own process, and keep 'could not be graded' apart from 0.",
        remedies(
            posttrain="`posttrain view RUN --show ungradable` shows the reasons; raise "
            "`environments.NAME.timeout_s` if it is time.",
            trl="Return None, not 0, for what cannot be graded (and for all functions of that attempt: a single "
            "None counts as 0 in the sum).",
            verl="Failures and timeouts score 0 with only a print: count them in the log and raise the timeout of "
            "the reward manager.",
            prime_rl="Read `error/<type>` and `has_error/mean`.",
            openrlhf="Look for retries of the reward server in the log (5 retries of 180 s).",
        ),
    ),
    Cause(
        "task_mix_changed",
        Layer.REWARD,
        "The tasks of the batches changed",
        "A new epoch, a curriculum, a filter or another environment brought harder, easier or longer tasks. Reward and "
        "length move with it although the policy did nothing odd.",
        "Compare success by environment or by task before and after: each alone must be level. A held-out set of fixed "
        "tasks does not move.",
        "Judge by a fixed held-out set; shuffle, or raise the difficulty more slowly.",
        remedies(
            posttrain="Compare `reward/environment/{environment}/mean` of a mixed run; weights are "
            "`environments.NAME.weight`.",
            trl="Set `shuffle_dataset=True`, and watch the `eval_` keys.",
            verl="Set `data.shuffle=True`, and watch `val-core/...`.",
            prime_rl="Compare `train/<env>/...` one by one, and `batch/<env>`.",
            openrlhf="Watch `eval_<source>_pass1` instead of the training reward.",
        ),
        benign=True,
    ),
)
