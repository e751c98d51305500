"""The explorer without HTTP: a method for each request of the page, which pydantic calls with its JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

from niels_gpt.errors import InputError, UsageError
from niels_gpt.explorer.chat_rows import ChatRows
from niels_gpt.explorer.dataset import ALL_ROWS, Dataset, Filter, NoSuchRow
from niels_gpt.explorer.drift import compare
from niels_gpt.explorer.findings import placed
from niels_gpt.explorer.html import exported
from niels_gpt.explorer.renderer_list import RendererChoice, RendererList
from niels_gpt.explorer.sample_stats import sample_stats
from niels_gpt.explorer.stored import StoredRows
from niels_gpt.explorer.token_columns import DEFAULT_MODE, MODES, CustomMode
from niels_gpt.explorer.training_rows import Fit
from niels_gpt.inputs.opened import open_input
from niels_gpt.messages import Conversation
from niels_gpt.sources.files.inputs import Rejected
from niels_gpt.store.kinds import is_dataset
from niels_gpt.version import __version__

PAGE_ROWS = 200
SERVED_ROWS = 20  # of a chat file, which the drift view compares with a server


class Explorer:
    """The state of one page: renderers, the open dataset, the doctor's findings, and what was computed so far.

    Methods may be called from several threads.

    Args:
        renderers: the renderers that the page offers.
        dataset: the open dataset; `None` where the page only renders.
        findings: the doctor's report, from `read_findings`.
        server: the address of an inference server, which the drift view compares with the first renderer.
    """

    def __init__(
        self,
        renderers: RendererList,
        dataset: Dataset | None = None,
        findings: dict[str, Any] | None = None,
        server: str = "",
    ) -> None:
        self.renderers, self.dataset, self._server = renderers, dataset, server
        self.findings = findings and placed(findings, dataset)

    def close(self) -> None:
        """Close files."""
        if self.dataset is not None:
            self.dataset.close()

    def session(self) -> dict[str, Any]:
        """The data with which the page starts: renderers, tokenizers, loss modes, the dataset, findings."""
        dataset = self.dataset
        return {
            "version": __version__,
            "renderers": self.renderers.listed(),
            "tokenizers": list(self.renderers.tokenizers),
            "first": asdict(self.renderers.first),
            "modes": [{"name": mode.name, "title": mode.title, "meaning": mode.meaning} for mode in MODES],
            "default_mode": DEFAULT_MODE,
            "dataset": None if dataset is None else asdict(dataset.about(dataset.splits[0])),
            "findings": self.findings,
            "serving": self._server,
        }

    def _opened(self, split: str) -> tuple[Dataset, str]:
        """The open dataset, and one of its splits, by default the first."""
        if self.dataset is None:
            raise NoSuchRow("no dataset is open; start with: niels-gpt explore FILE")
        splits = self.dataset.splits
        if split and split not in splits:
            raise UsageError(f"split is {split!r}; expected one of {', '.join(splits)}")
        return self.dataset, split or splits[0]

    def render(
        self,
        messages: Any,
        choice: RendererChoice,
        tools: Any = None,
        custom: CustomMode | None = None,
        prompt: bool = False,
    ) -> dict[str, Any]:
        """A conversation as a token table, under all loss modes; `normalise` checks `messages`."""
        modes = [*MODES, *([custom.mode()] if custom else [])]
        return asdict(self.renderers.table(messages, tools, choice, modes, prompt=prompt))

    def drift(
        self, messages: Any, left: RendererChoice, right: RendererChoice, tools: Any = None, prompt: bool = False
    ) -> dict[str, Any]:
        """A conversation as two token tables, and where they differ."""
        one, other = (self.renderers.table(messages, tools, choice, MODES, prompt=prompt) for choice in (left, right))
        return {"left": asdict(one), "right": asdict(other), "drift": asdict(compare(one, other))}

    def serving(self) -> dict[str, Any]:
        """What the server makes of probes and of the first rows of a chat file, as `ServingReport.to_json` has it.

        Raises:
            UsageError: no server, or no tokenizer. ServerError: it does not answer.
        """
        first = self.renderers.first
        if not self._server or not first.tokenizer:
            raise UsageError("comparing with a server needs --serving URL and --tokenizer, as in training")
        from niels_gpt.doctor.serving.check import check_serving  # here, because it needs an extra

        rows: Iterable[Conversation | Rejected] = ()
        if isinstance(self.dataset, ChatRows):
            rows = map(self.dataset.conversation, range(min(SERVED_ROWS, len(self.dataset.lines))))
        return check_serving(self._server, self.renderers.renderer(first), rows).to_json()

    def rows(
        self, split: str = "", start: int = 0, limit: int = 50, wanted: Filter = ALL_ROWS, finding: int | None = None
    ) -> dict[str, Any]:
        """A page of rows.

        Args:
            finding: only the rows that this finding of the report names.
        """
        dataset, split = self._opened(split)
        if finding is not None:
            findings = self.findings["findings"] if self.findings else []
            if not 0 <= finding < len(findings):
                raise UsageError(f"finding is {finding}; the report has {len(findings)} findings, counted from 0")
            # A finding may be about the whole input: its evidence then has row -1, which is no row of any split.
            evidence = findings[finding]["evidence"]
            named = {place["row"] for place in evidence if place["row"] >= 0 and place["split"] == split}
            wanted = replace(wanted, rows=tuple(sorted(named)))
        if not 1 <= limit <= PAGE_ROWS:
            raise UsageError(f"limit is {limit}; expected 1 to {PAGE_ROWS} rows")
        if start < 0:
            raise NoSuchRow(f"start is {start}; rows are counted from 0")
        page = dataset.page(split, start, limit, wanted)
        return {"page": asdict(page), "about": asdict(dataset.about(split))}

    def row(
        self, row: int, split: str = "", choice: RendererChoice | None = None, completion: int = 0
    ) -> dict[str, Any]:
        """One row; a conversation is rendered as chosen, a row of preferences with one of its completions."""
        dataset, split = self._opened(split)
        return asdict(dataset.detail(split, row, choice or self.renderers.first, MODES, completion))

    def image(self, row: int, message: int, part: int, completion: int = 0) -> tuple[bytes, str]:
        """The bytes of an image in a row of a chat file, and their media type; raises as `ChatRows.image`."""
        dataset, _ = self._opened("")
        if not isinstance(dataset, ChatRows):
            raise NoSuchRow("images are shown of chat files; a dataset has names and hashes of them")
        return dataset.image(row, message, part, completion)

    def stats(self, split: str = "", choice: RendererChoice | None = None) -> dict[str, Any]:
        """The histograms of a sample of rows; see `sample_stats`."""
        (dataset, split), choice = self._opened(split), choice or self.renderers.first
        characters = isinstance(dataset, ChatRows) and not choice.tokenizer
        return sample_stats(dataset, split, choice, "characters" if characters else "tokens")

    def training(
        self, fit: Fit, split: str = "", start: int = 0, limit: int = 40, row: int | None = None
    ) -> dict[str, Any]:
        """Rows as they will be trained; with `row` also the tokens of that row."""
        dataset, split = self._opened(split)
        if not isinstance(dataset, StoredRows):
            raise UsageError("rows as trained are those of a dataset; build one of this file, then open it")
        if dataset.kind == "pretrain":
            raise UsageError("this cache is one stream of text: training takes windows of T tokens, as 'Rows' shows")
        rows = dataset.as_trained
        page = rows.page(split, fit, max(0, start), min(limit, PAGE_ROWS))
        table = None if row is None else asdict(rows.table(split, fit, row))
        return {"fitted": page, "table": table}

    def export(
        self,
        kind: Literal["mask", "formats", "drift", "row"],
        title: str,
        tables: Sequence[dict[str, Any]],
        mode: str = DEFAULT_MODE,
        drift: dict[str, Any] | None = None,
    ) -> str:
        """A view as one HTML file: the token tables that the page shows, as they were sent to it."""
        return exported(title, {"kind": kind, "tables": tables, "mode": mode, "drift": drift})


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
        return StoredRows(place, list(renderers.tokenizers.values()))
    opened = open_input(path, form=form)
    if opened.kind == "tokens":
        raise InputError(
            f"{opened.name}: holds token ids of another program ({opened.form}); make episodes of them with niels-gpt "
            "import, then open these"
        )
    return ChatRows(opened, renderers)
