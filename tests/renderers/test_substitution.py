"""Substitutes for contents: what is replaced, what stays, and how the output's characters find their content again."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from niels_gpt.messages import normalise
from niels_gpt.renderers.template.execution.static_analysis import template_strings
from niels_gpt.renderers.template.proofs.substitution import (
    Edge,
    Substituted,
    is_same_but_case,
    leaves_of,
    substitute,
)
from niels_gpt.renderers.template.sampled_span import common_prefix, end_of_same

NOTHING = re.compile(r"(?!)")
TEXTS = st.text(st.characters(codec="utf-8"), max_size=30)


def made(*contents: str, retained: str = "", letters_only: bool = False, everywhere: bool = True) -> Substituted:
    messages = normalise([{"role": "user", "content": content} for content in contents])
    pattern = re.compile(re.escape(retained)) if retained else NOTHING
    return substitute(messages, pattern, "", letters_only=letters_only, everywhere=everywhere)


def leaves(found: Substituted, output: str, real: str, *, edges: bool = True) -> list[int]:
    own = np.zeros(len(real), np.bool_)
    ends = frozenset(Edge(leaf.message, leaf.text, end) for leaf in found.leaves for end in (False, True) if edges)
    return leaves_of(found, found.find(output), real, own, edges=ends).tolist()


@given(contents=st.lists(TEXTS, min_size=1, max_size=4), letters_only=st.booleans(), everywhere=st.booleans())
def test_the_characters_can_be_put_back(contents: list[str], letters_only: bool, everywhere: bool) -> None:
    found = made(*contents, letters_only=letters_only, everywhere=everywhere)
    output = "<u>".join(str(message["content"]) for message in found.messages)
    assert found.restored(output, found.find(output)) == "<u>".join(contents)
    codes = found.codes[found.find(output)[found.find(output) >= 0]]
    assert len(set(codes.tolist())) == len(codes), "each substitute stands for one character"
    assert not set(map(chr, codes)) & set("".join(contents))


@given(contents=st.lists(TEXTS.filter(str.strip), min_size=1, max_size=4))
def test_copied_contents_are_found_whole(contents: list[str]) -> None:
    found = made(*contents)
    texts = [str(message["content"]) for message in found.messages]
    output, real = "".join(f"«{text}»" for text in texts), "".join(f"«{text}»" for text in contents)
    expected: list[int] = []
    for index, content in enumerate(contents):
        expected += [-1, *[index] * len(content), -1]
    if any("«" in content or "»" in content for content in contents):
        return  # it cannot be told from the template's
    assert leaves(found, output, real) == expected


def test_what_is_between_and_around_substitutes() -> None:
    """The example of `leaves_of`: the comma is between, the point follows in the content, `<` and `>` are not in it."""
    found = made("a,  b.", letters_only=True)
    output = f"<{found.messages[0]['content']}>"
    assert leaves(found, output, "<a,  b.>") == [-1, 0, 0, 0, 0, 0, 0, -1]


def test_white_space_at_the_edges_only_where_it_was_seen_to_matter() -> None:
    found = made(" ab ")
    output = f"<{found.messages[0]['content']}>"
    assert leaves(found, output, "< ab >") == [-1, 0, 0, 0, 0, -1]
    assert leaves(found, output, "< ab >", edges=False) == [-1, -1, 0, 0, -1, -1]


def test_what_json_escapes_is_content() -> None:
    found = made('a\n"b"', letters_only=True)
    a, b = str(found.messages[0]["content"])[0], str(found.messages[0]["content"])[3]
    assert leaves(found, f'["{a}\\n\\"{b}\\""]', '["a\\n\\"b\\""]') == [-1, -1, *[0] * 8, -1, -1]


def test_compared_strings_stay_but_not_a_whole_content() -> None:
    found = made("go /no_think now", "/no_think", retained="/no_think")
    assert "/no_think" in str(found.messages[0]["content"])
    assert "/no_think" not in str(found.messages[1]["content"])
    assert made("/no_think", retained="/no_think", everywhere=False).messages[0]["content"] == "/no_think"


def test_calls_have_substitutes_in_names_keys_and_values_but_not_in_ids() -> None:
    arguments: dict[str, Any] = {"city": "Paris", "days": 3}
    call = {"type": "function", "id": "call1", "function": {"name": "look", "arguments": arguments}}
    messages = normalise([{"role": "assistant", "content": "", "tool_calls": [call]}])
    [replaced] = substitute(messages, NOTHING, "", letters_only=False, everywhere=True).messages[0]["tool_calls"]
    assert (replaced["type"], replaced["id"]) == ("function", "call1")
    assert replaced["function"]["name"] != "look"
    assert "city" not in replaced["function"]["arguments"]
    assert 3 in replaced["function"]["arguments"].values()


@pytest.mark.parametrize(
    ("source", "compared", "searched"),
    [
        ("{{ m.content }}<|im_end|>", (), ()),
        ("{{ '<a>' + m.content ~ '<b>' }}", (), ()),
        ("{% if m.role == 'user' %}{% endif %}", ("user",), ()),
        ("{{ m.content.split('</think>') }}", ("</think>",), ("</think>",)),
        ("{% if '/no_think' in m.content %}x{% endif %}", ("/no_think",), ("/no_think",)),
        ("{% if 'tool_calls' in m %}x{% endif %}{{ m.get('name') }}", ("name", "tool_calls"), ()),
    ],
)
def test_strings_of_a_template(source: str, compared: tuple[str, ...], searched: tuple[str, ...]) -> None:
    found = template_strings(source)
    assert (found.compared, found.searched) == (compared, searched)


@given(one=st.text("ab\n ", max_size=8), other=st.text("ab\n ", max_size=8))
def test_common_prefix(one: str, other: str) -> None:
    length = common_prefix(one, other)
    assert one[:length] == other[:length]
    assert length == min(len(one), len(other)) or one[length] != other[length]


@given(words=st.lists(st.sampled_from(["<a>", "b:", "\n", " "]), min_size=1), tail=st.text("xy \n", max_size=4))
def test_ends_apart_from_white_space(words: list[str], tail: str) -> None:
    expected, written = "".join(words), " \n".join(word for word in words if not word.isspace())
    end = end_of_same(expected, written + tail)
    assert end is not None
    assert written == (written + tail)[:end].rstrip() or not written
    assert end_of_same(expected + "c", written + tail) is None


def test_case_is_the_only_difference() -> None:
    assert is_same_but_case("Hi You", "hI yOU")
    assert not is_same_but_case("Hi", "Ho")
    assert not is_same_but_case("ß", "SS")
