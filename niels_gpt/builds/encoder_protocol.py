"""The protocol of encoders of conversations, and the batches that they make.

`SentinelEncoder` and `RendererEncoder` follow it. They encode rows in batches and hand unusable ones to `Rejections` in
the order of the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import TokenizerError, UsageError
from niels_gpt.messages import Conversation
from niels_gpt.sources.files.inputs import Rejected
from niels_gpt.sources.rejections import Rejections
from niels_gpt.store.schema import PlacedImage
from niels_gpt.tokenizer.sentinels import ChatTokenizer, sentinel_ids


@dataclass(frozen=True)
class EncodedBatch:
    """A batch of encoded conversations.

    Attributes:
        conversations: in order.
        ids: int64 or int32, the conversations concatenated, shape (n,).
        lengths: number of ids of each conversation, int64.
        weights: loss weights, float32 of shape (n,); 0 is not trained.
        images: those of each conversation; `None` unless the encoder has a folder of images.
    """

    conversations: list[Conversation]
    ids: npt.NDArray[np.integer[Any]]
    lengths: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]
    images: Sequence[Sequence[PlacedImage]] | None = None


@runtime_checkable
class ConversationEncoder(Protocol):
    """Turns conversations into ids and loss weights, as all builds of conversations need it."""

    @property
    def identified(self) -> bool:
        """Whether equal `describe()` means equal ids, so that a finished build may count as "already built"."""

    @property
    def vocab_size(self) -> int | None:
        """All ids are below this; `None` if it is not known."""

    def describe(self) -> dict[str, Any]:
        """All that decides ids and weights, for the manifest; at least `tokenizer_sha256` and `template_sha256`."""

    def encode(self, rows: Iterable[Conversation | Rejected], rejections: Rejections) -> Iterator[EncodedBatch]:
        """Encode the usable rows in batches, in order; the others go to `rejections`."""


@runtime_checkable
class CacheTokenizer(ChatTokenizer, Protocol):
    """A tokenizer that caches can be built with; if it has a `model_path`, its hash is that of the file."""

    @property
    def vocab_size(self) -> int: ...


def check_cache_tokenizer(tokenizer: CacheTokenizer) -> dict[str, int]:
    """Check that a tokenizer can be used for a cache, and return the ids of its four sentinels by name.

    Raises:
        UsageError: it lacks a method.
        TokenizerError: special ids are missing, shared by two sentinels, or outside the vocabulary.
    """
    if not isinstance(tokenizer, CacheTokenizer):
        raise UsageError("the tokenizer lacks one of encode(), special_token_ids() and vocab_size; a cache needs all")
    special = sentinel_ids(tokenizer)
    outside = {name: token for name, token in special.items() if not 0 <= token < tokenizer.vocab_size}
    if outside:
        raise TokenizerError(f"special ids {outside} are outside the vocabulary of {tokenizer.vocab_size} ids")
    return special


def check_ids(ids: npt.NDArray[np.integer[Any]], vocab_size: int | None) -> None:
    """Raise `TokenizerError` for an id outside the vocabulary.

    Written as uint16 it would wrap around silently, and as uint32 it would crash the model's embedding later.
    """
    # Where the vocabulary's size is not known, only negative ids can be found.
    most = ids.max(initial=0) + 1 if vocab_size is None else vocab_size
    if len(ids) and (ids.min() < 0 or ids.max() >= most):
        bad = int(ids[(ids < 0) | (ids >= most)][0])
        raise TokenizerError(f"the tokenizer returned id {bad}; expected 0 to {most - 1} (vocab_size - 1)")
