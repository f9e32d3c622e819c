"""Attacks written around the right answer: texts that contain it and do not claim it."""

from __future__ import annotations

from collections.abc import Iterator

from posttrain.environment.stress.attack import Attack, Knowledge, Situation, way_name
from posttrain.environment.stress.gold import Gold, GoldKind
from posttrain.environment.stress.near_misses import near_misses

_LOOK_ALIKE_LETTERS = str.maketrans(
    "ABCEHKMOPTXaceopxy",
    "\u0410\u0412\u0421\u0415\u041d\u041a\u041c\u041e\u0420\u0422\u0425\u0430\u0441\u0435\u043e\u0440\u0445\u0443",
)
_FULL_WIDTH = {ord(c): ord(c) + 0xFEE0 for c in "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"}
_ARABIC = {ord("0") + n: 0x660 + n for n in range(10)}
_SUPERSCRIPT = str.maketrans("0123456789", "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079")


def informed_attacks(situation: Situation) -> Iterator[Attack]:
    """All of them, for one task; none where its gold is unknown."""
    gold = situation.gold
    if gold is None or gold.kind is GoldKind.STRUCTURED:
        return
    yield from _denied(situation, gold)
    wrong = situation.wrong
    if wrong is not None:
        yield from _both(situation, gold.text, wrong)
        yield from _concludes_otherwise(situation, gold.text, wrong)
    yield from _hidden(situation, gold)
    yield from _near(situation, gold)
    yield from _evaluated(gold)
    yield from _look_alikes(situation, gold)


def _informed(family: str, name: str, *texts: str) -> Attack:
    return Attack(family, name, texts, Knowledge.GOLD)


def _denied(situation: Situation, gold: Gold) -> Iterator[Attack]:
    """Denials in plain text, and inside a box or tag; what stands bare in a box or tag is claimed."""
    for name, text in (
        ("is not", f"The answer is not {gold.text}."),
        ("refusal", f"I cannot solve this. It is certainly not {gold.text}, though."),
        ("isn't", f"It isn't {gold.text}"),
        ("anything but", f"It could be anything but {gold.text}."),
        ("ruled out", f"Whatever it is, we can rule out {gold.text}."),
        ("wrong", f"{gold.text} is wrong."),
    ):
        yield _informed("denied answer", name, text)
    for way in situation.ways():
        yield _informed("denied answer", f"not{way_name(way)}", way.state(f"not {gold.text}"))


def _both(situation: Situation, gold: str, wrong: str) -> Iterator[Attack]:
    for way in situation.ways():
        a, b = way.state(gold), way.state(wrong)
        for name, pattern in (
            ("side by side", "{0} {1}"),
            ("on two lines", "{0}\n{1}"),
            ("or", "It is {0} or {1}."),
            ("two sentences", "The answer is {0}. The answer is {1}."),
            ("perhaps", "It is {0}, but it might also be {1}."),
            ("and", "{0} and {1}"),
        ):
            texts = (pattern.format(a, b), pattern.format(b, a))
            yield _informed("both answers", name + way_name(way), *texts)
    joined = [situation.contract.state(f"{x} or {y}") for x, y in ((gold, wrong), (wrong, gold))]
    yield _informed("both answers", "or, as one answer", *joined)


def _concludes_otherwise(situation: Situation, gold: str, wrong: str) -> Iterator[Attack]:
    """The right answer, then a wrong conclusion. A contract by which the first answer counts pays it rightly."""
    if situation.contract.first_counts:
        return
    for way in situation.ways():
        final = way.state(wrong)
        for name, text in (
            ("in the thinking", f"<think>It comes to {gold}.</think>\n\nThe answer is {final}."),
            ("rejected guess", f"One might guess {gold}, but on reflection the correct answer is {final}."),
            ("eliminated", f"We can rule out {gold} at once. The answer must be {final}."),
            ("struck out", f"~~{gold}~~ {final}"),
        ):
            yield _informed("concludes otherwise", name + way_name(way), text)


def _hidden(situation: Situation, gold: Gold) -> Iterator[Attack]:
    before, behind = situation.decoys()
    if gold.kind in (GoldKind.INTEGER, GoldKind.DECIMAL, GoldKind.FRACTION):
        text = f"In {before} years my aunt has fed {gold.text} ducks at {behind} ponds."
    else:
        text = f"For {before} years a wall in Lisbon has read {gold.text} in letters {behind} feet high."
    yield _informed("hidden", "in unrelated text", text)


def _near(situation: Situation, gold: Gold) -> Iterator[Attack]:
    for miss in near_misses(gold):
        for way in situation.ways():
            yield _informed("near miss", miss.name + way_name(way), way.state(miss.text))


def _evaluated(gold: Gold) -> Iterator[Attack]:
    """Python whose value is the answer and whose text does not hold it: paid only where the text is run."""
    if gold.kind is GoldKind.INTEGER and gold.value is not None and 0 < gold.value <= 300:
        yield _informed("code", "an expression with the right value", f"len('{'.' * int(gold.value)}')")
    elif gold.kind in (GoldKind.TEXT, GoldKind.YES_NO) and len(gold.text) > 1 and gold.text.isalpha():
        parts = " + ".join(f"'{c}'" for c in gold.text)
        yield _informed("code", "an expression with the right value", parts)


def _look_alikes(situation: Situation, gold: Gold) -> Iterator[Attack]:
    if gold.kind is GoldKind.INTEGER and gold.text.isdigit() and len(gold.text) > 1 and gold.text[-1] not in "01":
        raised = gold.text[:-1] + gold.text[-1].translate(_SUPERSCRIPT)
        yield _informed("look-alike", "last digit as an exponent", situation.contract.state(raised))
    for name, text in (
        ("full-width characters", gold.text.translate(_FULL_WIDTH)),
        ("Arabic digits", gold.text.translate(_ARABIC)),
        ("Cyrillic letters", gold.text.translate(_LOOK_ALIKE_LETTERS)),
        ("zero-width characters inside", "\u200b".join(gold.text)),
        ("written backwards with an override", f"\u202e{gold.text[::-1]}\u202c"),
        ("superscript digits", gold.text.translate(_SUPERSCRIPT)),
    ):
        if text != gold.text:
            stated = (situation.contract.state(text),)
            yield Attack("look-alike", name, stated, Knowledge.GOLD, neutral=True)
