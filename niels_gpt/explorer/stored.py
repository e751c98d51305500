"""The rows of a dataset of ours (`niels_gpt.datasets`) for the page: ids, which become text if a tokenizer fits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy.typing as npt

from niels_gpt.datasets import open_dataset, token_text_of
from niels_gpt.display.rows import raw_spelling, whole
from niels_gpt.errors import InputError, Mismatch, UsageError
from niels_gpt.explorer.dataset import About, Dataset, Filter, RowDetail, RowSummary
from niels_gpt.explorer.example_view import view_example
from niels_gpt.explorer.renderer_list import RendererChoice
from niels_gpt.explorer.token_columns import LossMode, table_of_row
from niels_gpt.explorer.training_rows import TrainingRows
from niels_gpt.store.documents import DocumentSplit
from niels_gpt.store.rows import Row, Split, TokenText

WINDOW = 1024  # inputs of a row of the table, where the dataset is one stream of text
PREVIEW_TOKENS = 48  # in the list of rows
NO_TOKENS = "the row has no tokens; loaders leave it out"


class StoredRows(Dataset):
    """A cache or an episodes dataset. A pretraining cache has training windows of 1 024 inputs as rows.

    Args:
        tokenizers: where its tokenizer may be; the first whose checksum fits gives the text of ids.

    Raises:
        CacheError: damaged, or no dataset. InputError: without a row.
    """

    def __init__(self, directory: Path, tokenizers: list[str]) -> None:
        self.directory, self.dataset = directory, open_dataset(directory)
        self.kind, self.special = self.dataset.kind, self.dataset.special_token_ids
        self.token_text = self._token_text(tokenizers)
        # Documents of a stream are shown in windows: where they begin is not recorded, and to find it would read the
        # whole split before the first page.
        self._rows: dict[str, Split] = {
            name: split.windows(WINDOW) if isinstance(split, DocumentSplit) else split
            for name, split in self.dataset.splits.items()
        }
        self.splits = [name for name, rows in self._rows.items() if len(rows)]
        if not self.splits:
            raise InputError(f"{directory}: holds no rows; build it with more data")
        # A window has one token more than inputs, so that its last input has a target.
        self._sizes = {name: self._rows[name].lengths - (self.kind == "pretrain") for name in self.splits}

    def _token_text(self, tokenizers: list[str]) -> TokenText | None:
        for place in tokenizers:
            try:
                return token_text_of(self.directory, self.dataset.manifest, Path(place))
            # Several tokenizers may be open for comparison; those that did not write this dataset are no error.
            except Mismatch:
                continue
        return token_text_of(self.directory, self.dataset.manifest, None)

    @cached_property
    def as_trained(self) -> TrainingRows:
        """Its rows as the loader makes them."""
        return TrainingRows(self.directory, self.token_text)

    def place_of(self, number: int) -> tuple[str, int]:
        name = ""
        for name, rows in self._rows.items():
            if number < len(rows):
                return name, number
            number -= len(rows)
        return name, number

    def about(self, split: str) -> About:
        manifest, sizes = self.dataset.manifest, self._sizes[split]
        names = ("dataset_name", "source_name", "encoder", "token_dtype", "vocab_size", "mask_dtype", "seed")
        facts = {name: manifest[name] for name in names if manifest.get(name) is not None}
        facts["tokens"] = int(sizes.sum())
        return About(str(self.directory), self.kind, "tokens", self.splits, len(sizes), facts=facts)

    def tokens(self, split: str, row: int) -> Row:
        """A row as the table counts it."""
        found = self._rows[split].row(row)
        # The last token of a window is only a target, and is the first input of the next window.
        return Row(row, found.ids[:-1]) if self.kind == "pretrain" else found

    def summary(self, split: str, row: int, wanted: Filter) -> RowSummary | None:
        if wanted.text and self.token_text is None:
            raise UsageError("searching needs text: start with --tokenizer, the one that this data was built with")
        # Sizes are compared first, so that a text is only decoded for rows of the right size.
        if not wanted.fits(int(self._sizes[split][row])):
            return None
        tokens = self.tokens(split, row)
        if wanted.text and not wanted.matches(self._text(tokens.ids)):
            return None
        shown = tokens.ids[:PREVIEW_TOKENS]
        preview = self._text(shown) if self.token_text else " ".join(map(str, shown.tolist()))
        trained, problem = int(tokens.trained.sum()), "" if len(tokens) else NO_TOKENS
        return RowSummary(row, f"{self.kind} {row}", preview, len(tokens), trained=trained, problem=problem)

    def _text(self, ids: npt.NDArray[Any]) -> str:
        text = self.token_text
        return "" if text is None else whole("".join(map(raw_spelling(text), ids.tolist())))

    def detail(
        self, split: str, row: int, choice: RendererChoice, modes: Sequence[LossMode], completion: int = 0
    ) -> RowDetail:
        """See `Dataset`; the row as a training step sees it, whole."""
        if completion:
            raise UsageError("completion is for rows of preferences in files; a dataset has a row for each completion")
        self.check_row(split, row)
        if not len(self._rows[split].row(row)):
            return RowDetail(row, f"{split} {row}", None, problem=NO_TOKENS)
        width = WINDOW if self.kind == "pretrain" else None
        example = view_example(self.directory, row, split=split, T=width, token_text=self.token_text)
        return RowDetail(row, f"{split} {row}", table_of_row(example, self.special))

    def sizes(self, split: str, rows: list[int], choice: RendererChoice) -> list[tuple[int, float]]:
        # An empty row has no share; its mean would be a warning and NaN.
        parts = [self.tokens(split, row).trained for row in rows]
        return [(len(trained), float(trained.mean())) for trained in parts if len(trained)]
