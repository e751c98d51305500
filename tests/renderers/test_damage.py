"""Whatever a model writes is read without an error: damaged completions of all families."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.renderers.completions.parsed import ParsedResponse
from niels_gpt.renderers.kinds import Kind
from niels_gpt.renderers.registry import FAMILIES
from tests.renderers.chats import TOOLS
from tests.renderers.damage import Ids, bytes_of, check_reading, damaged, stock_of
from tests.renderers.sweeps import conversations, families
from tests.renderers.tiny_families import TOKENS, byte_level, renderer_of

IN_ALL = 4_000  # damaged completions, over all families together


@families
@conversations(IN_ALL // len(FAMILIES), 20_000)
def test_damaged_completions(family: str, number: int) -> None:
    renderer, rng, stock = renderer_of(family), random.Random(family), stock_of(family)
    statuses = set()
    for _ in range(number):
        ids = damaged(rng, stock)
        parsed = renderer.parse_response(ids, tools=rng.choice((None, TOOLS)) if renderer.calls else None)
        check_reading(renderer, ids, parsed)
        check_pieces(renderer, ids, parsed)
        statuses |= {call.status for call in parsed.tool_calls}
    if renderer.calls:
        assert len(statuses) >= 3  # the damage is real


def test_a_token_that_two_calls_share_belongs_to_the_first() -> None:
    """Real vocabularies have `},{"` as one token, and Llama's calls may follow each other so."""
    shared = '},{"'
    renderer = FAMILIES["llama-3"](byte_level(replace(TOKENS["llama-3"], added=(shared,))))
    call = '{"name": "f", "parameters": {}}'
    ids = renderer.encoder.encode_pieces([f"{call},{call}"], [False])[0].tolist()
    middle = ids.index(renderer.encoder.added_ids[shared])
    read = renderer.parse_response(ids).tool_calls
    assert [(one.raw, one.token_span) for one in read] == [(call, (0, middle + 1)), (call, (middle + 1, len(ids)))]


# ---- nothing is in no field


def check_pieces(renderer: Any, ids: Ids, parsed: ParsedResponse) -> None:
    """The pieces are one behind the other, and what they hold is in the fields."""
    stops = renderer.get_stop_token_ids()
    end = next((at for at, token in enumerate(ids) if token in stops), len(ids))
    spans = [piece.token_span for piece in parsed.pieces]
    assert [start for start, _ in spans] == [0, *(stop for _, stop in spans)][: len(spans)]
    assert all(start < stop for start, stop in spans)
    assert (spans[-1][1] if spans else 0) == min(len(ids), end + 1)
    assert [piece.kind is Kind.STOP for piece in parsed.pieces].count(True) == (end < len(ids))
    for kind, field in ((Kind.REPLY, parsed.content), (Kind.REASONING, parsed.reasoning_content or "")):
        held = [bytes_of(renderer, ids[slice(*piece.token_span)]) for piece in parsed.pieces if piece.kind is kind]
        letters = "".join(part.decode(errors="replace") for part in held).replace("\ufffd", "").split()
        rest = iter("".join(letters))
        assert all(letter in rest for letter in "".join(field.replace("\ufffd", "").split()))
        # All of the field, and at each edge no more than the rest of a token that it shares with markup.
        assert len("".join(rest)) <= 8 * len(held)


def test_the_pieces_of_an_answer_with_a_call() -> None:
    renderer = renderer_of("qwen3")
    texts = ["<think>\n", "hm", "\n</think>\n\n", "Here", "\n", '<tool_call>{"name": "f", "arguments": {}}</tool_call>']
    ids = [renderer.encoder.encode_pieces([text], [True])[0].tolist() for text in [*texts, "<|im_end|>"]]
    parsed = renderer.parse_response([token for part in ids for token in part])
    kinds = [Kind.MARKUP, Kind.REASONING, Kind.MARKUP, Kind.REPLY, Kind.MARKUP, Kind.MARKUP, Kind.STOP]
    ends = [sum(map(len, ids[: at + 1])) for at in range(len(ids))]
    assert parsed.pieces == [*zip(kinds, zip([0, *ends], ends, strict=False), strict=True)]
    assert parsed.tool_calls[0].token_span == parsed.pieces[5].token_span
