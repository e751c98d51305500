"""`Example`: one example as a training step sees it, in arrays, for the terminal, for `--json` and for the page.

`explorer/example_view.py` makes them of conversations and of stored rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.display.rows import COLOURS, PADDING, TRAINED, Spelling, TokenRow, cached, whole

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, eq=False)
class Example:
    """The tokens of a rendering, or of a stored row: its inputs and, last, the target of the last input.

    Attributes:
        title: one line: the source, the row, and counts.
        ids: integers of shape (tokens,), padding included.
        colours: places in `COLOURS`, of shape (tokens,).
        spelling: the text of an id; `None` where no tokenizer is available.
        segments: the number, from 1, of the text of each token in a packed row, or of its message; 0 for neither.
            `None` where a row is one text.
        names: of the texts or messages: "episode 7", or the role.
        sampled, body: of each token of a rendering, whether the model itself would emit it, and whether it is content;
            `None` for stored rows, which do not record it.
    """

    title: str
    ids: Ints
    colours: Ints
    spelling: Spelling | None = None
    segments: Ints | None = None
    names: Sequence[str] = ()
    sampled: Bools | None = None
    body: Bools | None = None

    @property
    def is_rendering(self) -> bool:
        """Whether it is a conversation that was rendered now, not a stored row."""
        return self.sampled is not None

    @property
    def n_inputs(self) -> int:
        """How many tokens are inputs: all of a rendering, all but the last of a stored row."""
        return len(self.ids) - (not self.is_rendering)

    @property
    def n_real(self) -> int:
        """How many inputs are in front of the padding."""
        return int(np.count_nonzero(self.colours[: self.n_inputs] != PADDING))

    @cached_property
    def raw_texts(self) -> list[str]:
        """The text of each token, as `TokenSpelling.raw` has it; empty without a tokenizer."""
        return list(map(cached(self.spelling), self.ids.tolist())) if self.spelling else [""] * len(self.ids)

    def row(self) -> TokenRow:
        """The inputs as running text."""
        n = self.n_real
        segments = np.zeros(n, np.int64) if self.segments is None else self.segments[:n]
        starts = np.flatnonzero(np.diff(segments)) + 1
        names = [self.name_of(int(segments[at])) for at in [0, *starts]] if n else []
        # The facts are for tooltips, which a terminal has not.
        colours = self.colours[:n].astype(np.intp)
        return TokenRow(self.ids[:n], colours, lambda at: "", "", starts.tolist(), self.n_inputs - n, names)

    def name_of(self, segment: int) -> str:
        """The name of a text or message: `1 assistant`, `episode 7`; empty for segment 0."""
        if not segment:
            return ""
        return f"{segment - 1} {self.names[segment - 1]}" if self.is_rendering else self.names[segment - 1]

    def tokens(self) -> Iterator[dict[str, Any]]:
        """The inputs as JSON objects; what is predicted from the last token of a rendering is an empty text."""
        texts = [whole(text) for text in self.raw_texts]
        targets, is_target = [*self.ids[1:].tolist(), 0], [*(self.colours[1:] == TRAINED).tolist(), False]
        segments = [0] * len(self.ids) if self.segments is None else self.segments.tolist()
        for at in range(self.n_inputs):
            yield {
                "position": at,
                "id": int(self.ids[at]),
                "text": texts[at],
                "kind": COLOURS[self.colours[at]],
                "target": targets[at],
                "target_text": texts[at + 1] if at + 1 < len(texts) else "",
                "target_trained": is_target[at],
                "segment": segments[at],
                # Segment 0 belongs to no message.
                "role": self.names[segments[at] - 1] if self.is_rendering and segments[at] else None,
                "sampled": None if self.sampled is None else bool(self.sampled[at]),
                "body": None if self.body is None else bool(self.body[at]),
            }

    def to_json(self) -> str:
        """The title and the tokens as JSON, a line per token."""
        lines = ",".join(f"\n    {json.dumps(token, ensure_ascii=False)}" for token in self.tokens())
        return f'{{\n  "title": {json.dumps(self.title, ensure_ascii=False)},\n  "tokens": [{lines}\n  ]\n}}'
