"""Our own tokenizer as a `PieceEncoder`: the four sentinels are its control tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from niels_gpt.errors import TokenizerError
from niels_gpt.forks import cached_property
from niels_gpt.tokenizer.cutting import CutEncoder
from niels_gpt.tokenizer.description import from_spaced
from niels_gpt.tokenizer.pieces import Encoded, Ids, Positions, encoded_one_by_one
from niels_gpt.tokenizer.sentencepiece import SentencePieceTokenizer
from niels_gpt.tokenizer.sentinels import SPECIAL_NAMES, SPECIAL_TOKENS


class SentencePieceEncoder:
    """A `SentencePieceTokenizer` that encodes pieces and proves which piece every token came from.

    Sentinels are recognised in scaffold alone. What lies between them is one run, encoded as `encode_batch` does; a
    token belongs to the piece that holds its first character, which follows from the bytes that the ids stand for.
    Where they are not the text's bytes (an unknown character, a normalised one), only a run within one piece can be
    attributed; any other raises. A model that puts a space before text is no `SentencePieceTokenizer` at all.

    Instances pickle, and may be shared by threads.
    """

    engine = "sentencepiece"

    def __init__(self, tokenizer: SentencePieceTokenizer) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = tokenizer.vocab_size
        ids = tokenizer.special_token_ids()
        self.control_ids = {text: ids[name] for text, name in zip(SPECIAL_TOKENS, SPECIAL_NAMES, strict=True)}
        self.added_ids = self.control_ids
        self.stop_ids: tuple[int, ...] = (ids["eot"],)
        self.template: str | None = None
        self.special_tokens = {"eos_token": SPECIAL_TOKENS[SPECIAL_NAMES.index("eot")]}
        self._bytes = [from_spaced(tokenizer.piece(token)) for token in range(self.vocab_size)]
        self._cut = CutEncoder(self.name, self.control_ids, {}, tokenizer.encode_batch, self._bytes_of)

    @property
    def name(self) -> str:
        """The model file."""
        return self.tokenizer.model_path

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """sha256 of the model file (`tokenizer`)."""
        return {"tokenizer": self.tokenizer.sha256}

    def encode_pieces(self, texts: Sequence[str], scaffold: Sequence[bool]) -> tuple[Ids, Ids]:
        """`(ids, owner)` of one string in adjacent pieces; sentinels are recognised in scaffold alone.

        Raises:
            UsageError: the lengths differ.
            TokenizerError: a lone surrogate in a text, or an attribution that cannot be proven.
        """
        ids, owner, _ = self.encode_many([(texts, scaffold)])
        return ids, owner

    def encode_many(self, batches: Sequence[tuple[Sequence[str], Sequence[bool]]]) -> tuple[Ids, Ids, Positions]:
        """`(ids, owner, lengths)` of many strings, one after the other; owners count from 0 in each."""
        return self._cut.encode_many(batches)

    def encode_strings(self, texts: list[list[str]], facts: list[list[int]]) -> Encoded:
        """See `PieceEncoder`."""
        return encoded_one_by_one(self.encode_many, texts, facts)

    def token_bytes(self, ids: Sequence[int] | Ids) -> list[bytes]:
        """The UTF-8 bytes that each id stands for, sentinels spelled out; half characters are possible.

        Raises:
            TokenizerError: an id is outside the vocabulary.
        """
        plain = [int(token) for token in ids]
        outside = [token for token in plain if not 0 <= token < self.vocab_size]
        if outside:
            raise TokenizerError(f"id {outside[0]} is outside the vocabulary of {self.vocab_size} ids")
        return self._bytes_of(plain)

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """The text of `ids`, sentinels spelled out."""
        return self.tokenizer.decode([int(token) for token in ids])

    def _bytes_of(self, ids: list[int]) -> list[bytes]:
        return [self._bytes[token] for token in ids]

    def __getstate__(self) -> dict[str, Any]:
        return {"tokenizer": self.tokenizer}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["tokenizer"])  # type: ignore[misc]
