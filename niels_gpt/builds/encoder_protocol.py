"""The protocol of encoders of conversations, and the batches that they make.

`SentinelEncoder`, `RendererEncoder` and `SampleEncoder` follow it. They encode rows in batches and hand unusable ones
to `Rejections` in the order of the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from niels_gpt.builds.images import PlacedImage
from niels_gpt.messages import ChatMsg, Conversation, Message
from niels_gpt.sources.files.inputs import Rejected
from niels_gpt.sources.rejections import Rejections

Rows = Iterable[Sequence[ChatMsg] | Sequence[Message] | Conversation | Rejected]


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

    def encode(self, rows: Rows, rejections: Rejections) -> Iterator[EncodedBatch]:
        """Encode the usable rows in batches, in order; the others go to `rejections`."""
