"""What renderers need of a tokenizer, whichever library it comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from niels_gpt.tokenizer.pieces import Encoded, Ids, Positions


@runtime_checkable
class PieceEncoder(Protocol):
    """A tokenizer that encodes pieces and proves which piece every token came from."""

    @property
    def name(self) -> str:
        """Where it was loaded from: a hub name or a path."""

    @property
    def engine(self) -> str:
        """What encodes: "gigatoken", "tokenizers", "python" or "sentencepiece"."""

    @property
    def vocab_size(self) -> int:
        """Largest id + 1."""

    @property
    def control_ids(self) -> Mapping[str, int]:
        """Spelling -> id of the control tokens, which text never becomes."""

    @property
    def added_ids(self) -> Mapping[str, int]:
        """Spelling -> id of all added tokens; those that are no control tokens are recognised in any text."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """eos, and what the generation config adds."""

    @property
    def template(self) -> str | None:
        """The chat template that comes with it, or `None`."""

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """The named special tokens (`eos_token`, `bos_token`, ...)."""

    @property
    def fingerprints(self) -> Mapping[str, str]:
        """sha256 of the tokenizer's bytes (`tokenizer`) and of its chat template's text (`template`, if any)."""

    def encode_pieces(self, texts: Sequence[str], scaffold: Sequence[bool]) -> tuple[Ids, Ids]:
        """`(ids, owner)` of one string in adjacent pieces; control tokens are recognised in scaffold alone."""

    def encode_many(self, batches: Sequence[tuple[Sequence[str], Sequence[bool]]]) -> tuple[Ids, Ids, Positions]:
        """`(ids, owner, lengths)` of many strings, one after the other; owners count from 0 in each."""

    def encode_strings(self, texts: list[list[str]], facts: list[list[int]]) -> Encoded:
        """Many strings, each a list of pieces; control tokens are recognised where a fact has the bit `SCAFFOLD`."""

    def token_bytes(self, ids: Sequence[int]) -> list[bytes]:
        """The UTF-8 bytes that each id stands for; joined they are the text. Half characters are possible."""

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """The text of `ids`, control tokens spelled out."""
