"""What prompt and settings together ask for."""

import pytest

from posttrain.environment.stress.contract import Contract, Form, asked_form, contract_of
from posttrain.settings.environments import (
    ArithmeticSettings,
    FunctionSettings,
    ReasoningGymSettings,
    RowsSettings,
)
from posttrain.trajectory import Message, Task


def task(prompt: str, system: str = "") -> Task:
    messages = (Message("system", system),) * bool(system) + (Message("user", prompt),)
    return Task("t", messages, "8", "e")


@pytest.mark.parametrize(
    ("prompt", "form"),
    [
        ("What is 17 - 9?", Form.FREE),
        ("What is 17 - 9? Reply with only the number.", Form.BARE),
        ("Answer with a letter, nothing else.", Form.BARE),
        (r"Put your final answer in \boxed{}.", Form.BOXED),
        ("Think, then write <answer>...</answer>.", Form.TAG),
        ("End with #### and the number.", Form.MARKER),
        ("Only three ducks are left. How many letters has the word?", Form.FREE),
    ],
)
def test_the_prompt_names_the_form(prompt: str, form: Form) -> None:
    assert asked_form(prompt)[0] is form


def test_a_tag_of_another_name_and_a_system_prompt_count() -> None:
    section = FunctionSettings(kind="function", path="p", reward="m:f")
    contract = contract_of(section, task("What?", system="Use <final_answer></final_answer>."))
    assert contract.state("8") == "<final_answer>8</final_answer>"


def test_settings_that_compare_the_text_ask_for_the_text() -> None:
    assert contract_of(ArithmeticSettings(grading="exact"), task("What?")).exact
    assert not contract_of(ArithmeticSettings(), task("What?")).exact
    assert contract_of(ArithmeticSettings(grading="first_integer"), task("What?")).first_counts
    assert contract_of(RowsSettings(path="p"), task("What?")).numbers_only


def test_settings_that_read_what_the_prompt_does_not_mention() -> None:
    gym = ReasoningGymSettings(dataset="chain_sum", extract="answer_tag")
    assert contract_of(gym, task("What?")).unasked
    assert not contract_of(gym, task("What? Use <answer></answer>.")).unasked
    boxed = contract_of(RowsSettings(path="p", verifier="exact"), task(r"Put it in \boxed{}."))
    assert boxed == Contract(Form.BARE, "answer", exact=True, unasked=True)
