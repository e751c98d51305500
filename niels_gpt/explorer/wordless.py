"""Families where no tokenizer is at hand: what they write is known, and whose every piece is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from niels_gpt.errors import TokenizerError


class NoTokenizer:
    """A `PieceEncoder` that has a family's control tokens and encodes nothing: enough to write scripts."""

    name, engine, vocab_size = "no tokenizer", "none", 0
    stop_ids: tuple[int, ...] = ()
    template: str | None = None
    special_tokens: Mapping[str, str] = {}
    fingerprints: Mapping[str, str] = {"tokenizer": ""}

    def __init__(self, controls: Sequence[str]) -> None:
        self.added_ids = dict.fromkeys(controls, -1)
        self.control_ids: Mapping[str, int] = self.added_ids

    def _refuse(self, *_: Any) -> NoReturn:
        raise TokenizerError("no tokenizer is at hand, so there are no ids; pass --tokenizer DIR")

    encode_pieces = encode_many = encode_strings = token_bytes = decode = _refuse
