"""``[data]``: the rows of a run that trains on fixed data, in place of environments and rollout."""

from __future__ import annotations

from typing import Literal

from posttrain.settings.field import Auto, Positive, Section, setting


class DataSettings(Section):
    """``[data]``: where the rows are, what their columns are called, and how they become tokens."""

    path: str = setting(
        ...,
        "JSONL, CSV or Parquet file, or a directory saved by `datasets`.",
        reason="there is no default data",
        min_length=1,
    )
    evaluation_path: str | None = setting(
        None,
        "File with the held-out rows; absent: a fraction of `path`.",
        reason="most files come without a split",
    )
    evaluation_fraction: float = setting(
        0.1,
        "Share of the prompts held out when there is no `evaluation_path`. A prompt is never on both sides.",
        reason="the usual tenth",
        ge=0.0,
        lt=1.0,
    )
    split_seed: int = setting(
        0, "Seed of that split. Not the run's seed.", reason="the split belongs to the data", ge=0
    )
    rows_per_step: int = setting(
        32,
        "Rows (pairs, answers or conversations) in one optimizer step.",
        reason="TRL's effective default with four accumulation steps of eight; SimPO wants 128",
        ge=1,
    )
    prompt_column: str = setting(
        "prompt",
        "Column with the prompt: text, or a list of messages. A pair without it starts with the same messages.",
        reason="TRL's name",
    )
    chosen_column: str = setting(
        "chosen", "Column with the better answer: text, or a list of messages.", reason="TRL's name"
    )
    rejected_column: str = setting("rejected", "Column with the worse answer.", reason="TRL's name")
    margin_column: str | None = setting(
        None, "Column that says how much better the chosen answer is (reward_model).", reason="few data sets have one"
    )
    completion_column: str = setting(
        "completion", "Column with the answer, for rows of one answer (kto, sft).", reason="TRL's name"
    )
    label_column: str = setting(
        "label", "Column with true for a desirable answer and false for an undesirable one (kto).", reason="TRL's name"
    )
    messages_column: str = setting(
        "messages",
        "Column with a whole conversation (sft); it counts before prompt and completion.",
        reason="TRL's name",
    )
    text_column: str = setting("text", 'Column with plain text (sft with `render = "text"`).', reason="TRL's name")
    render: Literal["chat", "text"] = setting(
        "chat",
        "`chat`: the model's chat template, and a prompt that is text is a user's message. `text`: prompt and answer "
        "as they are, one after the other.",
        reason="what sampling will see; base models without a template take `text`",
    )
    system_prompt: str | None = setting(
        None, "System message before rows that bring none (`chat`).", reason="the template's own default"
    )
    train_on: Literal["assistant", "all"] = setting(
        "assistant",
        "Tokens in the loss of sft: what the assistant says with its end-of-sequence token, or everything.",
        reason="a policy should learn to answer, not to ask",
    )
    max_tokens: Auto | Positive = setting(
        "auto", "Longest row, in tokens; `auto` takes the model's context.", reason="nothing longer can be computed"
    )
    too_long: Literal["drop", "refuse"] = setting(
        "drop",
        "Rows beyond `max_tokens`: left out and counted, or an error. None is ever cut: an answer without its end "
        "teaches not to end.",
        reason="long rows are usual in public data",
    )
    unusable: Literal["refuse", "drop"] = setting(
        "refuse",
        "Rows that cannot be trained on (equal answers in a pair, an empty answer, other prompts on both sides, a "
        "margin that is no number): an error, or left out and counted.",
        reason="they mean that the file was made in another way than thought",
    )
