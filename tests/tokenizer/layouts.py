"""Random layouts and ids for the tests of `niels_gpt/tokenizer/fast_path.py` and of the kernel, with slow references.

The vocabulary stands for lengths alone, which is all that `attribute` looks at. Id 0 stands for no text, ids 1 to 9
for as many bytes, the last three for the control tokens `<e>`, `<f>` and `<long>`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from niels_gpt.tokenizer.fast_path import Attribution, BatchLayout
from niels_gpt.tokenizer.pieces import NO_IDS, SCAFFOLD, Ids, edges_of

CONTROLS = {"<e>": 10, "<f>": 11, "<long>": 12}
LENGTHS = np.array([*range(10), *(-len(text) for text in CONTROLS)], np.int32)
TEXTS = (
    "",
    "",
    "a",
    "naïve",
    "e\u0301",
    "中文。",
    "🤖",
    "\0",
    "한국어",
    "\u1100\u1161",
    "ab" * 40,
    "<e",
    ">",
    *CONTROLS,
)


class ScaffoldControls(dict[str, bytes]):
    """Where a text spells control tokens, found character by character."""

    def __missing__(self, text: str) -> bytes:
        pairs = [
            (len(text[:at].encode()), token)
            for at in range(len(text))
            for control, token in CONTROLS.items()
            if text.startswith(control, at)
        ]
        self[text] = found = np.array(pairs, np.int32).tobytes()
        return found


def random_text(rng: random.Random) -> str:
    """A few fragments, or characters from all planes."""
    if rng.random() < 0.8:
        return "".join(rng.choice(TEXTS) for _ in range(rng.choice((0, 1, 1, 2, 5))))
    points = [rng.choice((0x7F, 0x7FF, 0xFFFF, 0x10FFFF)) for _ in range(rng.randint(0, 12))]
    return "".join(chr(rng.randint(0, point)) for point in points).encode("utf-8", "ignore").decode()


def random_pieces(rng: random.Random) -> tuple[list[list[str]], list[list[int]]]:
    """Texts and facts of a few strings."""
    texts = [[random_text(rng) for _ in range(rng.choice((0, 1, 3, 6)))] for _ in range(rng.choice((0, 1, 2, 5)))]
    facts = [[rng.choice((0, SCAFFOLD, SCAFFOLD | 1, -1, -(2**31), 2**31 - 1)) for _ in own] for own in texts]
    return texts, facts


def right_ids(laid: BatchLayout, rng: random.Random) -> Ids:
    """Ids that account for every byte: the expected control tokens, and others up to each of them and each end."""
    borders = set(laid.edges[edges_of(laid.pieces)].tolist())
    controls = dict(zip(laid.control_at.tolist(), laid.control_ids.tolist(), strict=True))
    ids, at, total = [], 0, int(laid.edges[-1])
    while at < total:
        if at in controls:
            ids.append(controls[at])
            at -= int(LENGTHS[controls[at]])
            continue
        free = next(stop for stop in range(at + 1, total + 1) if stop in borders or stop in controls) - at
        ids.append(rng.randint(1, min(9, free)))
        at += ids[-1]
    return np.array(ids, np.int32)


def damaged_ids(ids: Ids, rng: random.Random) -> Ids:
    """The same ids with one or more of them removed, inserted, replaced, moved or repeated."""
    made = ids.tolist()
    for _ in range(rng.choice((1, 1, 2, 6))):
        at = rng.randint(0, len(made))
        token = rng.choice((0, 1, 2, 9, 10, 11, 12, 13, -1, 2**31 - 1, -(2**31)))
        change: Callable[[], Any] = rng.choice(
            (
                lambda at=at: made.__delitem__(slice(at, at + 1)),
                lambda at=at, token=token: made.insert(at, token),
                lambda at=at, token=token: made.__setitem__(slice(at, at + 1), [token]),
                lambda at=at: made.__setitem__(slice(at, at + 2), made[at : at + 2][::-1]),
                lambda at=at: made.__setitem__(slice(None), made[at:] + made[:at]),
                lambda at=at: made.__delitem__(slice(at, None)),
            )
        )
        change()
    return np.array(made, np.int32) if made else NO_IDS


def damaged_controls(laid: BatchLayout, rng: random.Random) -> BatchLayout:
    """Other control tokens are expected, at ascending bytes of the data."""
    total = int(laid.edges[-1])
    expected = dict(zip(laid.control_at.tolist(), laid.control_ids.tolist(), strict=True))
    for _ in range(rng.choice((1, 2, 5)) if total else 0):
        expected[rng.randrange(total)] = rng.choice((1, *CONTROLS.values(), 13, -1, 2**31 - 1))
        if rng.random() < 0.6:
            expected.pop(rng.choice(list(expected)))
    at = sorted(expected)
    return laid._replace(
        control_at=np.array(at, np.int64), control_ids=np.array([expected[one] for one in at], np.int32)
    )


def arguments(ids: Ids, laid: BatchLayout) -> list[Any]:
    """What the kernel's `attribute` takes."""
    return [ids, LENGTHS, laid.edges, laid.pieces, laid.control_at, laid.control_ids]


# ---- slow references


def layout_slowly(texts: Sequence[Sequence[str]], facts: Sequence[Sequence[int]]) -> dict[str, list[Any]]:
    """Every field of a layout but `nfc_classes`, with one loop and no cleverness."""
    data, edges, bits, controls = b"", [0], [], []
    for own, held in zip(texts, facts, strict=True):
        for text, fact in zip(own, held, strict=True):
            if fact & SCAFFOLD:
                for at in range(len(text)):
                    for control, token in CONTROLS.items():
                        if text[at:].startswith(control):
                            controls.append((len(data) + len(text[:at].encode()), token))
            data += text.encode()
            edges.append(len(data))
            bits.append(fact)
    return {
        "data": list(data),
        "edges": edges,
        "facts": bits,
        "pieces": [len(own) for own in texts],
        "control_at": [at for at, _ in controls],
        "control_ids": [token for _, token in controls],
    }


def attribute_slowly(ids: Ids, laid: BatchLayout) -> Attribution:
    """By the definition in `Attribution`, with every byte looked at by itself."""
    edges, total = laid.edges.tolist(), int(laid.edges[-1])
    starts, byte = [], 0
    for token in ids.tolist():
        starts.append(byte)
        byte += abs(int(LENGTHS[token])) if 0 <= token < LENGTHS.size else 0
    complete = byte == total and all(start < total for start in starts)
    counts = [sum(a <= start < b for start in starts) for a, b in pairwise(edges)]
    own, proven, first = [], [], 0
    expected = list(zip(laid.control_at.tolist(), laid.control_ids.tolist(), strict=True))
    for pieces in laid.pieces.tolist():
        a, b = edges[first], edges[first + pieces]
        here = [(start, token) for start, token in zip(starts, ids.tolist(), strict=True) if a <= start < b]
        first += pieces
        own.append(len(here))
        known = all(0 <= token < LENGTHS.size and LENGTHS[token] != 0 for _, token in here)
        proven.append(
            complete
            and known
            and {a, b} <= {*starts, total}
            and [one for one in here if one[1] in CONTROLS.values()] == [one for one in expected if a <= one[0] < b]
        )
    columns = np.array(counts, np.int64), np.array(own, np.int64), np.array(proven, np.bool_)
    return Attribution(*columns, complete, complete and all(proven))
