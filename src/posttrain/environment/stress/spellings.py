r"""Right answers in many spellings.

Two things vary: how the value is written (``42``, ``42.0``, ``\frac{1}{2}``) and what stands around it (a sentence, a
box, bold). Every spelling varies one of them and leaves the other as the environment asks for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from posttrain.environment.stress.contract import Contract, Form
from posttrain.environment.stress.gold import Gold, GoldKind
from posttrain.environment.stress.numbers import decimal_text, plain_text


class Standing(StrEnum):
    """What an environment owes a spelling."""

    ASKED = "asked"
    """Written as prompt and settings ask: refusing it is a fault."""
    USUAL = "usual"
    """Models often write it, nothing forbids it: refusing it loses signal."""
    RARE = "rare"
    """Right, but rarely written or open to debate."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """A completion with the right answer. ``name`` does not depend on the task."""

    name: str
    text: str
    standing: Standing


@dataclass(frozen=True, slots=True)
class _Written:
    name: str
    text: str
    usual: bool = True


WORK = "First I look at what is given. Then I work it out.\n"
CHATTER = "\n\nThat settles it. Do ask if any step is unclear. " + "It all fits together nicely. " * 14


def spellings(gold: Gold, contract: Contract) -> list[Spelling]:
    """Every spelling of a gold answer, none twice."""
    exact = contract.exact
    found = [
        *(Spelling(w.name, w.text, Standing.ASKED) for w in _asked(gold.text, contract)),
        *(
            Spelling(w.name, contract.state(w.text), Standing.USUAL if w.usual and not exact else Standing.RARE)
            for w in _values(gold)
        ),
        *(
            Spelling(w.name, w.text, Standing.USUAL if w.usual and contract.form is Form.FREE else Standing.RARE)
            for w in _surroundings(gold)
        ),
    ]
    first: dict[str, Spelling] = {}
    for spelling in found:
        first.setdefault(spelling.text, spelling)
    return list(first.values())


def _asked(text: str, contract: Contract) -> Iterator[_Written]:
    stated = contract.state(text)
    yield _Written("as asked", stated)
    yield _Written("white space around", f"\n  {stated} \n")
    if contract.exact:
        return
    match contract.form:
        case Form.BOXED:
            yield _Written("box in a sentence", f"The answer is {stated}.")
            yield _Written("work, then the box", f"{WORK}So the answer is ${stated}$.")
            yield _Written("box, then chatter", f"{stated}{CHATTER}")
        case Form.TAG:
            yield _Written("tag over lines", contract.state(f"\n{text}\n"))
            yield _Written("thinking, then the tag", f"<think>\n{WORK}</think>\n\n{stated}")
        case Form.MARKER:
            yield _Written("work, then the marker", f"{WORK}{stated}")
            yield _Written("marker, then chatter", f"{WORK}{stated}{CHATTER}")
        case Form.FREE | Form.BARE:
            pass


def _surroundings(gold: Gold) -> Iterator[_Written]:
    text = gold.text
    yield _Written("bare", text)
    yield _Written("in a sentence", f"The answer is {text}.")
    yield _Written("'so' sentence", f"So it comes to {text}.")
    yield _Written("work, then a sentence", f"{WORK}The answer is {text}.")
    yield _Written("label", f"Answer: {text}")
    yield _Written("final label", f"{WORK}Final answer: {text}")
    yield _Written("bold", f"The result is **{text}**.")
    yield _Written("heading and bold", f"## Solution\n\nThat makes **{text}**.")
    yield _Written("in dollars", f"${text}$")
    yield _Written("label and dollars", f"Answer: ${text}$")
    yield _Written("in \\( \\)", rf"The answer is \({text}\).")
    yield _Written("boxed", rf"\boxed{{{text}}}")
    yield _Written("work, then boxed", rf"{WORK}Therefore the answer is \boxed{{{text}}}.")
    yield _Written("boxed, then chatter", rf"\boxed{{{text}}}{CHATTER}", usual=False)
    yield _Written("in \\text", rf"\text{{{text}}}")
    yield _Written("behind ####", f"{WORK}#### {text}")
    yield _Written("in an answer tag", f"<answer>{text}</answer>")
    yield _Written("thinking, then a sentence", f"<think>\n{WORK}</think>\n\nThe answer is {text}.")
    yield _Written("thinking, then an answer tag", f"<think>\n{WORK}</think>\n<answer>\n{text}\n</answer>")
    yield _Written("code block, then a sentence", f"```python\nresult = {text}\n```\n\nThe answer is {text}.")
    yield _Written("aligned, then boxed", f"\\begin{{align}}\nx &= {text}\n\\end{{align}}\n\n\\boxed{{{text}}}")
    yield _Written("sentence, then chatter", f"The answer is {text}.{CHATTER}", usual=False)
    yield _Written("in parentheses", f"({text})", usual=False)
    yield _Written("as an equation", f"x = {text}")
    if gold.kind in (GoldKind.INTEGER, GoldKind.DECIMAL):
        yield _Written("with a unit", f"{text} apples", usual=False)
        yield _Written("with a currency", f"${text}", usual=False)


def _values(gold: Gold) -> Iterator[_Written]:
    text = gold.text
    yield _Written("trailing full stop", f"{text}.")
    match gold.kind:
        case GoldKind.INTEGER:
            assert gold.value is not None
            yield from _integer(text, int(gold.value))
        case GoldKind.DECIMAL:
            assert gold.value is not None
            yield from _decimal(text, gold.value)
        case GoldKind.FRACTION:
            assert gold.value is not None
            yield from _fraction(gold.value)
        case GoldKind.PERCENT:
            yield _Written("escaped per cent sign", text.replace("\\%", "%").replace("%", "\\%"))
            yield _Written("plain per cent sign", text.replace("\\%", "%"))
        case GoldKind.QUANTITY:
            number, unit = _split_unit(text)
            yield _Written("unit in \\text", rf"{number}\text{{ {unit}}}", usual=False)
            yield _Written("number without its unit", number, usual=False)
        case GoldKind.CHOICE:
            letter = text.strip("()")
            yield _Written("letter in parentheses", f"({letter})")
            yield _Written("letter without parentheses", letter)
            yield _Written("other case", letter.swapcase(), usual=False)
        case GoldKind.YES_NO:
            yield _Written("capitalised", text.capitalize())
            yield _Written("capitalised with full stop", f"{text.capitalize()}.")
            yield _Written("lower case", text.lower())
            yield _Written("upper case", text.upper(), usual=False)
        case GoldKind.COLLECTION:
            yield _Written("other spacing", re.sub(r",\s*", ",", text))
            yield _Written("other spacing", re.sub(r",\s*", ", ", text))
            if text[0] in "{" and text[1:-1].count("{") == 0:
                yield _Written("set in other order", "{" + ",".join(reversed(text[1:-1].split(","))) + "}", usual=False)
        case GoldKind.EXPRESSION:
            yield from _expression(text)
        case GoldKind.TEXT:
            yield from _words(text)
        case GoldKind.STRUCTURED:
            return


def _integer(text: str, value: int) -> Iterator[_Written]:
    plain = str(value)
    yield _Written("plain digits", plain)
    yield _Written("decimal zero", f"{plain}.0")
    if value > 0:
        yield _Written("plus sign", f"+{text}")
        yield _Written("leading zero", f"0{plain}", usual=False)
    if abs(value) >= 1000:
        yield _Written("thousands commas", f"{value:,}")
        yield _Written("LaTeX thousands commas", f"{value:,}".replace(",", "{,}"), usual=False)
        if value % 1000 == 0:
            yield _Written("power of ten", f"{value // 1000}e3", usual=False)
    if value == 0:
        yield _Written("minus zero", "-0", usual=False)
    yield from _signed(text, value < 0)


def _decimal(text: str, value: Fraction) -> Iterator[_Written]:
    plain = plain_text(value)
    yield _Written("trailing zero", f"{plain}0")
    if abs(value) < 1:
        yield _Written("no leading zero", plain.replace("0.", ".", 1))
    if value.denominator <= 1000:
        yield _Written("fraction", f"{value.numerator}/{value.denominator}")
        yield _Written("LaTeX fraction", _latex(value, "frac"))
    if 0 < abs(value) < Fraction(1, 100):
        places = len(plain.partition(".")[2])
        yield _Written("power of ten", f"{int(value * 10**places)}E-{places}", usual=False)
    yield from _signed(text, value < 0)


def _fraction(value: Fraction) -> Iterator[_Written]:
    above, below = value.numerator, value.denominator
    yield _Written("slash", f"{above}/{below}")
    yield _Written("LaTeX fraction", _latex(value, "frac"))
    yield _Written("\\dfrac", _latex(value, "dfrac"))
    yield _Written("not reduced", f"{2 * above}/{2 * below}", usual=False)
    decimal = decimal_text(value)
    yield _Written("decimal", decimal) if decimal else _Written("long decimal", f"{float(value):.10f}", usual=False)
    if abs(value) > 1 and below > 1:
        whole, rest = divmod(abs(above), below)
        yield _Written("mixed number", f"{'-' if value < 0 else ''}{whole} {rest}/{below}", usual=False)


def _signed(text: str, negative: bool) -> Iterator[_Written]:
    if negative:
        digits = text.lstrip("-\u2212")
        yield _Written("typeset minus", f"\u2212{digits}")
        yield _Written("spaced minus", f"- {digits}", usual=False)


def _expression(text: str) -> Iterator[_Written]:
    latex = re.sub(r"\bsqrt\(([^()]*)\)", r"\\sqrt{\1}", text)
    latex = re.sub(r"(?<=\d)\*(?=\\)", "", re.sub(r"(?<!\\)\bpi\b", r"\\pi", latex).replace("\u03c0", r"\pi"))
    plain = re.sub(r"\\sqrt\{([^{}]*)\}", r"sqrt(\1)", text).replace(r"\pi", "pi")
    yield _Written("LaTeX roots and pi", latex)
    yield _Written("plain roots and pi", re.sub(r"(?<=\d)(?=sqrt|pi)", "*", plain), usual=False)
    yield _Written("unbraced root", re.sub(r"\\sqrt\{(\w)\}", r"\\sqrt \1", latex), usual=False)
    yield _Written("typeset pi", latex.replace(r"\pi", "\u03c0"), usual=False)
    yield _Written("space before a symbol", re.sub(r"(?<=\d)(?=\\[a-z])", " ", latex))


def _words(text: str) -> Iterator[_Written]:
    yield _Written("capitalised", text[:1].upper() + text[1:])
    yield _Written("lower case", text.lower())
    yield _Written("in quotation marks", f'"{text}"', usual=False)
    without = re.sub(r"^(?:the|an?)\s+", "", text, flags=re.IGNORECASE)
    yield _Written("without article", without)
    if without == text and len(text.split()) <= 3 and text[:1].islower():
        yield _Written("with article", f"the {text}", usual=False)


def _latex(value: Fraction, command: str) -> str:
    return f"{'-' if value < 0 else ''}\\{command}{{{abs(value.numerator)}}}{{{value.denominator}}}"


def _split_unit(text: str) -> tuple[str, str]:
    match = re.match(r"([^A-Za-z\u00b0\u00b5]*?)\s*([A-Za-z\u00b0\u00b5].*)", text)
    return (match[1], match[2]) if match else (text, "")
