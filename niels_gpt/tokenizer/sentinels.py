"""The four sentinels of our own tokenizer, and encoding of text that can never produce one.

Sentinels are inserted into a sequence by id. Text that contains a sentinel's literal spelling is split after the
spelling's first character and the parts are encoded separately, so that the sentinel's id cannot result.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Final, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import TokenizerError

SPECIAL_TOKENS: Final = (
    "<|ngpt_sys_84a5023f67d74cf29cc4001becde983c|>",
    "<|ngpt_usr_84a5023f67d74cf29cc4001becde983c|>",
    "<|ngpt_asst_84a5023f67d74cf29cc4001becde983c|>",
    "<|ngpt_eot_84a5023f67d74cf29cc4001becde983c|>",
)
SPECIAL_NAMES: Final = ("sys", "usr", "asst", "eot")

MARK = "ngpt_"  # in every spelling: a fast substring test that saves ordinary text the regular expression
_SPLIT = re.compile("|".join(f"(?<={re.escape(token[0])})(?={re.escape(token[1:])})" for token in SPECIAL_TOKENS))

Ids = npt.NDArray[np.int32]
Lengths = npt.NDArray[np.int64]


@runtime_checkable
class ChatTokenizer(Protocol):
    """The tokenizer interface of token caches and SFT examples: `encode`, and the ids of the sentinels."""

    def encode(self, text: str) -> list[int]: ...

    def special_token_ids(self) -> Mapping[str, int]: ...


@runtime_checkable
class BatchTokenizer(ChatTokenizer, Protocol):
    """A tokenizer that encodes many texts at once, on several threads."""

    def encode_batch(self, texts: Sequence[str], *, num_threads: int | None = None) -> list[Ids]: ...


def cut_sentinels(text: str) -> list[str]:
    """`text` in parts, split after the first character of every literal sentinel; joined they are `text` again."""
    return _SPLIT.split(text) if MARK in text else [text]


def sentinel_ids(tokenizer: ChatTokenizer) -> dict[str, int]:
    """The ids of sys, usr, asst and eot.

    Raises:
        TokenizerError: one is missing, or two share an id.
    """
    found = tokenizer.special_token_ids()
    missing = [name for name in SPECIAL_NAMES if name not in found]
    ids = {name: int(found[name]) for name in SPECIAL_NAMES if name in found}
    if missing or len(set(ids.values())) < len(SPECIAL_NAMES):
        raise TokenizerError(
            f"special_token_ids() gave {dict(found)}; expected four different ids for sys, usr, asst and eot"
        )
    return ids


def encode_ordinary(
    tokenizer: ChatTokenizer, texts: Sequence[str], *, num_threads: int | None = None
) -> tuple[Ids, Lengths]:
    """Encode texts as text: the result has no sentinel id, whatever the texts contain.

    Args:
        tokenizer: anything with `encode` and `special_token_ids`; its `encode_batch` is used if it has one.
        texts: the texts.
        num_threads: for tokenizers with `encode_batch`; `None` means one per processor.

    Returns:
        `(ids, lengths)`: all ids one after the other, int32, and how many each text has, int64 of shape (len(texts),).

    Raises:
        TokenizerError: a sentinel id results nevertheless, so the tokenizer spells it in another way.
    """
    sentinels = np.array(list(sentinel_ids(tokenizer).values()), dtype=np.int64)
    if isinstance(tokenizer, BatchTokenizer):
        encoded: Sequence[Sequence[int] | Ids] = tokenizer.encode_batch(texts, num_threads=num_threads)
    else:
        encoded = [list(chain.from_iterable(map(tokenizer.encode, cut_sentinels(text)))) for text in texts]
    lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
    if encoded and isinstance(encoded[0], np.ndarray):
        ids: Ids = np.concatenate(encoded, dtype=np.int32)
    else:
        ids = np.fromiter(chain.from_iterable(encoded), dtype=np.int32, count=int(lengths.sum()))
    forged = np.flatnonzero(np.isin(ids, sentinels))
    if forged.size:
        # Texts of 3 and 2 tokens end at 3 5; a sentinel at 3 is in text 1.
        index = int(np.searchsorted(np.cumsum(lengths), forged[0], side="right"))
        raise TokenizerError(
            f"text {index} encodes to the sentinel id {ids[forged[0]]} although sentinels are inserted by id only; "
            "give a tokenizer whose encode() never produces them from text"
        )
    return ids, lengths
