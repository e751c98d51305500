"""The part of a build that can be done anywhere, in any number of pieces: rows -> ids, lengths and weights.

::

    rows --Work--> portions --split, writers--> files            Engine: where and how often the left arrow is run

`Work` is a value that pickles, so an engine may send it to other processes and machines. What follows the portions,
the split and the files, depends on their order and stays in one process.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

import numpy as np
import numpy.typing as npt

from niels_gpt.encoders import Encoded, Encoder, Rows
from niels_gpt.errors import MessageError
from niels_gpt.format.rows import conversation_of
from niels_gpt.inputs import Rejected
from niels_gpt.messages import Conversation, weight_of
from niels_gpt.progress import Progress
from niels_gpt.sources.rejections import Rejections

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Portion:
    """Some rows (conversations, documents), ready to be divided among the splits and written.

    Attributes:
        ids: integers, all rows one after the other, shape (n,).
        lengths: ids of each row, int64.
        weights: float32 or uint8 of shape (n,): 0 where nothing is trained. Of shape (0,) for documents.
        groups: for each row what keeps it on one side of the split with its neighbours.
        facts: what else is known of each, such as its row of `episodes.parquet`; empty where nothing is kept.
    """

    ids: npt.NDArray[np.integer[Any]]
    lengths: npt.NDArray[np.int64]
    weights: npt.NDArray[Any]
    groups: Sequence[str | None]
    facts: Sequence[Facts] = ()


class Work(Protocol):
    """Rows -> portions; what comes out depends on each row alone, never on where the rows are cut."""

    @property
    def whole(self) -> bool:
        """Weights are 0 or 1."""

    @property
    def metadata(self) -> bool:
        """Portions carry facts."""

    def portions(self, rows: Iterable[Any], rejections: Rejections) -> Iterator[Portion]:
        """The usable rows in order; the others go to `rejections`, in order too."""


class Engine(Protocol):
    """Runs a build's work: in this process, in several, or on several machines."""

    def portions(
        self,
        work: Work,
        rows: Iterable[Any],
        rejections: Rejections,
        *,
        out: Path,
        recipe: Mapping[str, Any],
        progress: Progress,
    ) -> Generator[Portion]:
        """The portions of all rows, in order. Rows are rejected as the portions come, in the work's own order.

        Once it is closed, nobody works any more.

        Args:
            out, recipe: what is built, for engines that keep finished pieces beside it.
        """

    def read_share(self) -> float | None:
        """How much of the input has been read, 0 to 1, if known."""

    def discard(self, out: Path) -> None:
        """`out` is complete: delete whatever was kept beside it."""

    def keep(self, out: Path, progress: Progress) -> None:
        """`out` was not finished: say what is kept for the next run, if anything."""


class Serial:
    """The rows as they come, in this process; nothing is kept."""

    def portions(
        self,
        work: Work,
        rows: Iterable[Any],
        rejections: Rejections,
        *,
        out: Path,
        recipe: Mapping[str, Any],
        progress: Progress,
    ) -> Generator[Portion]:
        """See `Engine`."""
        yield from work.portions(rows, rejections)

    def read_share(self) -> float | None:
        """See `Engine`."""
        return None

    def discard(self, out: Path) -> None:
        """See `Engine`."""

    def keep(self, out: Path, progress: Progress) -> None:
        """See `Engine`."""


@contextmanager
def finishing(engine: Engine, out: Path, progress: Progress) -> Iterator[None]:
    """Around a build: what its engine keeps beside `out` goes when that is complete, and stays after an error."""
    try:
        yield
    except BaseException:  # an interrupt too must not lose what is built
        engine.keep(out, progress)
        raise
    engine.discard(out)


SERIAL: Final = Serial()


@dataclass(frozen=True)
class CacheWork:
    """The work of an SFT cache, whose mask holds 0 and 1."""

    encoder: Encoder
    whole: ClassVar[bool] = True
    metadata: ClassVar[bool] = False

    def portions(self, rows: Rows, rejections: Rejections) -> Iterator[Portion]:
        """See `Work`.

        Raises:
            MessageError: a weight that is neither 0 nor 1.
        """
        for batch in self.encoder.encode(rows, rejections):
            _check_whole(batch.weights)
            yield _portion(batch)


@dataclass(frozen=True)
class EpisodeWork:
    """The work of an episodes dataset.

    Args:
        mask_dtype: "uint8", "float32" or `None`; rows whose weights it cannot hold are unusable.
        metadata: keep type, source and weight of each row; `source_name` stands in for a source that is not given.
    """

    encoder: Encoder
    mask_dtype: str | None
    metadata: bool = False
    source_name: str | None = None

    @property
    def whole(self) -> bool:
        """See `Work`."""
        return self.mask_dtype == "uint8"

    def portions(self, rows: Rows, rejections: Rejections) -> Iterator[Portion]:
        """See `Work`."""
        for batch in self.encoder.encode(self._checked(rows), rejections):
            facts = [_facts(chat, self.source_name) for chat in batch.conversations] if self.metadata else ()
            yield _portion(batch, facts)

    def _checked(self, rows: Rows) -> Iterator[Conversation | Rejected]:
        """The rows as conversations; those whose weights or facts the files cannot hold come as `Rejected`."""
        for number, row in enumerate(rows):
            if isinstance(row, Rejected):
                yield row
                continue
            where = row.where if isinstance(row, Conversation) else f"example {number}"
            try:
                chat = conversation_of(number, row)
                _check_weights(chat, whole=self.whole)
                if self.metadata:
                    _check_facts(chat)
            except MessageError as error:
                yield Rejected(where, error.reason, f"{where}: {error}")
            else:
                yield chat


def _portion(batch: Encoded, facts: Sequence[Facts] = ()) -> Portion:
    return Portion(batch.ids, batch.lengths, batch.weights, [chat.group for chat in batch.conversations], facts)


def _check_whole(weights: npt.NDArray[np.float32]) -> None:
    between = (weights != 0) & (weights != 1)
    if between.any():
        raise MessageError(
            "unsupported_field",
            f"a token's weight is {weights[between][0]:g}; this cache holds 0 or 1. Build episodes with "
            "mask_dtype='float32' (niels-gpt episodes build --mask float32), or round the weights",
        )


def _check_weights(chat: Conversation, *, whole: bool) -> None:
    for index, message in enumerate(chat.messages):
        if len(message) == 2:  # a role and a content
            continue
        try:
            weight = weight_of(message)
        except MessageError as error:
            raise MessageError(error.reason, f"message {index}: {error}") from error
        if whole and weight not in (0.0, 1.0):
            raise MessageError(
                "weight_needs_float32",
                f"message {index}: weight {weight}, but the mask holds 0 and 1; build with --mask float32 "
                '(mask_dtype="float32")',
            )


def _check_facts(chat: Conversation) -> None:
    weight = chat.metadata.get("weight")
    if weight is not None and (
        isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight <= sys.float_info.max
    ):
        raise MessageError("wrong_weight", f"weight is {weight!r}; expected a number of 0 or more that a float holds")
    for name in ("type", "source"):
        if not isinstance(chat.metadata.get(name, ""), str | None):
            raise MessageError("wrong_type", f"{name} is {chat.metadata[name]!r}; expected a string")


def _facts(chat: Conversation, source_name: str | None) -> Facts:
    """A row of `episodes.parquet`."""
    weight = chat.metadata.get("weight")
    return {
        "type": chat.metadata.get("type"),
        "source": chat.metadata.get("source") or source_name,
        "weight": 1.0 if weight is None else float(weight),
    }
