"""`hf` and `trl`: parquet with `input_ids` and unshifted `labels`, in the layout of a dataset on the hub.

::

    OUT/data/train-00000-of-00002.parquet        and so on; the val split is called validation

`labels` are the ids where they are trained and -100 elsewhere, each beside its own token: models of `transformers`
shift them themselves. Rows of several texts have `seq_lengths`, the lengths of their texts; a label is -100 where a
text begins, so no text is predicted from the one before it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from niels_gpt.checksums import FileRecord
from niels_gpt.export.formats import Format, Settings
from niels_gpt.export.parquet import Lists, ParquetFile
from niels_gpt.export.rows import Rows
from niels_gpt.export.sharding import Shards
from niels_gpt.export.source import Facts

SPLIT_NAMES = {"train": "train", "val": "validation"}


class LabelledRows(Shards):
    """Writes one split as parquet files of about `shard_tokens` tokens."""

    def __init__(self, folder: Path, facts: Facts, settings: Settings) -> None:
        super().__init__(folder, facts, settings)
        self._masks = bool(settings.options.get("assistant_masks"))
        self._columns = {"input_ids": "int32", "labels": "int32"}
        if self._masks:
            self._columns["assistant_masks"] = "int8"
        if settings.several_texts(facts):
            self._columns["seq_lengths"] = "int32"
        self._closed: list[tuple[Path, FileRecord]] = []
        self._named: dict[str, FileRecord] = {}
        self._file: ParquetFile | None = None

    @property
    def files(self) -> dict[str, FileRecord]:
        """The finished files."""
        return self._named

    def begin(self, number: int) -> None:
        """Open a file."""
        path = self.folder / "data" / f"{SPLIT_NAMES[self.facts.split]}-{number:05d}.parquet"
        self._file = ParquetFile(path, self._columns)

    def append(self, rows: Rows) -> None:
        """Append rows as a row group."""
        assert self._file is not None
        columns: dict[str, Lists] = {
            "input_ids": (rows.signed_ids(), rows.lengths),
            "labels": (rows.labels(), rows.lengths),
        }
        if self._masks:
            columns["assistant_masks"] = (rows.trained.astype(np.int8), rows.lengths)
        if "seq_lengths" in self._columns:
            columns["seq_lengths"] = (rows.text_lengths(), rows.texts_per_row())
        self._file.write(columns)

    def end(self) -> None:
        """Close the file."""
        assert self._file is not None
        self._closed.append((self._file.path, self._file.close()))

    def close(self) -> None:
        """Finish the files and give them the names of a hub's dataset, which say how many there are."""
        super().close()
        for path, record in self._closed:
            name = f"{path.stem}-of-{len(self._closed):05d}.parquet"
            path.rename(path.with_name(name))
            self._named[f"data/{name}"] = record

    def abandon(self) -> None:
        """Let go of an unfinished file; harmless after `close`."""
        if self._file is not None:
            self._file.abandon()


def _use_hf(settings: Settings, splits: dict[str, Facts]) -> list[str]:
    lines = [
        "Open it with `datasets.load_dataset(DIRECTORY)`; splits: " + ", ".join(SPLIT_NAMES[name] for name in splits),
        "`labels` are unshifted, -100 where nothing is trained: models of transformers shift them themselves.",
    ]
    if any(settings.several_texts(facts) for facts in splits.values()):
        lines.append(
            "Rows hold several texts of the lengths `seq_lengths`. Attention must not cross them: give the model "
            "`position_ids` that begin at 0 in each (or `cu_seq_lens_q/k`), no attention_mask, and use_cache=False: "
            "with a cache, transformers does not look at the positions for where texts begin."
        )
    return lines


def _use_trl(settings: Settings, splits: dict[str, Facts]) -> list[str]:
    packed = any(settings.several_texts(facts) for facts in splits.values())
    flags = "packing=False, padding_free=True, max_length=None" if packed else "packing=False, max_length=None"
    lines = [
        f'SFTConfig({flags}, dataset_kwargs={{"skip_prepare_dataset": True}})',
        "SFTTrainer(train_dataset=datasets.load_dataset(DIRECTORY, split='train'), ...) takes the rows as they are: no "
        "template, no eos, no truncation.",
        "Leave assistant_only_loss and completion_only_loss alone: the labels are there. Pass no data_collator.",
    ]
    if packed:
        lines.append(
            "Load the model with a Flash Attention implementation, as TRL asks for padding_free: its collator makes "
            "position_ids from `seq_lengths`, and attention stays inside each text."
        )
    return lines


HF = Format(
    name="hf",
    title="parquet for datasets and transformers: input_ids, unshifted labels",
    open=LabelledRows,
    use=_use_hf,
    mask="binary",
    options={"assistant_masks": False},
)
TRL = Format(
    name="trl",
    title="parquet for TRL's SFTTrainer: pre-tokenised, pre-masked, and packed if asked",
    open=LabelledRows,
    use=_use_trl,
    mask="binary",
)
