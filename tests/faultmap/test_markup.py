from __future__ import annotations

import json
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from posttrain.faultmap.markup import Html, escape, json_block, tag


class Reader(HTMLParser):
    """Tags, attributes and text of a document."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0"))


@given(TEXTS, TEXTS)
def test_text_and_attributes_survive_and_add_no_element(text: str, value: str) -> None:
    reader = Reader()
    reader.feed(tag("p", text, title=value))
    reader.close()
    assert [name for name, _ in reader.tags] == ["p"]
    assert reader.tags[0][1] == {"title": value}
    assert reader.text == text


@given(
    st.recursive(
        st.none() | st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_a_json_block_holds_any_data_and_is_never_closed_by_it(data: object) -> None:
    block = json_block("x", data)
    body = block.removeprefix('<script type="application/json" id="x">').removesuffix("</script>")
    assert not set("<>&\u2028\u2029") & set(body)
    assert json.loads(body) == json.loads(json.dumps(data))
    block.encode("utf-8")


def test_only_markup_passes_unescaped() -> None:
    assert escape(Html("<b>")) == "<b>"
    assert escape("<b>") == "&lt;b&gt;"
    assert tag("div", tag("i", "a&b"), None, hidden=True, title=None) == "<div hidden><i>a&amp;b</i></div>"


def test_void_elements_have_no_end() -> None:
    assert tag("input", type="search") == '<input type="search">'
    assert tag("rect", fill_opacity="0.5", class_="a") == '<rect fill-opacity="0.5" class="a"/>'
