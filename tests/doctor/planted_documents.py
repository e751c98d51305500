"""Bugs in caches of plain text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt.cache.build_cache import build_pretrain_cache
from niels_gpt.cache.formats import TOKEN_DTYPES
from niels_gpt.cache.meta import open_meta
from niels_gpt.doctor import Report, diagnose
from tests.doctor.made import WORDS
from tests.doctor.planted import Case
from tests.renderers.tiny_families import renderer_of

FAMILIES = ("qwen2.5", "llama-3", "gpt-oss")


class PlainTokenizer:
    """A family's tokenizer as caches of plain text take it, with four of its control tokens as the sentinels."""

    def __init__(self, family: str) -> None:
        self._encoder = renderer_of(family).encoder
        self.vocab_size = self._encoder.vocab_size
        self._special = sorted(self._encoder.control_ids.values())[:4]

    def encode(self, text: str) -> list[int]:
        ids, _ = self._encoder.encode_pieces([text], [False])
        return [int(token) for token in ids]

    def special_token_ids(self) -> dict[str, int]:
        return dict(zip(("sys", "usr", "asst", "eot"), self._special, strict=True))


def texts(n: int = 40) -> list[str]:
    return [f"the {WORDS[number % len(WORDS)]} jumps over {number} and the world " * 3 for number in range(n)]


def built(folder: Path, family: str, given: Sequence[str] | None = None, **more: Any) -> Path:
    """A cache of several shards a split."""
    options: dict[str, Any] = {"max_train_tokens": 1 << 40, "max_val_tokens": 0, "shard_bytes": 1 << 10} | more
    build_pretrain_cache(
        given or texts(),
        str(folder / "cache"),
        tokenizer=PlainTokenizer(family),
        seed=0,
        shuffle_buffer=None,
        **options,
    )
    return folder / "cache"


def edited(folder: Path, edit: Callable[[np.ndarray[Any, Any], dict[str, Any]], None], shard: int = 0) -> None:
    """Change tokens of a shard in place, which no size shows."""
    meta = open_meta(folder)
    path = folder / f"train/shard_{shard:05d}.bin"
    tokens = np.fromfile(path, dtype=TOKEN_DTYPES[meta["token_dtype"]])
    edit(tokens, meta)
    tokens.tofile(path)


def outside(tokens: np.ndarray[Any, Any], meta: dict[str, Any]) -> None:
    tokens[5] = meta["vocab_size"] + 7


def ended_twice(tokens: np.ndarray[Any, Any], meta: dict[str, Any]) -> None:
    """The last token of the first document becomes another end."""
    eot = meta["special_token_ids"]["eot"]
    tokens[np.flatnonzero(tokens == eot)[0] - 1] = eot


def one_end_less(tokens: np.ndarray[Any, Any], meta: dict[str, Any]) -> None:
    tokens[np.flatnonzero(tokens == meta["special_token_ids"]["eot"])[0]] = tokens[0]


def forged(tokens: np.ndarray[Any, Any], meta: dict[str, Any]) -> None:
    tokens[6] = meta["special_token_ids"]["usr"]


def _edited(
    edit: Callable[[np.ndarray[Any, Any], dict[str, Any]], None], family: str, planted: bool, folder: Path
) -> Report:
    cache = built(folder, family)
    if planted:
        edited(cache, edit)
    return diagnose(cache)


def _twice(family: str, planted: bool, folder: Path) -> Report:
    return diagnose(built(folder, family, [*texts(), *texts()[3:5]] if planted else None))


def _joined(family: str, planted: bool, folder: Path) -> Report:
    return diagnose(built(folder, family, separator="none" if planted else None))


def cases() -> list[Case]:
    makers: tuple[tuple[str, Callable[[str, bool, Path], Report], tuple[str, ...]], ...] = (
        ("documents-not-separated", _joined, ()),
        ("counts-differ", partial(_edited, one_end_less), ()),
        ("empty-row", partial(_edited, ended_twice), ("counts-differ",)),
        ("id-out-of-range", partial(_edited, outside), ()),
        ("special-tokens-in-content", partial(_edited, forged), ()),
        ("duplicate-row", _twice, ()),
    )
    return [
        Case(rule, family, partial(make, family, planted), planted, also)
        for rule, make, also in makers
        for family in FAMILIES
        for planted in (True, False)
    ]
