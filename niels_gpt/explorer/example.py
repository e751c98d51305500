"""An example as a list of tokens that know what they are."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Kind = Literal["trained", "sampled", "context", "scaffold", "padding"]


@dataclass(frozen=True)
class TokenView:
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
        return asdict(self)


@dataclass(frozen=True)
class ExampleView:
    """An example as a training step sees it, with a line that says where it is from.

    `episodes` are the numbers of those that lie in a packed row, in order; `n_tokens` counts real tokens, the last
    target included.
    """

    title: str
    tokens: list[TokenView]
    has_text: bool
    episodes: tuple[int, ...] = ()
    n_tokens: int = 0
