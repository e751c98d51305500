"""Drift: two tokenizers or templates on the same conversations, the built-in probes and the user's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from niels_gpt.doctor.context import is_renderer, renderer_for
from niels_gpt.doctor.counters import Counters
from niels_gpt.doctor.examine import examine_slices
from niels_gpt.doctor.layouts.probes import PROBES, AnyRenderer
from niels_gpt.doctor.options import DiagnoseOptions
from niels_gpt.doctor.rows import ChatRow, chat_rows
from niels_gpt.doctor.rules import RULES, drift
from niels_gpt.errors import TemplateError, UsageError
from niels_gpt.inputs.opened import Opened, is_tokenizer
from niels_gpt.inputs.parts import Slice, decoded
from niels_gpt.messages import normalise

Sides = tuple[AnyRenderer, AnyRenderer]


def open_sides(one: Any, other: Any, tokenizer: Any, renderer: Any, date: str | None) -> Sides:
    """The two to compare: each is a renderer, a tokenizer directory, or a template file together with `tokenizer`.

    Raises:
        UsageError: a template without a tokenizer. TemplateError: a tokenizer without a template.
    """
    return _open_side(one, tokenizer, renderer, date), _open_side(other, tokenizer, renderer, date)


def _open_side(side: Any, tokenizer: Any, renderer: Any, date: str | None) -> AnyRenderer:
    """One side of a comparison as a renderer."""
    if is_renderer(side):
        return side.lists_unwritten()
    path = Path(str(side))
    # A file that is no tokenizer is the text of a template.
    if path.is_file() and not is_tokenizer(path):
        if tokenizer is None:
            raise UsageError(f"{path}: a template needs a tokenizer; pass --tokenizer DIR")
        # `renderer` names what writes the other side; this one is written by its template.
        _, opened = renderer_for(tokenizer, path.read_text(encoding="utf-8"), None, date)
    else:
        # Its own template even if a family is known for it: two checkpoints may differ in nothing but the template.
        _, opened = renderer_for(side, None, renderer, date, own_template=True)
    if opened is None:
        raise TemplateError(f"{side}: no chat template to compare; add chat_template.jinja, or name --renderer")
    return opened


def compare_formats(sides: Sides, opened: Opened | None, how: DiagnoseOptions) -> tuple[Counters, dict[str, Any]]:
    """Compare on the conversations of an input, if there is one, and on the probes.

    Returns:
        What was found, and a description of the input for the report's `source`. Probes are numbered after the rows of
        the input.
    """
    counters, description = Counters(how.evidence), dict[str, Any]()
    # The number of the first probe; probes follow the rows of the input.
    first_probe = 0
    if opened is not None:
        how.progress.begin(f"comparing on {opened.name}", total=how.sample or opened.count(), unit="rows")
        comparison = Comparison(sides, opened.dialect_at, how.evidence)
        for part in examine_slices(comparison, opened.slices(how.sample, how.seed), how.workers):
            counters.merge(part)
            first_probe += part.sums["rows"]
            how.progress.advance(part.sums["rows"])
        description = {"chats": opened.name, "conversations": first_probe}
        if how.sample is not None:
            description |= {"sample": how.sample, "seed": how.seed}
            # In a sample, rows keep their numbers in the whole input; probes come after all of them.
            first_probe = opened.count() or first_probe
    on_probes = Counters(how.evidence)
    on_probes.sums["rows"] = len(PROBES)
    chats = [
        ChatRow(number, f"probe {name!r}", normalise(messages), tools)  # type: ignore[arg-type]
        for number, (name, messages, tools) in enumerate(PROBES, start=first_probe)
    ]
    on_probes.sums["tokens"] = drift.check(*sides, chats, on_probes)
    if opened is not None:
        # The report says how many of the hits are in the user's conversations, and how many in the probes.
        for rule in (rule for rule in RULES.values() if rule.applies == ("drift",)):
            for name, part in (("conversations", counters), ("probes", on_probes)):
                hits = part.hits.get(rule.id)
                counters.sums[f"{rule.id}: {name}"] = hits.rows if hits is not None else 0
    counters.merge(on_probes)
    return counters, description


@dataclass(frozen=True)
class Comparison:
    """The examiner of a comparison: the two renderers, and the dialect of a conversation by its place."""

    sides: Sides
    dialect_at: Callable[[str], str]
    max_evidence: int

    def examine(self, part: Slice) -> Counters:
        """Compare the two on the conversations of a slice."""
        numbers, payload = part
        counters = Counters(self.max_evidence)
        counters.sums["rows"] = len(numbers)
        # Rows that are no conversations become hits, as in a diagnosis, and are not compared.
        chats = chat_rows(numbers, decoded(numbers, payload), self.dialect_at, counters)
        counters.sums["tokens"] = drift.check(*self.sides, chats, counters)
        return counters
