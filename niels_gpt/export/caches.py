"""Caches as sources: conversations with sentinels or masks, and streams as documents."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.cache.formats import TOKEN_DTYPES, index_name, mask_name, tokens_name
from niels_gpt.cache.meta import Meta
from niels_gpt.cache.mmap import ExampleIndex, Tokens, map_tokens
from niels_gpt.export.rows import Bools, Int64s, Rows, rows_of, runs
from niels_gpt.export.source import PORTION_TOKENS, Examples, Facts, check
from niels_gpt.format.masks import spans_after


def _facts_of_cache(path: Path, split: str, meta: Meta) -> Facts:
    special = {name: int(token) for name, token in meta["special_token_ids"].items()}
    sums = {name: record["sha256"] for name, record in meta["files"].items() if name.startswith(split)}
    return Facts(
        path=path,
        kind=meta["kind"],
        split=split,
        n_tokens=int(meta["splits"][split]["tokens"]),
        vocab_size=int(meta["vocab_size"]),
        has_mask=meta["kind"] == "sft",
        has_weights=False,
        several_texts=False,
        special_token_ids=special,
        tokenizer_sha256=meta["tokenizer_sha256"],
        fingerprint=hashlib.blake2b(json.dumps(sums, sort_keys=True).encode(), digest_size=16).hexdigest(),
    )


def sft_examples(path: Path, split: str, meta: Meta) -> Examples:
    """An SFT cache's split; its mask says what is trained, or its sentinels."""
    facts = _facts_of_cache(path, split, meta)
    tokens = map_tokens(path / tokens_name(split), TOKEN_DTYPES[meta["token_dtype"]])
    index = ExampleIndex(path / index_name(split), len(tokens))
    mask = map_tokens(path / mask_name(split), "|u1") if "mask_dtype" in meta else None

    def lengths(numbers: Int64s) -> Int64s:
        starts, stops = index.spans(numbers)
        return stops - starts

    def read(numbers: Int64s) -> Rows:
        starts, stops = index.spans(numbers)
        ids = runs(tokens, starts, stops - starts)
        if mask is None:
            weights = _by_sentinels(ids, stops - starts, facts.special_token_ids).view(np.uint8)
        else:
            weights = runs(mask, starts, stops - starts)
        rows = rows_of(ids, stops - starts, weights)
        check(rows, facts, lambda row: f"{index.path}: example {int(numbers[row]):,}")
        return rows

    return Examples(facts, len(index), lengths, read)


def _by_sentinels(ids: npt.NDArray[Any], lengths: Int64s, special: dict[str, int]) -> Bools:
    """`format.masks.spans_after` in every row; a break of its own behind each keeps rows apart.

    ::

        ids     A x E | A y | z          with breaks  A x E . A y . z .
        mask    . # #   . #   .
    """
    ends = np.cumsum(lengths)
    apart = np.insert(ids.astype(np.int64), ends, -1)
    others = [special[name] for name in ("sys", "usr") if name in special]
    mask = spans_after(apart, opens=[special["asst"]], closes=[special["eot"]], breaks=[*others, -1])
    return mask[apart >= 0]


class Stream:
    """A pretrain cache's split, as documents."""

    def __init__(self, path: Path, split: str, meta: Meta) -> None:
        self.facts = _facts_of_cache(path, split, meta)
        names = sorted(name for name in meta["files"] if name.startswith(f"{split}/"))
        self._shards: list[Tokens] = [map_tokens(path / name, TOKEN_DTYPES[meta["token_dtype"]]) for name in names]
        self._eot = self.facts.special_token_ids["eot"]

    def portions(self) -> Iterator[Rows]:
        """All documents, about a million tokens at a time.

        A document may go on in the next shard; the last one may have been cut by the token budget.

        ::

            a b E c | d E e        (E ends a document, | a portion)        a b E    c d E    e
        """
        begun: list[Tokens] = []  # of a document that goes on
        for part in self._parts():
            ends = np.flatnonzero(part == self._eot) + 1
            if not len(ends):
                begun.append(part)
                continue
            last = int(ends[-1])
            whole = np.concatenate([*begun, part[:last]])
            ends += len(whole) - last
            yield self._rows(whole, np.diff(ends, prepend=0))
            begun = [part[last:]]
        rest = np.concatenate(begun) if begun else np.empty(0, dtype=np.uint16)
        if len(rest):
            yield self._rows(rest, np.array([len(rest)]))

    def _parts(self) -> Iterator[Tokens]:
        for shard in self._shards:
            for start in range(0, len(shard), PORTION_TOKENS):
                yield shard[start : start + PORTION_TOKENS]

    def _rows(self, ids: Tokens, lengths: Int64s) -> Rows:
        rows = rows_of(ids, lengths, None)
        check(rows, self.facts, lambda row: f"{self.facts.path / self.facts.split}: a document")
        return rows
