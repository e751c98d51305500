"""`hf` and `trl`: parquet with `input_ids` and unshifted `labels`, named as a dataset on the hub.

::

    OUT/data/train-00000-of-00002.parquet        and so on; the val split is called validation

`labels` are the ids where they are trained and -100 elsewhere, aligned with `input_ids`: models of `transformers` shift
them themselves. Rows of several texts have `seq_lengths`, the lengths of their texts. A label is -100 where a text
begins, so that no text is predicted from the one before it. For texts a b c and d e in one row::

    input_ids     a b c d e
    labels     -100 b c -100 e
    seq_lengths   3 2
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from niels_gpt.export.formats import Format, Settings
from niels_gpt.export.source import Source
from niels_gpt.export.writers import SPLIT_NAMES, HubFiles, Lists
from niels_gpt.store.rows import Rows


class LabelledRows(HubFiles):
    """Ids and labels of one split."""

    def __init__(self, folder: Path, source: Source, settings: Settings) -> None:
        columns = {"input_ids": "int32", "labels": "int32"}
        if settings.options.get("assistant_masks"):
            columns["assistant_masks"] = "int8"
        if settings.several_texts(source):
            columns["seq_lengths"] = "int32"
        super().__init__(folder, source.split.name, settings.shard_tokens, columns)

    def write(self, rows: Rows) -> None:
        """Append rows, to a new file if need be."""
        # Each column with its own lengths: `seq_lengths` has fewer values than the others.
        columns: dict[str, Lists] = {
            "input_ids": (rows.signed_ids(), rows.lengths),
            "labels": (rows.labels(), rows.lengths),
        }
        if "assistant_masks" in self.columns:
            columns["assistant_masks"] = (rows.trained.astype(np.int8), rows.lengths)
        if "seq_lengths" in self.columns:
            columns["seq_lengths"] = (rows.text_lengths(), rows.texts_per_row())
        self.append(columns, rows.lengths)


def _use_hf(settings: Settings, splits: dict[str, Source]) -> list[str]:
    lines = [
        "Open it with `datasets.load_dataset(DIRECTORY)`; splits: " + ", ".join(SPLIT_NAMES[name] for name in splits),
        "`labels` are unshifted and -100 where a token is not trained; models of transformers shift them themselves.",
    ]
    if any(settings.several_texts(source) for source in splits.values()):
        lines.append(
            "Rows hold several texts, with lengths in `seq_lengths`. Attention must not cross between them: pass "
            "`position_ids` that begin at 0 in each text (or `cu_seq_lens_q/k`), no attention_mask, and "
            "use_cache=False, because with a cache transformers does not use positions to separate texts."
        )
    return lines


def _use_trl(settings: Settings, splits: dict[str, Source]) -> list[str]:
    # Without padding_free TRL's collator pads rows, and texts of one row would attend to each other.
    packed = any(settings.several_texts(source) for source in splits.values())
    flags = "packing=False, padding_free=True, max_length=None" if packed else "packing=False, max_length=None"
    lines = [
        f'SFTConfig({flags}, dataset_kwargs={{"skip_prepare_dataset": True}})',
        "SFTTrainer(train_dataset=datasets.load_dataset(DIRECTORY, split='train'), ...) uses the rows as they are: it "
        "adds no template and no eos, and does not truncate.",
        "Do not set assistant_only_loss or completion_only_loss: the labels are in the data. Pass no data_collator.",
    ]
    if packed:
        lines.append(
            "Load the model with a Flash Attention implementation, which TRL requires for padding_free: its collator "
            "computes position_ids from `seq_lengths`, and attention stays inside each text."
        )
    return lines


HF = Format(
    name="hf",
    title="parquet for datasets and transformers: input_ids, unshifted labels",
    open=LabelledRows,
    use=_use_hf,
    mask="binary",
    options={"assistant_masks": False},
    library="pyarrow",
)
TRL = Format(
    name="trl",
    title="parquet for TRL's SFTTrainer: tokenised, with labels, optionally packed",
    open=LabelledRows,
    use=_use_trl,
    mask="binary",
    library="pyarrow",
)
