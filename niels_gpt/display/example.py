"""One example as a sequence of tokens with their facts: id, text, kind, target, loss.

`TokenColumns` holds the facts in arrays and makes the `TokenView` of a token when it is accessed.
`explorer/example_view.py` makes them of conversations and stored rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from niels_gpt.display.rows import COLOURS, Colour, raw_spelling, whole

Ints = npt.NDArray[np.integer[Any]]
Bools = npt.NDArray[np.bool_]

_AT_ONCE = 8192  # tokens that are converted to Python objects together


class TokenView(NamedTuple):
    """A token at a position of `x`.

    Attributes:
        text: as `TokenSpelling.raw` has it, so that characters of several tokens can be joined; `whole` before output.
        kind: trained (in the loss when it is the target), sampled (the model would emit it, but it is not in the loss),
            context, scaffold (written by the chat template) or padding.
        target, target_text: the token that is predicted from here; in the loss only if `target_trained`.
        segment: the number of the text in a packed row, or of the message in a rendering, from 1; 0 for neither.
        role, sampled, body: of renderings only; `None` for stored rows.
    """

    position: int
    id: int
    text: str
    kind: Colour
    target: int
    target_text: str
    target_trained: bool
    segment: int = 0
    role: str | None = None
    sampled: bool | None = None
    body: bool | None = None

    def to_json(self) -> dict[str, Any]:
        """The view as a JSON object."""
        return self._asdict() | {"text": whole(self.text), "target_text": whole(self.target_text)}


@dataclass(frozen=True, eq=False)
class TokenColumns(Sequence[TokenView]):
    """Tokens as arrays. A `TokenView` is made when it is accessed, so millions of tokens need little memory.

    Attributes:
        ids, targets: integers of shape (tokens,).
        kinds: the index of each token's kind in `COLOURS`.
        target_trained: bool of shape (tokens,).
        spelling: the text of an id; called once per distinct id.
        no_target: the last token predicts nothing, so its target has no text.
        segments: as in `TokenView`; default all 0.
        roles: the roles of segments 1, 2, ...
        sampled, body: bool of shape (tokens,); `None` where they are not known.
    """

    ids: Ints
    targets: Ints
    kinds: Ints
    target_trained: Bools
    spelling: Callable[[int], str]
    no_target: bool = False
    segments: Ints | None = None
    roles: Sequence[str] = ()
    sampled: Bools | None = None
    body: Bools | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, at: int) -> TokenView: ...
    @overload
    def __getitem__(self, at: slice) -> list[TokenView]: ...
    def __getitem__(self, at: int | slice) -> TokenView | list[TokenView]:
        if isinstance(at, slice):
            return [self[index] for index in range(*at.indices(len(self)))]
        index = range(len(self))[at]
        return next(self._between(index, index + 1))

    def __iter__(self) -> Iterator[TokenView]:
        # Block by block: converting a slice to lists is fast, converting millions at once takes memory.
        for start in range(0, len(self), _AT_ONCE):
            yield from self._between(start, min(start + _AT_ONCE, len(self)))

    def different(self) -> list[TokenView]:
        """A few tokens among which every id, target, kind and segment of the example occurs."""
        columns = [self.ids, self.targets, self.kinds, *([] if self.segments is None else [self.segments])]
        # The place at which each value occurs first, column by column: ids 7 7 9 give places 0 2.
        firsts = [np.unique(column, return_index=True)[1] for column in columns]
        return [self[at] for at in np.unique(np.concatenate(firsts)).tolist()]

    @cached_property
    def _text(self) -> Callable[[int], str]:
        return cache(raw_spelling(self.spelling))

    def _between(self, start: int, stop: int) -> Iterator[TokenView]:
        here, n, text = slice(start, stop), stop - start, self._text
        ids, targets = self.ids[here].tolist(), self.targets[here].tolist()
        segments = [0] * n if self.segments is None else self.segments[here].tolist()
        target_texts = [text(target) for target in targets]
        # The last token has no successor; 0 is in its column, and its text must not be shown.
        if self.no_target and stop == len(self):
            target_texts[-1] = ""
        return map(
            TokenView,
            range(start, stop),
            ids,
            [text(token) for token in ids],
            [COLOURS[kind] for kind in self.kinds[here].tolist()],
            targets,
            target_texts,
            self.target_trained[here].tolist(),
            segments,
            # Segment 0 belongs to no message.
            [self.roles[segment - 1] if self.roles and segment else None for segment in segments],
            [None] * n if self.sampled is None else self.sampled[here].tolist(),
            [None] * n if self.body is None else self.body[here].tolist(),
        )


@dataclass(frozen=True)
class ExampleView:
    """An example as a training step sees it.

    Attributes:
        title: one line: the source, the row, and counts.
        has_text: a tokenizer is available; else only ids can be shown.
        episodes: the numbers of the episodes in a packed row, in order.
        n_tokens: how many tokens there are without padding, the last target included.
    """

    title: str
    tokens: Sequence[TokenView]
    has_text: bool
    episodes: tuple[int, ...] = ()
    n_tokens: int = 0
