"""The defaults of caches, and how `meta.json` names dtypes; the names of files are in `store.schema`."""

from __future__ import annotations

from typing import Final

import numpy as np

from niels_gpt.errors import UsageError
from niels_gpt.store.schema import META_DTYPES

SHORT_DTYPES: Final = {"uint16": "uint16-le", "uint32": "uint32-le"}  # the name that callers pass -> in meta.json

# Each is an argument of the builders and an option of the command line.
DEFAULT_SHARD_BYTES: Final = 128 * 1024 * 1024
MAX_TRAIN_TOKENS: Final = 200_000_000
MAX_VAL_TOKENS: Final = 5_000_000
UNLIMITED_TOKENS: Final = 1 << 62
DEFAULT_VAL_FRAC: Final = 0.10


def dtype_for(token_dtype: str | None, vocab_size: int) -> str:
    """The name in `meta.json` of `token_dtype` ("uint16" or "uint32"), after a check that all ids fit.

    `None` means the smaller one that holds all ids.

    Raises:
        UsageError: unknown name, or a vocabulary that is too large for it.
    """
    if token_dtype is None:
        token_dtype = "uint16" if vocab_size <= np.iinfo("<u2").max + 1 else "uint32"
    if token_dtype not in SHORT_DTYPES:
        raise UsageError(f"token_dtype is {token_dtype!r}; expected 'uint16' or 'uint32'")
    name = SHORT_DTYPES[token_dtype]
    most = np.iinfo(META_DTYPES[name]).max + 1
    if vocab_size > most:
        raise UsageError(
            f'the vocabulary has {vocab_size:,} ids but {token_dtype} holds {most:,}; pass token_dtype="uint32" '
            "(--token-dtype uint32)"
        )
    return name
