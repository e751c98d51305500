"""The explorer without HTTP: a method for each kind of request, typed requests in, JSON values out."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from niels_gpt.errors import InputError, UsageError
from niels_gpt.explorer.chat_rows import ChatRows
from niels_gpt.explorer.dataset import Dataset, Filter, NoSuchRow
from niels_gpt.explorer.drift import compare
from niels_gpt.explorer.findings import Findings
from niels_gpt.explorer.html import exported
from niels_gpt.explorer.renderer_list import RendererChoice, RendererList
from niels_gpt.explorer.requests import PAGE_ROWS, Browse, Compare, Export, Open, Render, Sample, Train
from niels_gpt.explorer.sample_stats import SampleStats
from niels_gpt.explorer.token_columns import DEFAULT_MODE, MODES
from niels_gpt.inputs.opened import open_input
from niels_gpt.store.kinds import is_dataset
from niels_gpt.version import __version__

if TYPE_CHECKING:
    from niels_gpt.explorer.training_rows import TrainingRows

_MOST_SAMPLES = 4  # each has a thread


class Explorer:
    """The state of one page: renderers, the open dataset, the doctor's findings, and what was computed so far.

    Methods may be called from several threads.

    Args:
        renderers: the renderers that the page offers.
        dataset: the open dataset; `None` where the page only renders.
        findings: the doctor's report; `None` without one.
    """

    def __init__(
        self, renderers: RendererList, dataset: Dataset | None = None, findings: Findings | None = None
    ) -> None:
        self.renderers, self.dataset = renderers, dataset
        self.findings = findings if findings is None or dataset is None else findings.placed(dataset)
        self._stats: dict[tuple[str, RendererChoice], SampleStats] = {}
        self._training: TrainingRows | None = None
        self._lock = threading.Lock()

    def close(self) -> None:
        """Stop the background threads and close files."""
        for stats in self._stats.values():
            stats.stop()
        if self.dataset is not None:
            self.dataset.close()

    def session(self) -> dict[str, Any]:
        """The data with which the page starts: renderers, tokenizers, loss modes, the dataset, findings."""
        return {
            "version": __version__,
            "renderers": [dataclasses.asdict(listed) for listed in self.renderers.listed()],
            "tokenizers": list(self.renderers.tokenizers),
            "first": dataclasses.asdict(self.renderers.first),
            "modes": [{"name": mode.name, "title": mode.title, "meaning": mode.meaning} for mode in MODES],
            "default_mode": DEFAULT_MODE,
            "dataset": self.about(),
            "findings": self.findings.model_dump() if self.findings else None,
        }

    def about(self, split: str = "") -> dict[str, Any] | None:
        """The description of the open dataset; `None` without one."""
        return dataclasses.asdict(self.dataset.about(self._split(split))) if self.dataset else None

    def _split(self, name: str) -> str:
        splits = self._opened().splits
        if name and name not in splits:
            raise UsageError(f"split is {name!r}; expected one of {', '.join(splits)}")
        return name or splits[0]

    def _opened(self) -> Dataset:
        if self.dataset is None:
            raise NoSuchRow("no dataset is open; start with: niels-gpt explore FILE")
        return self.dataset

    def render(self, request: Render) -> dict[str, Any]:
        """A conversation as a token table."""
        table = self.renderers.table(
            request.messages, request.tools, request.choice, request.modes, prompt=request.prompt
        )
        return table.to_json()

    def drift(self, request: Compare) -> dict[str, Any]:
        """A conversation as two token tables, and where they differ."""
        left, right = (
            self.renderers.table(request.messages, request.tools, choice, list(MODES), prompt=request.prompt)
            for choice in (request.left, request.right)
        )
        return {
            "left": left.to_json(),
            "right": right.to_json(),
            "drift": dataclasses.asdict(compare(left, right)),
        }

    def rows(self, request: Browse) -> dict[str, Any]:
        """A page of rows."""
        dataset, split = self._opened(), self._split(request.split)
        rows: tuple[int, ...] | None = None
        if request.finding is not None:
            findings = self.findings.findings if self.findings else []
            if not 0 <= request.finding < len(findings):
                raise UsageError(
                    f"finding is {request.finding}; the report has {len(findings)} findings, counted from 0"
                )
            # A finding may be about the whole input: its evidence then has row -1, which is no row of any split.
            evidence = findings[request.finding].evidence
            rows = tuple(sorted({place.row for place in evidence if place.row >= 0 and place.split == split}))
        wanted = Filter(request.text, request.role, frozenset(request.has), request.min_size, request.max_size, rows)
        if not 1 <= request.limit <= PAGE_ROWS:
            raise UsageError(f"limit is {request.limit}; expected 1 to {PAGE_ROWS} rows")
        if request.start < 0:
            raise NoSuchRow(f"start is {request.start}; rows are counted from 0")
        page = dataset.page(split, request.start, request.limit, wanted)
        return {"page": dataclasses.asdict(page), "about": self.about(split)}

    def row(self, request: Open) -> dict[str, Any]:
        """One row."""
        modes = [*MODES, *([request.custom.mode()] if request.custom else [])]
        choice = request.choice or self.renderers.first
        dataset, place = self._opened(), (self._split(request.split), request.row)
        if isinstance(dataset, ChatRows):
            return dataclasses.asdict(dataset.detail(*place, choice, modes, request.completion))
        if request.completion:
            raise UsageError("completion is for rows of preferences in files; a dataset has a row for each completion")
        return dataclasses.asdict(dataset.detail(*place, choice, modes))

    def image(self, row: int, message: int, part: int, completion: int = 0) -> tuple[bytes, str]:
        """The bytes of an image in a row of a chat file, and their media type; raises as `ChatRows.image`."""
        dataset = self._opened()
        if not isinstance(dataset, ChatRows):
            raise NoSuchRow("images are shown of chat files; a dataset has names and hashes of them")
        return dataset.image(row, message, part, completion)

    def stats(self, request: Sample) -> dict[str, Any]:
        """The histograms of the rows sampled so far; the first request starts the sampling."""
        # The page asks again every second; the sampling goes on between requests.
        dataset, choice = self._opened(), request.choice or self.renderers.first
        key = self._split(request.split), choice
        with self._lock:
            if key not in self._stats:
                while len(self._stats) >= _MOST_SAMPLES:
                    # The oldest sample makes room; each holds a thread.
                    self._stats.pop(next(iter(self._stats))).stop()
                characters = isinstance(dataset, ChatRows) and not choice.tokenizer
                self._stats[key] = SampleStats(dataset, *key, "characters" if characters else "tokens")
            stats = self._stats[key]
        return dataclasses.asdict(stats.now())

    def training(self, request: Train) -> dict[str, Any]:
        """Rows as they will be trained, and the tokens of one of them."""
        from niels_gpt.explorer.stored import StoredRows
        from niels_gpt.explorer.training_rows import Fit, TrainingRows  # here, because it imports torch

        dataset, split = self._opened(), self._split(request.split)
        if not isinstance(dataset, StoredRows):
            raise UsageError("rows as trained are those of a dataset; build one of this file, then open it")
        if dataset.kind == "pretrain":
            raise UsageError("this cache is one stream of text: training takes windows of T tokens, as 'Rows' shows")
        fit = Fit(request.block_size, request.too_long, request.packed)
        with self._lock:
            if self._training is None:
                self._training = TrainingRows(dataset.directory, dataset.token_text)
        page = self._training.page(split, fit, max(0, request.start), min(request.limit, PAGE_ROWS))
        table = None if request.row is None else self._training.table(split, fit, request.row).to_json()
        return {"fitted": page, "table": table}

    def export(self, request: Export) -> str:
        """A view as one HTML file."""
        view = {"kind": request.kind, "tables": request.tables, "mode": request.mode, "drift": request.drift}
        return exported(request.title, view)


def open_dataset(path: str | Path | None, renderers: RendererList, form: str | None = None) -> Dataset | None:
    """Open conversations, preferences and datasets of ours, from all places where the doctor reads them.

    Args:
        form: the shape of conversations or preferences; default as the first rows look.

    Raises:
        InputError, CacheError: nothing usable there, or token ids of another program. UsageError: no such form.
    """
    if path is None:
        return None
    place = Path(path)
    # Ours first, because the doctor refuses caches of plain text.
    if is_dataset(place):
        from niels_gpt.explorer.stored import StoredRows  # here, because a chat file needs none of our datasets' code

        return StoredRows(place, list(renderers.tokenizers.values()))
    opened = open_input(path, form=form)
    if opened.kind == "tokens":
        raise InputError(
            f"{opened.name}: holds token ids of another program ({opened.form}); make episodes of them with niels-gpt "
            "import, then open these"
        )
    return ChatRows(place, renderers, opened)
