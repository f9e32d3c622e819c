"""Rows of a file as tokens: exactly the assistant's tokens are trained, ends included, whatever the template does."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.environment.sources import Row
from posttrain.errors import InputError
from posttrain.model.tiny import EOS, tiny_tokenizer
from posttrain.orchestration.fixed_data.dataset import load_data
from posttrain.orchestration.fixed_data.records import Record, UnusableRowError, record_of
from posttrain.orchestration.fixed_data.render import Renderer
from posttrain.settings.data import DataSettings
from posttrain.trajectory import Message

TOKENIZER = tiny_tokenizer()
NEWLINE = TOKENIZER.chat_template.replace("'<end>'", "'<end>\n'")
MARKED = (
    "{% for m in messages %}{{ '<' + m['role'] + '>' }}{% if m['role'] == 'assistant' %}"
    "{% generation %}{{ m['content'] }}{% endgeneration %}{% else %}{{ m['content'] }}{% endif %}{{ '<end>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
NO_END = (
    "{% for m in messages %}{{ '<' + m['role'] + '>' + m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
FORGETFUL = (  # earlier answers are rendered otherwise once more follows
    "{% for m in messages %}{{ '<' + m['role'] + '>' }}{% if m['role'] == 'assistant' and not loop.last %}{{ '...' }}"
    "{% else %}{{ m['content'] }}{% endif %}{{ '<end>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)


def renderer(template=None, **options):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template if template is not None else tokenizer.chat_template
    return Renderer(tokenizer, (), **options)


def trained(rendered):
    """Text of each run of trained tokens, ends shown."""
    runs, current = [], []
    for token, wanted in zip(rendered.token_ids, rendered.target_mask, strict=True):
        if wanted:
            current.append(int(token))
        elif current:
            runs.append(TOKENIZER.decode(current))
            current = []
    return [*runs, TOKENIZER.decode(current)] if current else runs


def conversation(*turns):
    return Record("row 1", tuple(Message(role, text) for role, text in turns))


TALK = conversation(("user", "ab"), ("assistant", "cd"), ("user", "ef"), ("assistant", "gh"))


@pytest.mark.parametrize("template", [None, NEWLINE, MARKED], ids=["plain", "newline", "marked"])
def test_exactly_the_assistants_tokens_and_their_ends_are_trained(template):
    (rendered,) = renderer(template).answers(TALK)
    assert trained(rendered) == [f"cd{EOS}", f"gh{EOS}"]
    assert TOKENIZER.decode(rendered.token_ids).endswith(f"gh{EOS}"), "nothing after the last end"
    assert not rendered.target_mask[: rendered.prefix].any()
    assert rendered.target_mask[rendered.prefix]


def test_an_end_is_written_where_the_template_writes_none_and_no_answer_is_lost():
    (rendered,) = renderer(NO_END).answers(TALK)
    assert trained(rendered) == ["cd", f"gh{EOS}"]
    # An end earlier in the conversation must not pass for the last answer's.
    mixed = NO_END.replace("m['content'] }}", "m['content'] }}{% if m['role'] == 'user' %}{{ '<end>' }}{% endif %}", 1)
    for train_on in ("assistant", "all"):
        (rendered,) = renderer(mixed, train_on=train_on).answers(TALK)
        assert trained(rendered)[-1].endswith(f"gh{EOS}")


def test_a_template_that_rewrites_the_past_is_refused():
    with pytest.raises(InputError, match="cannot tell which tokens are the assistant's"):
        renderer(FORGETFUL).answers(TALK)
    (single,) = renderer(FORGETFUL).answers(conversation(("user", "ab"), ("assistant", "cd")))
    assert trained(single) == [f"cd{EOS}"]


def test_train_on_all_leaves_out_the_first_token_alone():
    (rendered,) = renderer(NEWLINE, train_on="all").answers(TALK)
    assert rendered.prefix == 1
    assert rendered.target_mask[1:].all()
    assert trained(rendered)[0].endswith(f"gh{EOS}")


def test_a_conversation_that_ends_with_the_user_is_cut_after_the_last_answer():
    (rendered,) = renderer().answers(conversation(("user", "ab"), ("assistant", "cd"), ("user", "ef")))
    assert TOKENIZER.decode(rendered.token_ids).endswith(f"cd{EOS}")


def test_answers_to_one_prompt_share_it_and_are_what_sampling_would_see():
    record = Record("row 1", (Message("user", "ab"),), ("c", "de"))
    chosen, rejected = renderer(NEWLINE, system_prompt="s").answers(record)
    prompt = TOKENIZER.apply_chat_template(
        [{"role": "system", "content": "s"}, {"role": "user", "content": "ab"}],
        chat_template=NEWLINE,
        add_generation_prompt=True,
        return_dict=False,
    )
    for rendered, text in ((chosen, "c"), (rejected, "de")):
        assert rendered.token_ids[: rendered.prefix].tolist() == prompt
        assert trained(rendered) == [f"{text}{EOS}"]


def test_plain_text():
    record = Record("row 1", (Message("user", "ab"),), ("cd",))
    (answer,) = renderer(render="text").answers(record)
    assert TOKENIZER.decode(answer.token_ids) == f"abcd{EOS}"
    assert trained(answer) == [f"cd{EOS}"]
    (whole,) = renderer(render="text").answers(conversation(("assistant", "abc")))
    assert trained(whole) == [f"bc{EOS}"]


@given(st.text("ab <>{}end", max_size=8).filter(str.strip), st.text("ab <>{}end", max_size=8).filter(str.strip))
def test_the_mask_covers_the_answer_whatever_is_written(prompt, answer):
    rendered = renderer(NEWLINE).answers(Record("row 1", (Message("user", prompt),), (answer,)))[0]
    answer_ids = TOKENIZER.encode(answer, add_special_tokens=False)
    assert rendered.token_ids[rendered.target_mask].tolist()[: len(answer_ids)] == answer_ids
    assert rendered.token_ids[-1] == TOKENIZER.eos_token_id
    assert rendered.target_mask[-1]


def read(kind, values, **data):
    return record_of("data.path", Row(1, "f.jsonl:1", values), kind, DataSettings(path="f.jsonl", **data))


U, A, B = (
    {"role": "user", "content": "q"},
    {"role": "assistant", "content": "a"},
    {"role": "assistant", "content": "b"},
)


@pytest.mark.parametrize(
    "values",
    [
        {"prompt": "q", "chosen": "a", "rejected": "b"},
        {"prompt": [U], "chosen": [A], "rejected": [B]},
        {"chosen": [U, A], "rejected": [U, B]},
        {"prompt": "q", "chosen": [U, A], "rejected": [U, B]},
        {"prompt": [U], "chosen": "a", "rejected": [B]},
    ],
)
def test_every_usual_spelling_of_a_pair_reads_alike(values):
    assert read("pairs", values) == Record("f.jsonl:1", (Message("user", "q"),), ("a", "b"))


OTHER = {"role": "user", "content": "z"}


@pytest.mark.parametrize(
    ("kind", "values", "words"),
    [
        ("pairs", {"prompt": "q", "chosen": "a", "rejected": "a"}, "are equal"),
        ("pairs", {"prompt": "q", "chosen": "a", "rejected": " "}, "an answer is empty"),
        ("pairs", {"chosen": [U, A], "rejected": [OTHER, B]}, "same prompt"),
        ("pairs", {"prompt": "z", "chosen": [U, A], "rejected": [U, B]}, "same prompt"),
        ("pairs", {"prompt": "q", "chosen": "a", "rejected": "b", "m": None}, "margin is not a finite number"),
        ("pairs", {"prompt": "q", "chosen": "a", "rejected": "b", "m": "much"}, "margin is 'much'"),
        ("pairs", {"prompt": "q", "chosen": "a", "rejected": "b", "m": True}, "margin is True"),
        ("pairs", {"prompt": " ", "chosen": "a", "rejected": "b"}, "prompt is empty"),
        ("answers", {"prompt": "z", "completion": [U, A], "label": True}, "does not answer its prompt"),
        ("conversations", {"messages": [U]}, "is the assistant's"),
        ("conversations", {"messages": [U, {"role": "assistant", "content": ""}]}, "an answer is empty"),
    ],
)
def test_rows_that_cannot_be_trained_on_say_why(kind, values, words):
    with pytest.raises(UnusableRowError, match=words):
        read(kind, values, margin_column="m" if "m" in values else None)


@pytest.mark.parametrize(
    ("kind", "values", "words"),
    [
        ("pairs", {"prompt": "q", "good": "a", "rejected": "b"}, "no value in column 'chosen'. It has: prompt, good"),
        ("pairs", {"chosen": "a", "rejected": "b"}, "no value in column 'prompt'"),
        ("pairs", {"prompt": 7, "chosen": "a", "rejected": "b"}, "neither text nor a list of messages"),
        ("pairs", {"prompt": [U, A], "chosen": "a", "rejected": "b"}, "ends with an assistant message"),
        ("pairs", {"prompt": "q", "chosen": [U], "rejected": "b"}, "is not the assistant's"),
        ("pairs", {"prompt": "q", "chosen": [{"role": "bot", "content": ""}], "rejected": "b"}, "a message in column"),
        ("answers", {"prompt": "q", "completion": "a", "label": "maybe"}, "Use true or false"),
        ("conversations", {"question": "q"}, "no value in column 'completion'"),
    ],
)
def test_a_file_of_another_shape_is_refused_with_place_and_columns(kind, values, words):
    with pytest.raises(InputError) as caught:
        read(kind, values)
    assert "f.jsonl:1" in str(caught.value)
    assert words in str(caught.value)


def test_labels_and_conversations():
    for label, wanted in ((True, True), ("False", False), (1, True), ("0", False)):
        assert read("answers", {"prompt": "q", "completion": "a", "label": label}).desirable is wanted
    whole = read("conversations", {"messages": json.loads(json.dumps([U, A, OTHER, B]))})
    assert [m.content for m in whole.messages] == ["q", "a", "z", "b"]
    assert whole.prompt == (Message("user", "q"),)
    assert read("conversations", {"prompt": "q", "completion": "a"}).messages[-1] == Message("assistant", "a")


def test_jsonl_csv_parquet_and_saved_datasets_give_the_same_rows(tmp_path):
    rows = [{"prompt": f"q{i}", "chosen": f"a{i}", "rejected": f"b{i}"} for i in range(12)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, tmp_path / "rows.parquet")
    csv.write_csv(table, tmp_path / "rows.csv")
    names = ["rows.jsonl", "rows.parquet", "rows.csv"]
    try:
        from datasets import Dataset
    except ImportError:
        pass
    else:
        Dataset.from_list(rows).save_to_disk(str(tmp_path / "saved"))
        names.append("saved")
    found = [
        load_data(DataSettings(path=str(tmp_path / name), rows_per_step=4), "pairs", renderer(), 512) for name in names
    ]
    for data in found:
        assert [e.record.answers for e in data.train] == [e.record.answers for e in found[0].train]
        assert [e.answers[0].token_ids.tolist() for e in data.held_out] == [
            e.answers[0].token_ids.tolist() for e in found[0].held_out
        ]
        assert len(data.held_out) == 1


def test_the_split_takes_whole_prompts_and_does_not_depend_on_the_files_order(tmp_path):
    rows = [{"prompt": f"q{i % 10}", "chosen": f"a{i}", "rejected": f"b{i}"} for i in range(30)]
    sides = []
    for name, ordered in (("a", rows), ("b", rows[::-1])):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in ordered))
        settings = DataSettings(path=str(path), rows_per_step=4, evaluation_fraction=0.3)
        data = load_data(settings, "pairs", renderer(), 512)
        sides.append({e.record.prompt for e in data.held_out})
        assert not sides[-1] & {e.record.prompt for e in data.train}
        assert len(data.held_out) == 9
    assert sides[0] == sides[1]


def test_mismatched_answers_belong_to_other_prompts(tmp_path):
    rows = [{"prompt": f"q{i // 2}", "completion": f"a{i}", "label": i % 2 == 0} for i in range(10)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = DataSettings(path=str(path), rows_per_step=4, evaluation_fraction=0.0)
    data = load_data(settings, "answers", renderer(), 512)
    for example in data.train:
        assert example.mismatched is not None
        text = TOKENIZER.decode(example.mismatched.token_ids)
        assert example.record.prompt[0].content not in text
        assert text.endswith(f"{example.record.answers[0]}{EOS}")
