"""`Batch`: what a training step is given, and how it is shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from niels_gpt.display.html import notebook_html
from niels_gpt.display.rows import TokenRow, spelling_of, weighted_row
from niels_gpt.display.terminal import PREVIEW_TOKENS, in_colour, terminal_text
from niels_gpt.format.collate import TensorFields
from niels_gpt.required_torch import torch


@dataclass(frozen=True)
class Batch(TensorFields):
    """One rank's part of a global batch of episodes, packed rows or windows; shapes are (batch_size, block_size).

    The right loss over ranks and accumulated batches is the sum of `mask * loss` over all of them, divided once by the
    sum of their `mask_sum`, see `trainers.steps.windows`.

    Attributes:
        x, y: int64; `y` are the next tokens, without -100.
        mask: float32, aligned to `y`: 0 on padding, on the first token of every episode, and where the dataset's mask
            is 0.
        episodes: int64, shape (episodes,): the numbers of the episodes (or windows) in the index, in the order of the
            rows.
        num_trained_tokens: how many targets have a mask above 0.
        mask_sum: the sum of the mask.
        num_tokens: how many tokens are not padding.
        state: what `load_state_dict` takes to continue after this batch.
        segment_ids: int32; 1, 2, ... along each row, 0 on padding. This and the following are `None` unless rows are
            packed or the dataset has `segment_ids.bin`.
        position_ids: int64; from 0 in every segment and in the padding.
        cu_seqlens: int32, shape (sequences + 1,): where sequences start in the flattened batch, and its size. The
            padding of a row is a sequence of its own.
        max_seqlen: the length of the longest sequence.
        lengths: int64, shape (batch_size,): tokens of each row that are not padding, of block_size + 1.
        media: of a dataset with images: the processor's arrays (`pixel_values`, `image_grid_thw`), those of all images
            one after the other, in the order of their placeholders; empty where the rows have none.

    `show(tokenizer)` prints rows in colour; a notebook shows coloured tokens.
    """

    x: torch.Tensor
    y: torch.Tensor
    mask: torch.Tensor
    episodes: npt.NDArray[np.int64]
    num_trained_tokens: int
    mask_sum: float
    num_tokens: int
    state: dict[str, Any]
    segment_ids: torch.Tensor | None = None
    position_ids: torch.Tensor | None = None
    cu_seqlens: torch.Tensor | None = None
    max_seqlen: int | None = None
    lengths: npt.NDArray[np.int64] | None = None
    media: dict[str, torch.Tensor] | None = None

    def __repr__(self) -> str:
        """One line of shapes and counts; the tensors are attributes."""
        return f"<{type(self).__name__}: {self._summary()}>"

    def _summary(self) -> str:
        rows, length = self.x.shape
        packed = "" if self.segment_ids is None else f", {len(self.episodes)} episodes packed"
        return (
            f"{rows} x {length}, {self.num_tokens:,} tokens, {self.num_trained_tokens:,} trained{packed}, "
            f"on {self.x.device}"
        )

    def __str__(self) -> str:
        """In a terminal also the first tokens in colour, elsewhere the same as `repr`."""
        return f"{self!r}\n{terminal_text(self._rows(None), most=PREVIEW_TOKENS)}" if in_colour() else repr(self)

    def show(self, tokenizer: Any = None, *, rows: int | None = None) -> None:
        """Print rows in colour: trained tokens, where texts of a packed row begin, and padding.

        Args:
            tokenizer: anything with `decode(ids)`, or a function from an id to its text, such as an opened dataset's
                `token_text`; default: ids are shown, because a batch knows no tokenizer.
            rows: only the first so many.

        Raises:
            UsageError: the tokenizer cannot decode.
        """
        print(terminal_text(self._rows(rows), spelling_of(tokenizer)), end="")

    def _repr_html_(self) -> str:
        """Coloured ids for notebooks, the place, id and weight of each in its tooltip."""
        return notebook_html(self._summary(), self._rows(None))

    def _rows(self, first: int | None) -> list[TokenRow]:
        """The rows, each with the weights of its tokens as targets.

        ::

            x  a b c P      y  b c P P      mask  0 1 0 0      length 3
            row             a b c           weights  0 0 1        1 x padding
        """
        # Cut before the copy from the device: a batch may be large, and a preview is small.
        x, y, mask = (tensor[:first].cpu().numpy() for tensor in (self.x, self.y, self.mask))
        segments = None if self.segment_ids is None else self.segment_ids[:first].cpu().numpy()
        shown = []
        for row, ids in enumerate(np.concatenate([x, y[:, -1:]], axis=1)):
            # A batch that another program made may lack lengths; its padding is then shown as tokens.
            n = len(ids) if self.lengths is None else int(self.lengths[row])
            # The first token of a row is never a target. The last target belongs to the text of the last input.
            weights = np.append(np.zeros(1, mask.dtype), mask[row])
            texts = None if segments is None else np.append(segments[row], segments[row, -1:])[:n]
            heading = f"row {row}: {n:,} tokens, {np.count_nonzero(mask[row]):,} trained"
            shown.append(weighted_row(ids[:n], weights[:n], texts, heading=heading, n_padding=len(ids) - n))
        return shown

    def to(self, device: str | torch.device) -> Self:
        """The batch on another device; itself if it is there."""
        if device == "cpu" and self.x.is_cpu:  # the common case, in a tenth of the time of the other comparison
            return self
        current, wanted = self.x.device, torch.device(device)
        # `cuda` without a number matches any CUDA device; torch compares it as another one than `cuda:0`.
        if current == wanted or (current.type == wanted.type and wanted.index is None):
            return self
        return super().to(device)

    def each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Self:
        """As `TensorFields`, and the arrays of images."""
        # They are in a dict, not fields, so `TensorFields` does not find them.
        media = self.media and {name: change(value) for name, value in self.media.items()}
        return replace(super().each(change), media=media)
