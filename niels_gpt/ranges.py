"""The valid range of every numeric argument, in one place for functions and command line options.

::

    build_pretrain_cache(..., val_frac=2)   ->  VAL_FRAC.check(val_frac)
    --val-frac 2                            ->  Annotated[float, Option(..., limits=VAL_FRAC)]

Both refuse the same values, with exit code 2.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, Final

from niels_gpt.errors import UsageError, shown

LARGE: Final = 1 << 62  # the limit for counts and bytes: the sum of two still fits into 64 bits


@dataclass(frozen=True)
class Range:
    """The numbers that an argument may be, both ends included.

    Attributes:
        name: of the argument, for messages.
        least, most: two integers if only whole numbers are allowed, else two floats.
    """

    name: str
    least: int | float
    most: int | float

    def check(self, value: Any, name: str | None = None) -> None:
        """Check an optional argument; `None` is accepted.

        Args:
            name: of the argument, if it is not the range's.

        Raises:
            UsageError: not a number, not a whole one if that is expected, nan, or outside the range.
        """
        if value is None:
            return
        name = name or self.name
        is_whole = isinstance(self.least, int)
        if isinstance(value, bool):  # `True` is an int in Python
            is_number = False
        elif is_whole:
            is_number = hasattr(value, "__index__")  # also integers of numpy and torch
        else:
            is_number = isinstance(value, int | float) and value == value  # not nan, which is in no order with others
        if not is_number:
            kind = "whole number" if is_whole else "number"
            raise UsageError(f"{name} is {shown(value)}; expected a {kind} from {self.least} to {self.most}")
        if value < self.least:
            least = "0 or more" if self.least == 0 else f"at least {self.least}"
            raise UsageError(f"{name} is {shown(value)}; expected {least}")
        if value > self.most:
            raise UsageError(f"{name} is {shown(value)}; expected at most {self.most}")

    def whole(self, value: Any, name: str | None = None) -> int:
        """Check a required whole number, and return it as an `int`; numpy's and torch's integers are accepted.

        Raises:
            UsageError: as `check`, and for `None`.
        """
        try:
            number = None if isinstance(value, bool) else operator.index(value)
        except TypeError:  # not an integer of any library
            number = None
        if number is None:
            what = f"a whole number from {self.least} to {self.most}"
            raise UsageError(f"{name or self.name} is {shown(value)}; expected {what}")
        self.check(number, name)
        return number


def check_flag(value: Any, name: str) -> bool:
    """Check a switch, and return it.

    Raises:
        UsageError: anything else, such as "no", which would count as true.
    """
    if not isinstance(value, bool):
        raise UsageError(f"{name} is {shown(value)}; expected true or false")
    return value


SEED: Final = Range("seed", 0, (1 << 63) - 1)
THREADS: Final = Range("num_threads", 1, 1024)
WORKERS: Final = Range("workers", 1, 4096)
UNIT_BYTES: Final = Range("slice_bytes", 1, LARGE)

VAL_FRAC: Final = Range("val_frac", 0.0, 0.999999)  # below 1, which would leave nothing to train on
MAX_TRAIN_TOKENS: Final = Range("max_train_tokens", 0, LARGE)
MAX_VAL_TOKENS: Final = Range("max_val_tokens", 0, LARGE)
CACHE_SHARD_BYTES: Final = Range("shard_bytes", 2, LARGE)  # room for one token of uint16
EPISODES_SHARD_BYTES: Final = Range("shard_bytes", 4, LARGE)  # room for one token of uint32
SHUFFLE_BUFFER: Final = Range("shuffle_buffer", 1, (1 << 31) - 1)
MAX_MESSAGES: Final = Range("max_messages", 2, (1 << 31) - 1)  # a question and its answer
NGRAM_WORDS: Final = Range("words", 1, 1000)
FILTER_COUNT: Final = Range("count", 1, LARGE)  # messages, characters, tokens
MAX_BAD_ROWS: Final = Range("max_bad_rows", 0, LARGE)
MAX_MESSAGE_BYTES: Final = Range("max_message_bytes", 1, LARGE)

PIECES: Final = Range("vocab_size", 300, (1 << 31) - 1)  # 256 bytes, 4 sentinels, letters
CHARACTER_COVERAGE: Final = Range("character_coverage", 0.98, 1.0)  # SentencePiece refuses anything else
MAX_LINES: Final = Range("max_lines", 1, LARGE)

TOKEN_ID: Final = Range("token id", 0, (1 << 32) - 1)  # files hold ids as uint16 or uint32
VOCAB_SIZE: Final = Range("vocab_size", 1, 1 << 32)
ROW: Final = Range("number", 0, LARGE)
BATCH_SIZE: Final = Range("B", 1, (1 << 31) - 1)
NUM_WORKERS: Final = Range("num_workers", 0, 4096)
LENGTH: Final = Range("T", 1, (1 << 31) - 2)  # a row holds one token more
BLOCK_SIZE: Final = Range("block_size", 1, (1 << 31) - 2)
EPOCHS: Final = Range("epochs", 1, LARGE)
DEPTH: Final = Range("depth", 1, 1 << 20)  # of a queue, in batches
SHUFFLE_SHARDS: Final = Range("shuffle_shards", 1, (1 << 31) - 1)
RANK: Final = Range("rank", 0, (1 << 31) - 1)
WORLD_SIZE: Final = Range("world_size", 1, (1 << 31) - 1)

LIMIT: Final = Range("limit", 1, LARGE)
MAX_LENGTH: Final = Range("max_length", 1, (1 << 31) - 1)
EXAMINED_LENGTH: Final = Range("max_length", 2, (1 << 31) - 1)  # one token to predict from, one to predict
PAD_MULTIPLE: Final = Range("pad_multiple", 1, (1 << 31) - 1)
SHARD_TOKENS: Final = Range("shard_tokens", 1, LARGE)
SAMPLE: Final = Range("sample", 1, LARGE)
EVIDENCE: Final = Range("evidence", 1, 1_000_000)
MAX_BYTES: Final = Range("max_bytes", 1, LARGE)
PORT: Final = Range("port", 0, 65535)
