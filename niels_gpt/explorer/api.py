"""What the page is told, without HTTP: typed requests in, plain JSON out."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from niels_gpt import __version__
from niels_gpt.errors import UsageError
from niels_gpt.explorer.chats import ChatRows
from niels_gpt.explorer.dataset import Dataset, Filter, NoSuchRow
from niels_gpt.explorer.drift import compare
from niels_gpt.explorer.export import exported
from niels_gpt.explorer.findings import Findings
from niels_gpt.explorer.gallery import Choice, Gallery
from niels_gpt.explorer.modes import DEFAULT_MODE, MODES
from niels_gpt.explorer.requests import PAGE_ROWS, Browse, Compare, Export, Look, Open, Render, Train
from niels_gpt.explorer.strip import Strip
from niels_gpt.explorer.survey import Survey

if TYPE_CHECKING:
    from niels_gpt.explorer.training_rows import MadeRows, TrainingRows

_MOST_SURVEYS = 4


class Explorer:
    """Everything that one page looks at.

    Args:
        dataset: what was opened, if anything.
        findings: the doctor's report, if one was given.
    """

    def __init__(self, gallery: Gallery, dataset: Dataset | None = None, findings: Findings | None = None) -> None:
        self.gallery, self.dataset, self.findings = gallery, dataset, findings
        self._surveys: dict[tuple[str, Choice], Survey] = {}
        self._training: dict[Hashable, MadeRows] = {}
        self._stored: TrainingRows | None = None
        self._lock, self._rendering = threading.Lock(), threading.Lock()

    def close(self) -> None:
        """Stop what runs in the background, and let go of files."""
        for survey in self._surveys.values():
            survey.stop()
        for made in self._training.values():
            made.close()
        if self.dataset is not None:
            self.dataset.close()

    def session(self) -> dict[str, Any]:
        """What is at hand."""
        return {
            "version": __version__,
            "exhibits": [dataclasses.asdict(exhibit) for exhibit in self.gallery.exhibits()],
            "tokenizers": list(self.gallery.tokenizers),
            "first": dataclasses.asdict(self.gallery.first),
            "modes": [{"name": mode.name, "title": mode.title, "meaning": mode.meaning} for mode in MODES],
            "default_mode": DEFAULT_MODE,
            "dataset": self.about(),
            "findings": self.findings.model_dump() if self.findings else None,
        }

    def about(self, split: str = "") -> dict[str, Any] | None:
        """What is open."""
        return dataclasses.asdict(self.dataset.about(self._split(split))) if self.dataset else None

    def _split(self, given: str) -> str:
        splits = self._opened().splits
        if given and given not in splits:
            raise UsageError(f"split is {given!r}; expected one of {', '.join(splits)}")
        return given or splits[0]

    def _opened(self) -> Dataset:
        if self.dataset is None:
            raise NoSuchRow("no dataset is open; start with: niels-gpt explore FILE")
        return self.dataset

    def render(self, request: Render) -> dict[str, Any]:
        """A conversation as a strip."""
        strip = self.gallery.strip(
            request.messages, request.tools, request.choice, request.modes, prompt=request.prompt
        )
        return strip.to_json()

    def drift(self, request: Compare) -> dict[str, Any]:
        """A conversation as two strips, and where they differ."""
        left, right = (self._strip(request, choice) for choice in (request.left, request.right))
        return {
            "left": left.to_json(),
            "right": right.to_json(),
            "drift": dataclasses.asdict(compare(left, right)),
        }

    def _strip(self, request: Compare, choice: Choice) -> Strip:
        return self.gallery.strip(request.messages, request.tools, choice, list(MODES), prompt=request.prompt)

    def rows(self, request: Browse) -> dict[str, Any]:
        """A page of the table."""
        wanted = Filter(request.text, frozenset(request.has), request.min_size, request.max_size)
        dataset, split = self._opened(), self._split(request.split)
        if not 1 <= request.limit <= PAGE_ROWS:
            raise UsageError(f"limit is {request.limit}; expected 1 to {PAGE_ROWS} rows")
        if request.start < 0:
            raise NoSuchRow(f"start is {request.start}; rows are counted from 0")
        page = dataset.page(split, request.start, request.limit, wanted)
        return {"page": dataclasses.asdict(page), "about": self.about(split)}

    def row(self, request: Open) -> dict[str, Any]:
        """One row."""
        modes = [*MODES, *([request.custom.mode()] if request.custom else [])]
        choice = request.choice or self.gallery.first
        return dataclasses.asdict(self._opened().detail(self._split(request.split), request.row, choice, modes))

    def survey(self, request: Look) -> dict[str, Any]:
        """The histograms by now; asking begins them."""
        dataset, choice = self._opened(), request.choice or self.gallery.first
        key = self._split(request.split), choice
        with self._lock:
            if key not in self._surveys:
                while len(self._surveys) >= _MOST_SURVEYS:
                    self._surveys.pop(next(iter(self._surveys))).stop()
                characters = isinstance(dataset, ChatRows) and not choice.tokenizer
                self._surveys[key] = Survey(dataset, *key, "characters" if characters else "tokens")
            survey = self._surveys[key]
        return dataclasses.asdict(survey.now())

    def training(self, request: Train) -> dict[str, Any]:
        """Rows as they will be trained."""
        from niels_gpt.explorer.training_rows import Fit  # here, because it needs torch

        fit = Fit(request.block_size, request.too_long, request.packed)
        source, split = self._training_rows(request)
        page = source.page(split, fit, max(0, request.start), min(request.limit, PAGE_ROWS))
        strip = None if request.row is None else source.strip(split, fit, request.row).to_json()
        return {"fitted": dataclasses.asdict(page), "strip": strip}

    def _training_rows(self, request: Train) -> tuple[TrainingRows, str]:
        """What is fitted into rows, and which split of it."""
        from niels_gpt.explorer.stored import StoredRows
        from niels_gpt.explorer.training_rows import TrainingRows, copied_rows, rendered_rows

        dataset = self._opened()
        if isinstance(dataset, StoredRows):
            split = self._split(request.split)
            if dataset.kind == "pretrain":
                raise UsageError("this cache is one stream of text: training takes runs of T tokens, as 'Rows' shows")
            if dataset.kind == "sft":
                return self._made(split, lambda: copied_rows(dataset, split)), "train"
            if self._stored is None:
                self._stored = TrainingRows(dataset.directory, dataset.spelling, source=str(dataset.directory))
            return self._stored, split
        assert isinstance(dataset, ChatRows)
        choice = request.choice or self.gallery.first
        mode = next((mode for mode in MODES if mode.name == request.mode), None)
        if mode is None:
            raise UsageError(f"mode is {request.mode!r}; expected one of {', '.join(mode.name for mode in MODES)}")
        return self._made((choice, mode.name), lambda: rendered_rows(dataset, self.gallery, choice, mode)), "train"

    def _made(self, of: Hashable, make: Callable[[], MadeRows]) -> TrainingRows:
        """Rows that are made into episodes first, once; those made of something else before them go."""
        with self._rendering:
            if of not in self._training:
                made = make()
                for earlier in self._training.values():
                    earlier.close()
                self._training = {of: made}
            return self._training[of].rows

    def export(self, request: Export) -> str:
        """A view as a file."""
        view = {"kind": request.kind, "strips": request.strips, "mode": request.mode, "drift": request.drift}
        return exported(request.title, view)


def open_dataset(path: Path | None, gallery: Gallery) -> Dataset | None:
    """A chat file, a cache or episodes, told apart by what lies there.

    Raises:
        InputError, CacheError: nothing usable.
    """
    if path is None:
        return None
    if not path.is_dir():
        return ChatRows(path, gallery)
    from niels_gpt.explorer.stored import StoredRows  # here, because it needs torch

    return StoredRows(path, list(gallery.tokenizers.values()))
