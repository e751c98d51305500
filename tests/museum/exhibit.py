"""The few things that exhibits share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from niels_gpt.episodes import Batch
from tests.renderers.tiny_families import folder_of


def row(ids: Sequence[int], mask: Sequence[bool], **more: Any) -> dict[str, Any]:
    """Ids and labels as trainers take them: -100 where nothing is trained."""
    labels = [token if trained else -100 for token, trained in zip(ids, mask, strict=True)]
    return {"input_ids": list(ids), "labels": labels, **more}


def with_labels(batch: Batch) -> tuple[Tensor, Tensor]:
    """Ids and labels of a batch's rows, as other trainers take them: not shifted, one column more than `x`.

    ::

        x        a b c d      mask  . # #  .      ids     a b c d p
        y        b c d p                          labels  . . c d .
    """
    graded = torch.where(batch.mask > 0, batch.y, -100)
    first = batch.x[:, :1]
    return torch.cat([first, batch.y], dim=1), torch.cat([torch.full_like(first, -100), graded], dim=1)


def tokenizer_of(family: str, *, split: bool = True) -> Tokenizer:
    """The family's tiny tokenizer, as the library of Hugging Face opens it; `split` as in `folder_of`."""
    return Tokenizer.from_file(str(folder_of(family, split=split) / "tokenizer.json"))
