"""An example as HTML: nothing in data becomes markup, nothing is lost, and the page needs no other file."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from niels_gpt.explorer.example import ExampleView, TokenView
from niels_gpt.explorer.html import example_html, legend_html, view_html
from niels_gpt.token_display import Kind

KINDS: tuple[Kind, ...] = ("trained", "sampled", "context", "scaffold", "padding")
NASTY = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=1>',
    "&amp;",
    "</span></div>",
    " a\n\tb ",
    "\x00\x1b[31m",
    "🦑",
]


class Read(HTMLParser):
    """A page as a browser sees it: elements, attributes, and the text without the marks for white space."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, Any]]] = []
        self.texts: list[str] = []
        self.who: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)
        if tag == "span":
            self.texts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "span" in self.open and self.open[-1] != "b":
            self.texts[-1] += data
        elif self.elements and self.elements[-1][1].get("class") == "who":
            self.who.append(data)


def example(texts: list[str], **more: Any) -> ExampleView:
    tokens = [
        TokenView(at, 100 + at, text, KINDS[at % len(KINDS)], 0, "", False, **more) for at, text in enumerate(texts)
    ]
    return ExampleView("an <example>", tokens, has_text=True)


def shown(text: str) -> str:
    """A text with its control characters by number."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\u{ord(c):04x}" for c in text)


@given(st.lists(st.one_of(st.text(), st.sampled_from(NASTY)), max_size=8))
def test_every_token_stands_there_as_it_is(texts: list[str]) -> None:
    read = Read(example_html(example(texts)))
    assert read.texts == [shown(text) for text in texts]
    assert not read.open
    spans = [attributes for tag, attributes in read.elements if tag == "span"]
    assert [span["class"] for span in spans] == [KINDS[at % len(KINDS)] for at in range(len(texts))]
    assert [span["title"] for span in spans] == [f"{at}: id {100 + at}" for at in range(len(texts))]
    assert {tag for tag, _ in read.elements} <= {"div", "span", "b", "i"}


def test_a_row_for_each_message() -> None:
    first, second = example(["a"], segment=1, role="us<er"), example(["b", "c"], segment=2, role="assistant")
    read = Read(example_html(ExampleView("", [*first.tokens, *second.tokens], has_text=True)))
    assert read.who == ["0 us<er", "1 assistant"]
    assert sum(attributes.get("class") == "what" for _, attributes in read.elements) == 2


def test_ids_where_there_is_no_text() -> None:
    view = example(["", ""])
    assert Read(example_html(ExampleView("", view.tokens, has_text=False))).texts == ["100 ", "101 "]


def test_a_page_needs_no_other_file() -> None:
    page = view_html(example(NASTY))
    read = Read(page)
    assert page.startswith("<!doctype html>")
    assert not read.open
    assert "<title>an &lt;example&gt;</title>" in page
    assert not any({"src", "href", "style", "onerror"} & attributes.keys() for _, attributes in read.elements)
    for kind in KINDS:
        assert f'class="{kind}"' in page
    assert legend_html([]) == '<div class="legend"></div>'
