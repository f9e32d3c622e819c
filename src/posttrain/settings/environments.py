"""``[environments.NAME]``: where tasks come from and how attempts are graded, one model per kind."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from posttrain.settings.field import Auto, Section, setting

RewardKindName = Literal["verifiable", "soft"]
ArithmeticFamily = Literal["difference", "sum", "product", "sum2_1", "three_terms"]

FAMILY_RANGES: dict[ArithmeticFamily, tuple[int, int]] = {
    "difference": (1, 19),
    "sum": (10, 99),
    "product": (0, 9),
    "sum2_1": (10, 99),
    "three_terms": (1, 9),
}
"""Operands of each family when ``low`` and ``high`` are ``auto``, both ends included."""


class EnvironmentAnchor(Section):
    """``[environments.NAME.anchor]``: another pull towards the reference for this environment alone."""

    weight: float = setting(
        ...,
        "Weight of the KL term to the reference for trajectories of this environment.",
        reason="there is no default: the table exists to state one",
        ge=0.0,
    )


class EnvironmentBase(Section):
    """What every kind of environment has."""

    weight: float = setting(
        1.0,
        "Share of the drawn tasks, relative to the other environments.",
        reason="with one environment it has no effect; several start out equal",
        gt=0.0,
    )
    success_threshold: float = setting(
        1.0,
        "A graded reward at or above it counts as a success in pass@k, majority@k and difficulty bins.",
        reason="a full reward is the only one every grader agrees is right",
        assumes="rewards whose best value is 1",
    )
    system_prompt: str | None = setting(
        None,
        "System message before each task's own messages; overrides `rollout.system_prompt`.",
        reason="the chat template's own default is what the model was tuned with",
    )
    anchor: EnvironmentAnchor | None = setting(
        None,
        "Anchor weight for this environment alone; absent: the algorithm's.",
        reason="one anchor for the whole run unless rewards of different kinds are mixed",
    )


class ArithmeticSettings(EnvironmentBase):
    """Generated arithmetic, split by unordered operand pair."""

    kind: Literal["arithmetic"] = setting("arithmetic", "Generated arithmetic tasks.", reason="names the kind")
    task: Literal[ArithmeticFamily, "mixture"] = setting(
        "difference",
        "Which family of questions, or a `mixture` of several.",
        reason="greedy decoding of small instruct models is right on about a third: there is something to learn",
        assumes="a model of 0.1 to 1 billion parameters",
    )
    mixture: tuple[ArithmeticFamily, ...] = setting(
        ("difference", "sum2_1"),
        'The families of `task = "mixture"`, in equal shares.',
        reason="one family the model can start on and one that is nearly out of reach",
        min_length=1,
    )
    low: Auto | int = setting(
        "auto",
        "Smallest operand; `auto` takes the family's own range.",
        reason="each family has the range that gives it its name (two-digit, under 20...)",
    )
    high: Auto | int = setting(
        "auto",
        "Largest operand, included; `auto` takes the family's own range.",
        reason="as `low`",
    )
    held_out_pairs: int = setting(
        30,
        "Unordered operand pairs kept for evaluation and never trained, for each family.",
        reason="enough for an interval of about 15 points either way; 171 pairs exist for differences under 20",
        ge=1,
    )
    held_out_seed: int = setting(
        0,
        "Seed that chooses the held-out pairs. It is not the run's seed: runs stay comparable.",
        reason="the split belongs to the task",
        ge=0,
    )
    prompt: str = setting(
        "What is {question}? Reply with only the number.",
        "Prompt; `{question}` stands for, say, `17 - 9`.",
        reason="asks for the bare answer, which the grader can find without a format reward",
        min_length=1,
    )
    grading: Literal["last_integer", "first_integer", "exact"] = setting(
        "last_integer",
        "Which integer of the completion is compared with the answer; `exact` wants nothing else.",
        reason="models repeat the question before they answer; the first integer is then an operand",
    )


class ReasoningGymSettings(EnvironmentBase):
    """A reasoning-gym dataset by name."""

    kind: Literal["reasoning_gym"] = setting("reasoning_gym", "A reasoning-gym dataset.", reason="names the kind")
    dataset: str = setting(
        ..., "Name of the dataset in reasoning-gym.", reason="there is no default task", min_length=1
    )
    size: int = setting(1000, "Number of training tasks.", reason="more than a short run draws in one pass", ge=1)
    evaluation_size: int = setting(
        64,
        "Number of held-out tasks, from another seed; a question that is held out is left out of training.",
        reason="an interval of about 12 points either way with one sample each",
        ge=0,
    )
    seed: int = setting(0, "Seed of the generator. Not the run's seed.", reason="the split belongs to the task", ge=0)
    parameters: dict[str, Any] = setting(
        {},
        "The dataset's own parameters, passed through.",
        reason="the dataset's own defaults",
    )
    extract: Literal["whole", "last_line", "last_number", "answer_tag"] = setting(
        "last_line",
        "What part of the completion is scored: all of it, its last non-empty line, its last number, "
        "or what stands in the last `<answer>...</answer>`.",
        reason="models explain before they answer; scoring the whole text marks right answers wrong",
    )


class RowSource(EnvironmentBase):
    """Tasks read from a file, for the kinds that have one."""

    path: str = setting(
        ...,
        "JSONL or Parquet file, or a directory saved by `datasets`.",
        reason="there is no default data",
        min_length=1,
    )
    prompt_column: str = setting("prompt", "Column with the prompt: text, or a list of messages.", reason="TRL's name")
    gold_column: str | None = setting(
        None,
        "Column with the right answer, if there is one.",
        reason="many reward functions need no gold answer",
    )
    id_column: str | None = setting(
        None,
        "Column with a unique id; absent: the row number.",
        reason="a file need not have ids",
    )
    evaluation_path: str | None = setting(
        None,
        "File with the held-out tasks; absent: a fraction of `path`.",
        reason="most files come without a split",
    )
    evaluation_fraction: float = setting(
        0.1,
        "Share of the rows held out when there is no `evaluation_path`.",
        reason="the usual tenth",
        ge=0.0,
        lt=1.0,
    )
    split_seed: int = setting(
        0, "Seed of that split. Not the run's seed.", reason="the split belongs to the task", ge=0
    )


class RowsSettings(RowSource):
    """Rows with a gold answer and a built-in verifier."""

    kind: Literal["rows"] = setting(
        "rows", "Rows of a file, graded against their gold answer.", reason="names the kind"
    )
    gold_column: str | None = setting("answer", "Column with the right answer.", reason="the commonest name")
    verifier: Literal["last_number", "exact", "math"] = setting(
        "last_number",
        "How a completion is compared with the gold answer; `math` uses math-verify in its own process.",
        reason="right for word problems with a numeric answer, and needs no extra package",
    )
    timeout_s: float = setting(
        30.0,
        "Seconds one grading call may take before its process is killed.",
        reason="symbolic simplification may never return; honest cases take milliseconds",
        gt=0.0,
    )


class FunctionSettings(RowSource):
    """A user's own reward function over rows."""

    kind: Literal["function"] = setting(
        "function", "Rows of a file, graded by a Python function.", reason="names the kind"
    )
    reward: str | tuple[str, ...] = setting(
        ...,
        "`package.module:function` or `path/file.py:function`, or a list of them. Called as "
        "`function(completions, prompts=..., **columns) -> list[float | None]`.",
        reason="there is no default reward",
    )
    reward_weights: tuple[float, ...] | None = setting(
        None,
        "Weight of each function in the reward; absent: 1 each.",
        reason="the plain sum",
    )
    reward_kind: RewardKindName = setting(
        "soft",
        "`verifiable` if the function checks a fact, `soft` if it expresses a preference. "
        "Soft rewards need an anchor or an acknowledgement.",
        reason="nothing is known about a user's function; a preference can be farmed, a fact cannot",
    )
    timeout_s: float = setting(
        30.0,
        "Seconds a batch may take; then its process is killed and the attempts are graded one by one.",
        reason="long enough for honest graders, short against a hang",
        gt=0.0,
    )
    workers: int = setting(1, "Worker processes.", reason="most reward functions take milliseconds", ge=1)
    completions: Literal["text", "messages"] = setting(
        "text",
        "What the function gets for each completion: its text, or a list with one assistant message.",
        reason="text is what most functions read; TRL passes messages for conversational data",
    )


class RewardModelSettings(RowSource):
    """A trained reward model over rows."""

    kind: Literal["reward_model"] = setting(
        "reward_model", "Rows of a file, graded by a trained reward model.", reason="names the kind"
    )
    reward_model: str = setting(
        ...,
        'Folder of the model: `model/` of a run with `policy.algorithm = "reward_model"`, or any '
        "...ForSequenceClassification with one label. The reward is always soft.",
        reason="there is no default reward",
        min_length=1,
    )


EnvironmentSettings = Annotated[
    ArithmeticSettings | ReasoningGymSettings | RowsSettings | FunctionSettings | RewardModelSettings,
    Field(discriminator="kind"),
]


def reward_kind_of(
    environment: ArithmeticSettings | ReasoningGymSettings | RowsSettings | FunctionSettings | RewardModelSettings,
) -> RewardKindName:
    """Whether the environment's reward is verifiable or soft."""
    if isinstance(environment, RewardModelSettings):
        return "soft"
    return environment.reward_kind if isinstance(environment, FunctionSettings) else "verifiable"
