"""One example in the terminal: a legend, running text in colour, and a table with ids and targets."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
from rich.cells import cell_len

from niels_gpt.display.example import Example
from niels_gpt.display.rows import COLOURS, STYLES, TRAINED, visible, whole
from niels_gpt.display.terminal import painted, terminal_text

PADDING_ROWS = 2  # of the table; a row of 8,192 would end in thousands of lines of it
_WIDEST = 24  # columns for a token's text; the row of a longer text is wider


def example_text(example: Example, *, table: bool = True, colour: bool = True) -> str:
    """Title, legend, running text and, with `table`, the table, as lines for a terminal."""
    parts = [painted(example.title, "bold", colour), "\n"]
    if example.spelling is None:
        what = "ids only: no tokenizer of the dataset is beside it; pass --tokenizer to see text"
        parts += [painted(what, "yellow", colour), "\n"]
    parts.append(terminal_text([example.row()], example.spelling, colour=colour))
    return "".join([*parts, "\n", *_table(example, colour)] if table else parts)


def _table(example: Example, colour: bool) -> Iterator[str]:
    """Position, message or text, id, token, kind, and the target that is predicted from that position."""
    n, ids = example.n_inputs, example.ids
    texts = [visible(whole(text)) for text in example.raw_texts]
    width = max(6, min(_WIDEST, max(map(cell_len, set(texts)), default=0)))
    segments = None if example.segments is None else example.segments.tolist()
    owners = [""] * n if segments is None else [example.name_of(segment) for segment in segments]
    title = "message" if example.is_rendering else "text"
    of_owner = 0 if segments is None else max(map(len, {title, *owners}))
    position, of_id = max(3, len(str(n))), max(2, len(str(ids.max(initial=0))))
    of_target = max(9, of_id)

    @cache  # few texts and kinds repeat in many rows
    def cell(text: str, style: str, wide: int) -> str:
        return painted(text, style, colour) + " " * (max(0, wide - cell_len(text)) + 2)

    owner = f"{title:<{of_owner}}  " if of_owner else ""
    head = f"{'pos':>{position}}  {owner}{'id':>{of_id}}  {'token':<{width}}  kind      "
    yield painted(f"{head}{'target id':>{of_target}}  {'target':<{width}}  loss", "bold", colour) + "\n"
    shown = min(n, example.n_real + PADDING_ROWS)
    trained = np.append(example.colours[1:] == TRAINED, False).tolist()
    for at in range(shown):
        kind = COLOURS[example.colours[at]]
        owner = f"{owners[at]:<{of_owner}}  " if of_owner else ""
        target, faint = (texts[at + 1] if at + 1 < len(texts) else ""), "" if trained[at] else "bright_black"
        # -100 is printed where the target is not in the loss, as trainers write it.
        number = f"{ids[at + 1] if trained[at] else -100:>{of_target}}"
        loss = painted("●", "green", colour) if trained[at] else painted("·", faint, colour)
        yield (
            f"{at:>{position}}  {owner}{ids[at]:>{of_id}}  {cell(texts[at], STYLES[kind], width)}"
            f"{cell(kind, STYLES[kind], 8)}{painted(number, faint, colour)}  {cell(target, faint, width)}{loss}\n"
        )
    if shown < n:
        yield painted(f"{'⋮':>{position}}  {n - shown:,} more", STYLES["padding"], colour) + "\n"
