"""`check_batch`: a batch as it is about to be trained."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.doctor.report import Report
from niels_gpt.doctor.run import diagnose
from niels_gpt.errors import UsageError


def check_batch(
    input_ids: Any,
    labels: Any,
    attention_mask: Any = None,
    tokenizer: Any = None,
    *,
    position_ids: Any = None,
    template: Any = None,
    renderer: Any = None,
    **more: Any,
) -> Report:
    """The report on a batch of numpy arrays or torch tensors (any device), as a trainer is given it.

    Args:
        input_ids: integers of shape (rows, length), or (length,) for one row.
        labels: the same shape, -100 where nothing is trained, aligned with the ids (not shifted).
        attention_mask, position_ids: the same shape.
        tokenizer, template, renderer, more: as `diagnose`.

    Raises:
        UsageError: shapes that differ, or no integers. Else as `diagnose`.
    """
    given = {"input_ids": input_ids, "labels": labels, "attention_mask": attention_mask, "position_ids": position_ids}
    arrays = {name: _array(name, held) for name, held in given.items() if held is not None}
    shape = arrays["input_ids"].shape
    for name, array in arrays.items():
        if array.shape != shape:
            raise UsageError(f"{name} has the shape {array.shape} and input_ids {shape}; expected the same")
    rows = [{name: array[row] for name, array in arrays.items()} for row in range(shape[0])]
    return diagnose(rows, tokenizer=tokenizer, template=template, renderer=renderer, **more)


def _array(name: str, held: Any) -> npt.NDArray[np.integer[Any]]:
    if hasattr(held, "detach"):  # a torch tensor, wherever it lies
        held = held.detach().cpu().numpy()
    array = np.atleast_2d(np.asarray(held))
    if array.ndim != 2 or array.dtype.kind not in "iub":
        raise UsageError(f"{name} is {array.dtype} of shape {array.shape}; expected integers of shape (rows, length)")
    return array.astype(np.int64)
