"""Completions as broken models and broken transports write them, and what must hold of any reading of one."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass

from niels_gpt.renderers.completions.parsed import ParsedResponse, ParsedToolCall, ToolCallParseStatus
from niels_gpt.renderers.family import Family
from tests.memory import shared
from tests.renderers.sweeps import answered, served_and_said
from tests.renderers.tiny_families import TOKENS, renderer_of

Ids = list[int]
# What readers of JSON and of tags stumble over.
TEXTS = (
    *(
        "NaN",
        "-Infinity",
        "1e999",
        "9" * 5000,
        "[" * 3000,
        '{"a":' * 500,
        '"\\ud83d"',
        "\\",
        '"',
        "{",
        "}",
        "]",
        ",",
        ": ",
    ),
    *("</", "<function=", "</function>", "<parameter=", "</parameter>", "```", "```json\n", "null", "\x00", "\n" * 50),
    *("<tool_call>", "</tool_call>", "<think>", "</think>", '{"name": "f", "arguments": "text"}', "functions.f:0"),
)

BETWEEN = " ,;]}\n"  # what may share a token with the end of a bare call


@dataclass(frozen=True)
class Stock:
    """What damage is made from: clean completions of a family, its added tokens, tokens of a single byte, `TEXTS`."""

    completions: list[Ids]
    markup: Ids
    single_bytes: Ids
    texts: list[Ids]
    vocab_size: int


@shared
def stock_of(family: str) -> Stock:
    """The stock of a family, from its tiny tokenizer."""
    encoder = renderer_of(family).encoder
    every = range(encoder.vocab_size)
    return Stock(
        [served_and_said(renderer_of(family), *made)[1] for made in answered(family, 60, seed=4)],
        [*encoder.added_ids.values()],
        [token for token, held in zip(every, encoder.token_bytes(every), strict=True) if len(held) == 1],
        [encoder.encode_pieces([text], [False])[0].tolist() for text in TEXTS],
        encoder.vocab_size,
    )


def _cut(rng: random.Random, ids: Ids, stock: Stock) -> Ids:
    return ids[: rng.randint(0, len(ids))]


def _delete(rng: random.Random, ids: Ids, stock: Stock) -> Ids:
    start, stop = _stretch(rng, ids)
    return ids[:start] + ids[stop:]


def _duplicate(rng: random.Random, ids: Ids, stock: Stock) -> Ids:
    start, stop = _stretch(rng, ids)
    return ids[:stop] + ids[start:]


def _swap(rng: random.Random, ids: Ids, stock: Stock) -> Ids:
    """Two neighbouring stretches change places."""
    first, middle, last = sorted(rng.randint(0, len(ids)) for _ in range(3))
    return ids[:first] + ids[middle:last] + ids[first:middle] + ids[last:]


def _insert_markup(rng: random.Random, ids: Ids, stock: Stock) -> Ids:
    at = rng.randint(0, len(ids))
    return ids[:at] + rng.choices(stock.markup, k=rng.randint(1, 3)) + ids[at:]


def _splice(rng: random.Random, ids: Ids, stock: Stock) -> Ids:
    """The beginning of one completion and the end of another."""
    other = rng.choice(stock.completions)
    return ids[: rng.randint(0, len(ids))] + other[rng.randint(0, len(other)) :]


def _noise(rng: random.Random, ids: Ids, stock: Stock) -> Ids:
    """Single bytes, which need not be UTF-8, any tokens, and ids behind the vocabulary, as padded embeddings have."""
    strays = rng.choice((stock.single_bytes, range(stock.vocab_size), range(stock.vocab_size, stock.vocab_size + 9)))
    at = rng.randint(0, len(ids))
    return ids[:at] + rng.choices(strays, k=rng.randint(1, 5)) + ids[at + rng.randint(0, 2) :]


def _insert_text(rng: random.Random, ids: Ids, stock: Stock) -> Ids:
    at = rng.randint(0, len(ids))
    return ids[:at] + rng.choice(stock.texts) + ids[at:]


DAMAGES: dict[str, Callable[[random.Random, Ids, Stock], Ids]] = {
    "cut": _cut,
    "delete": _delete,
    "duplicate": _duplicate,
    "swap": _swap,
    "insert markup": _insert_markup,
    "splice": _splice,
    "noise": _noise,
    "insert text": _insert_text,
}


def _stretch(rng: random.Random, ids: Ids) -> tuple[int, int]:
    """A stretch of ids: short as often as long."""
    start = rng.randint(0, len(ids))
    longest = rng.choice((1, 3, len(ids)))
    return start, min(len(ids), start + rng.randint(0, longest))


def damaged(rng: random.Random, stock: Stock) -> Ids:
    """A completion of the stock, damaged once to four times."""
    ids = rng.choice(stock.completions)
    for _ in range(rng.randint(1, 4)):
        ids = rng.choice([*DAMAGES.values()])(rng, ids, stock)
    return ids


def check_reading(renderer: Family, ids: Ids, parsed: ParsedResponse) -> None:
    """What holds of the reading of any completion."""
    parsed.content.encode()
    assert parsed.reasoning_content is None or parsed.reasoning_content.encode()
    check_calls_sane(renderer, ids, parsed.tool_calls)


def check_calls_sane(renderer: Family, ids: Ids, calls: list[ParsedToolCall]) -> None:
    """Statuses, spans one behind the other in the completion, and raw text that is what stands in the span."""
    end = 0
    for call in calls:
        assert isinstance(call.status, ToolCallParseStatus)
        if call.status is ToolCallParseStatus.OK:
            assert call.name
            assert isinstance(call.arguments, dict)
        assert call.name is None or call.name.encode()
        assert call.arguments is None or isinstance(call.arguments, dict | str)
        json.dumps(call.arguments, ensure_ascii=False, allow_nan=False).encode()
        start, stop = call.token_span or (-1, -1)
        assert end <= start < stop <= len(ids)
        check_raw(renderer, call, bytes_of(renderer, ids[start:stop]).decode(errors="replace"))
        end = stop


def check_raw(renderer: Family, call: ParsedToolCall, held: str) -> None:
    """The text of a call's span is its raw text between its tags, or, where calls are bare, between separators."""
    opening, closing = TOKENS[renderer.name].call
    if TOKENS[renderer.name].headed:
        assert opening.strip() + call.raw in held
    elif not opening:
        assert held.strip(BETWEEN).removesuffix(closing).strip(BETWEEN) == call.raw.strip(BETWEEN)
    else:
        # An attempt without the tags of a call is its own text.
        assert held in (opening + call.raw + closing, opening + call.raw, call.raw)


def bytes_of(renderer: Family, ids: Ids) -> bytes:
    """What ids stand for, told token by token; U+FFFD for those that there are not."""
    size = renderer.encoder.vocab_size
    return b"".join(renderer.encoder.token_bytes([token])[0] if token < size else b"\xef\xbf\xbd" for token in ids)
