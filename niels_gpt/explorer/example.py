"""An example as a sequence of tokens that know what they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from niels_gpt.forks import cached_property

Kind = Literal["trained", "sampled", "context", "scaffold", "padding"]
KINDS: tuple[Kind, ...] = ("trained", "sampled", "context", "scaffold", "padding")
TRAINED, SAMPLED, CONTEXT, SCAFFOLD, PADDING = range(5)  # of `KINDS`

Ints = npt.NDArray[np.integer[Any]]
Bools = npt.NDArray[np.bool_]

_AT_ONCE = 8192


class TokenView(NamedTuple):
    """A token at a position of `x`.

    `kind` says what the token is: trained (in the loss when it was predicted), sampled (the model's, but not trained),
    context, scaffold (the format's own) or padding. `target` is the token predicted from here, in the loss only if
    `target_trained`. `segment` counts the texts of a packed row, or the messages of a rendering, from 1; `role`,
    `sampled` and `body` are known of renderings alone.
    """

    position: int
    id: int
    text: str
    kind: Kind
    target: int
    target_text: str
    target_trained: bool
    segment: int = 0
    role: str | None = None
    sampled: bool | None = None
    body: bool | None = None

    def to_json(self) -> dict[str, Any]:
        """The view as a JSON object."""
        return self._asdict()


@dataclass(frozen=True, eq=False)
class TokenColumns(Sequence[TokenView]):
    """Tokens in columns: each becomes a `TokenView` when it is looked at, so that millions of them take little room.

    Attributes:
        ids, targets: integers of shape (tokens,).
        kinds: of each token its place in `KINDS`.
        target_trained: bool of shape (tokens,).
        spelling: of an id. It is asked once for each id that occurs.
        no_target: the last token has none, so its target has no text.
        segments: as in `TokenView`; default all 0.
        roles: of segment 1, 2 and so on. sampled, body: bool of shape (tokens,); `None` where nobody knows.
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
        for start in range(0, len(self), _AT_ONCE):
            yield from self._between(start, min(start + _AT_ONCE, len(self)))

    def different(self) -> list[TokenView]:
        """Some of the tokens: every id, target, kind and segment that occurs is among them."""
        columns = [self.ids, self.targets, self.kinds, *([] if self.segments is None else [self.segments])]
        firsts = [np.unique(column, return_index=True)[1] for column in columns]
        return [self[at] for at in np.unique(np.concatenate(firsts)).tolist()]

    @cached_property
    def _text(self) -> Callable[[int], str]:
        return cache(self.spelling)

    def _between(self, start: int, stop: int) -> Iterator[TokenView]:
        here, n, text = slice(start, stop), stop - start, self._text
        ids, targets = self.ids[here].tolist(), self.targets[here].tolist()
        segments = [0] * n if self.segments is None else self.segments[here].tolist()
        target_texts = [text(target) for target in targets]
        if self.no_target and stop == len(self):
            target_texts[-1] = ""
        return map(
            TokenView,
            range(start, stop),
            ids,
            [text(token) for token in ids],
            [KINDS[kind] for kind in self.kinds[here].tolist()],
            targets,
            target_texts,
            self.target_trained[here].tolist(),
            segments,
            [self.roles[segment - 1] if self.roles and segment else None for segment in segments],
            [None] * n if self.sampled is None else self.sampled[here].tolist(),
            [None] * n if self.body is None else self.body[here].tolist(),
        )


@dataclass(frozen=True)
class ExampleView:
    """An example as a training step sees it, with a line that says where it is from.

    `episodes` are the numbers of those that lie in a packed row, in order; `n_tokens` counts real tokens, the last
    target included.
    """

    title: str
    tokens: Sequence[TokenView]
    has_text: bool
    episodes: tuple[int, ...] = ()
    n_tokens: int = 0
