"""A batch as it is shown: row by row, trained targets in colour, texts of a packed row separated, padding counted.

The pretraining and SFT datasets return plain tuples of tensors, which cannot show themselves. `BatchView` shows them::

    view = BatchView.of(dataset.get_batch(B=8, generator=generator), tokenizer)
    view.show()            # in a terminal; a notebook shows `view` as coloured tokens

`Batch` shows itself through the same class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.display.html import notebook_html
from niels_gpt.display.rows import Spelling, TokenRow, spelling_of, weighted_row
from niels_gpt.display.terminal import PREVIEW_TOKENS, in_colour, terminal_text
from niels_gpt.errors import UsageError
from niels_gpt.store.masks import IGNORE_INDEX

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class BatchView:
    """A batch to look at.

    Attributes:
        head: one line of shapes and counts.
        rows: the rows of the batch, each with `T + 1` tokens: its inputs and the target of the last one.
        spelling: the text of an id; `None` shows ids.
    """

    head: str
    rows: Sequence[TokenRow]
    spelling: Spelling | None = None

    @classmethod
    def of(cls, batch: Sequence[Any], tokenizer: Any = None) -> BatchView:
        """The view of a tuple that a dataset or loader of this package returned.

        Args:
            batch: `(x, y)`, where every target is trained; `(x, y, y_masked)` with -100 where a target is not trained;
                or `(x, y, mask)` with a floating mask. Tensors or arrays of shape (B, T).
            tokenizer: anything with `decode(ids)`, or a function from an id to its text; default: ids are shown.

        Raises:
            UsageError: not two or three arrays of one shape (B, T).
        """
        # Tensors on any device, or what numpy understands.
        arrays = [np.asarray(values.detach().cpu() if hasattr(values, "detach") else values) for values in batch]
        shapes = [array.shape for array in arrays]
        if len(arrays) not in (2, 3) or len(set(shapes)) > 1 or len(shapes[0]) != 2:
            raise UsageError(f"found arrays of shapes {shapes}; expected x, y and perhaps a mask, each of shape (B, T)")
        x, y = arrays[:2]
        weights = np.ones(y.shape, np.float32)
        if len(arrays) == 3:  # a mask (floating or bool), or targets that hold -100
            third = arrays[2]
            weights = (third if third.dtype.kind in "fb" else third != IGNORE_INDEX).astype(np.float32)
        B, T = x.shape
        head = f"batch of {B} x {T}, {int(np.count_nonzero(weights)):,} targets trained"
        return cls(head, rows_of_batch(x, y, weights), spelling_of(tokenizer))

    def __repr__(self) -> str:
        return f"<BatchView: {self.head}>"

    def __str__(self) -> str:
        """In a terminal also the first tokens in colour, elsewhere the same as `repr`."""
        if not in_colour():
            return repr(self)
        return f"{self!r}\n{terminal_text(self.rows, self.spelling, most=PREVIEW_TOKENS)}"

    def show(self) -> None:
        """Print all rows in colour."""
        print(terminal_text(self.rows, self.spelling), end="")

    def _repr_html_(self) -> str:
        """Coloured tokens for notebooks, the place, id and weight of each in its tooltip."""
        return notebook_html(self.head, self.rows, self.spelling)


def rows_of_batch(
    x: Array,
    y: Array,
    weights: Array,
    *,
    lengths: Array | None = None,
    segment_ids: Array | None = None,
    headings: Sequence[str] = (),
) -> list[TokenRow]:
    """The rows of a batch, with every token's weight where it is the target.

    ::

        x  a b c P      y  b c P P      weights  0 1 0 0      length 3
        row             a b c           weights  0 0 1        1 × padding

    The first token of a row is never a target, so a weight is put before those of `y`.

    Args:
        x, y, weights: of shape (B, T).
        lengths: of shape (B,): tokens of each row that are not padding, of T + 1; default all.
        segment_ids: of shape (B, T), 0 on padding.
        headings: a line above each row, after its number.
    """
    shown = []
    for row in range(len(x)):
        # x a b c and y b c d are the row a b c d: only the last target is not an input, too.
        ids = np.append(x[row], y[row, -1:])
        length = len(ids) if lengths is None else int(lengths[row])
        segments = None
        if segment_ids is not None:
            # The last target belongs to the text of the last input; it has no input of its own to carry a number.
            segments = np.append(segment_ids[row], segment_ids[row, -1:])[:length]
        heading = f"row {row}: {headings[row]}" if headings else f"row {row}"
        of_row = np.append(np.zeros(1, weights.dtype), weights[row])
        shown.append(
            weighted_row(ids[:length], of_row[:length], segments, heading=heading, n_padding=len(ids) - length)
        )
    return shown
