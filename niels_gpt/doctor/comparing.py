"""Two formats on the same conversations: the built-in probes, and the user's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from niels_gpt.doctor.chats import ChatRow, chat_rows
from niels_gpt.doctor.kit import is_renderer, renderer_for
from niels_gpt.doctor.learning import AnyRenderer
from niels_gpt.doctor.pool import examined
from niels_gpt.doctor.probes import PROBES
from niels_gpt.doctor.reading import Opened, is_tokenizer
from niels_gpt.doctor.rules import drift
from niels_gpt.doctor.slices import Slice, decoded
from niels_gpt.doctor.tally import Tally
from niels_gpt.errors import TemplateError, UsageError
from niels_gpt.messages import normalise
from niels_gpt.progress import Progress

Sides = tuple[AnyRenderer, AnyRenderer]


@dataclass(frozen=True)
class Comparison:
    """The two formats, and how conversations are written in the input."""

    sides: Sides
    dialect: str
    keep: int

    def examine(self, part: Slice) -> Tally:
        """Compare the two on the conversations of a slice."""
        numbers, payload = part
        tally = Tally(self.keep)
        tally.sums["rows"] = len(numbers)
        chats = chat_rows(numbers, decoded(payload), self.dialect, tally)
        tally.sums["tokens"] = drift.check(*self.sides, chats, tally)
        return tally


def compared(
    sides: Sides, opened: Opened | None, sample: int | None, seed: int, workers: int, keep: int, progress: Progress
) -> tuple[Tally, dict[str, Any]]:
    """Both on the conversations of an input, if there is one, and on the probes.

    Rows are those of the input; the probes are numbered behind them.
    """
    tally, told = Tally(keep), dict[str, Any]()
    behind = 0
    if opened is not None:
        progress.begin(f"comparing on {opened.name}", total=sample or opened.count(), unit="rows")
        for part in examined(Comparison(sides, opened.dialect, keep), opened.slices(sample, seed), workers):
            tally.merge(part)
            behind += part.sums["rows"]
            progress.advance(part.sums["rows"])
        told = {"chats": opened.name, "conversations": behind}
        if sample is not None:
            told |= {"sample": sample, "seed": seed}
            behind = opened.count() or behind
    probed = _on_probes(sides, behind, keep)
    if opened is not None:
        for rule in drift.RULES:
            for name, part in (("conversations", tally), ("probes", probed)):
                held = part.hits.get(rule.id)
                tally.sums[f"{rule.id}: {name}"] = held.rows if held is not None else 0
    tally.merge(probed)
    return tally, told


def _on_probes(sides: Sides, first: int, keep: int) -> Tally:
    tally = Tally(keep)
    tally.sums["rows"] = len(PROBES)
    chats = [
        ChatRow(number, f"probe {name!r}", normalise(messages), tools)  # type: ignore[arg-type]
        for number, (name, messages, tools) in enumerate(PROBES, start=first)
    ]
    tally.sums["tokens"] = drift.check(*sides, chats, tally)
    return tally


def sides_of(one: Any, other: Any, tokenizer: Any, renderer: Any, date: str | None) -> Sides:
    """The two to compare: each a renderer, a tokenizer directory, or a template file with `tokenizer`.

    Raises:
        UsageError: a template without a tokenizer. TemplateError: a tokenizer without a template.
    """
    return _side(one, tokenizer, renderer, date), _side(other, tokenizer, renderer, date)


def _side(given: Any, tokenizer: Any, renderer: Any, date: str | None) -> AnyRenderer:
    """One side of a comparison: a renderer, a tokenizer directory, or a template file with `tokenizer`.

    Raises:
        UsageError: a template without a tokenizer. TemplateError: a tokenizer without a template.
    """
    if is_renderer(given):
        return given
    path = Path(str(given))
    if path.is_file() and not is_tokenizer(path):
        if tokenizer is None:
            raise UsageError(f"{path}: a template needs a tokenizer; pass --tokenizer DIR")
        _, made = renderer_for(tokenizer, path.read_text(encoding="utf-8"), None, date)
    else:
        _, made = renderer_for(given, None, renderer, date)
    if made is None:
        raise TemplateError(f"{given}: no chat template to compare; add chat_template.jinja, or name --renderer")
    return made
