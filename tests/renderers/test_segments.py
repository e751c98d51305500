"""attribute_text_segments against a reading character by character."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.renderers.base import attribute_text_segments
from niels_gpt.tokenizer.load import open_encoder
from tests.tokenizer import tiny

Segments = Sequence[tuple[str, bool]]
TOKENIZERS = {
    "byte_level": tiny.cached(tiny.byte_level),
    "unsplit": tiny.cached(tiny.byte_level, ("split", False)),
    "NFC": tiny.cached(tiny.byte_level, ("form", "NFC")),
    "metaspace": tiny.cached(tiny.metaspace),
    "always spaced": tiny.cached(tiny.metaspace, ("scheme", "always")),
    "spaced": tiny.cached(tiny.spaced),
}
WORDS = (
    "hello",
    " world",
    "user\n",
    "e\u0301",
    "é",
    "🤖",
    "👩‍👩‍👧",
    "中文",
    " ",
    "\n\n",
    "x + 1",
    "<think>",
    "",
    tiny.END,
    "<|im_",
)


def reference(tokenizer: Any, segments: Segments) -> list[tuple[int, bool]]:
    """Encode the text by `tokenizers` itself, controls cut out by hand, and look every character up.

    For tokenizers whose offsets are true, and texts that spell no control token in content.
    """
    text = "".join(part for part, _ in segments)
    content = [is_content for part, is_content in segments for _ in part]
    encoding = tokenizer.encode(text, add_special_tokens=False)
    found = []
    for token, (start, _) in zip(encoding.ids, encoding.offsets, strict=True):
        found.append((token, content[start]))
    return found


@pytest.mark.parametrize("kind", ["byte_level", "unsplit", "spaced", "NFC"])
def test_character_by_character(kind: str) -> None:
    rng, tokenizer = random.Random(kind), TOKENIZERS[kind]
    seams = 0
    for _ in range(150):
        # The normaliser's offsets are its own for characters that it joins.
        words = [word for word in WORDS if word != tiny.END and (kind != "NFC" or "\u0301" not in word)]
        segments = [(rng.choice(words), rng.random() < 0.5) for _ in range(rng.randint(0, 6))]
        expected = reference(tokenizer, segments)
        assert attribute_text_segments(tokenizer, segments) == expected
        alone = [token for part, _ in segments for token, _ in attribute_text_segments(tokenizer, [(part, False)])]
        seams += alone != [token for token, _ in expected]
    assert seams > 5 or kind in ("NFC", "spaced")  # tokens that go over a seam


def test_a_token_over_a_seam() -> None:
    tokenizer = TOKENIZERS["unsplit"]
    whole = attribute_text_segments(tokenizer, [("user", False)])
    assert len(whole) == 1, "the tokenizer is to have it as one token"
    token = whole[0][0]
    scaffold_first, content_first = [("us", False), ("er", True)], [("us", True), ("", False), ("er", False)]
    assert attribute_text_segments(tokenizer, scaffold_first) == [(token, False)]
    assert attribute_text_segments(tokenizer, content_first) == [(token, True)]


@pytest.mark.parametrize("kind", ["byte_level", "unsplit", "NFC", "spaced"])
def test_controls_outside_of_content_alone(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    end = open_encoder(tokenizer).control_ids[tiny.END]
    made = attribute_text_segments(tokenizer, [(tiny.END, True), (tiny.END, False)])
    assert [token for token, _ in made].count(end) == 1
    assert made[-1] == (end, False)
    assert b"".join(open_encoder(tokenizer).token_bytes([token for token, _ in made])).decode() == tiny.END * 2
    assert all(held for _, held in made[:-1])
    assert len(made) > 2
    # Half in content: text.
    halves = attribute_text_segments(tokenizer, [(tiny.END[:5], False), (tiny.END[5:], True)])
    assert end not in [token for token, _ in halves]
    both = attribute_text_segments(tokenizer, [(tiny.END[:5], False), (tiny.END[5:], False)])
    assert both == [(end, False)]
