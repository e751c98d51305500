"""`Tokenize`: batches of conversations to ids and labels, as a function for `datasets.map`, Ray Data and torch.

::

    function = ng.tokenize("Qwen/Qwen3-8B", pack=4096)
    rows = dataset.map(function, batched=True, remove_columns=dataset.column_names, num_proc=8)

    columns      input_ids  a b c d e        labels  I b c I e        seq_lengths  3 2

`labels` are the ids where they are trained and -100 (I) elsewhere, aligned with `input_ids`: models of transformers
shift them themselves. A label is -100 where a text begins, so that no text is predicted from the one before it. These
are the columns of the `hf` and `trl` exports.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from niels_gpt.builds.conversation_encoders import as_encoder
from niels_gpt.builds.encoder_protocol import ConversationEncoder
from niels_gpt.builds.renderer_encoder import RenderingPolicy
from niels_gpt.errors import DataError, UsageError, did_you_mean
from niels_gpt.export.rows import cut, joined
from niels_gpt.format.fitting import check_policy
from niels_gpt.format.packing import pack
from niels_gpt.messages import Conversation
from niels_gpt.messages.keys import CHANGES
from niels_gpt.ranges import LENGTH
from niels_gpt.renderers.loss import LossOn
from niels_gpt.renderers.notes import OnUnwritten
from niels_gpt.sources.chat_files import from_rows
from niels_gpt.sources.files.inputs import Rejected
from niels_gpt.sources.rejections import Rejections
from niels_gpt.sources.rows.chats import ARROW_NULLS
from niels_gpt.sources.rows.shapes import DIALECTS
from niels_gpt.store.rows import Rows, rows_of
from niels_gpt.version import __version__

OnBadRows = Literal["error", "drop"]
TOO_LONG: Final = "too_long"
NOTHING_LEFT: Final = "nothing_trained_after_truncation"

_log = logging.getLogger("niels_gpt.tokenize")


@dataclass(frozen=True)
class Tokenize:
    """A function from a batch of conversations to columns of ids and labels. Instances pickle and compare by value.

    The pickle holds the renderer with its tokenizer, so workers on other machines need no files. It is the same in
    every process, and it changes with the tokenizer, the options and the version of this package: `datasets` takes its
    fingerprint from it, so a dataset that was mapped before comes from its cache.

    Args:
        renderer: what encodes; see `conversation_encoders.as_encoder`.
        loss_on: which tokens are trained.
        pack: put whole conversations of a batch into rows of at most so many tokens, best-fit decreasing. Rows are not
            padded. `seq_lengths` are the lengths of a row's conversations.
        max_length: the most tokens of a row without packing.
        too_long: what becomes of conversations with more tokens than a row: "head", "tail", "drop_partial_turn" (see
            `format.fitting.check_policy`), "skip", or "error".
        format: the shape of the rows, one of `sources.rows.shapes`; default as the first row looks.
        on_bad_rows: "error", or "drop": leave rows out that cannot be rendered; each batch logs how many and why.
        allow_partial: use renderings whose attribution is only partial, see docs/attribution.md.
        on_unwritten: what becomes of rows with a text that the format has no place for, see `RenderingPolicy`; each
            batch logs how many lost one.
        assistant_masks: also a column of 1 on trained tokens and 0 elsewhere.

    Raises:
        UsageError: an option that does not exist, a length below 2, or `pack` beside `max_length`.
    """

    renderer: Any
    loss_on: LossOn = field(default_factory=LossOn)
    pack: int | None = None
    max_length: int | None = None
    too_long: str = "error"
    format: str | None = None
    on_bad_rows: OnBadRows = "error"
    allow_partial: bool = False
    on_unwritten: OnUnwritten | None = None
    assistant_masks: bool = False
    _encoder: ConversationEncoder = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.pack is not None and self.max_length is not None:
            raise UsageError(
                f"pack is {self.pack} and max_length is {self.max_length}; expected one of them: rows of packed "
                "conversations have at most `pack` tokens"
            )
        if self.row_length is not None:
            LENGTH.whole(self.row_length, "pack" if self.pack is not None else "max_length")
        check_policy(self.too_long)
        if self.on_bad_rows not in get_args(OnBadRows):
            raise UsageError(f"on_bad_rows is {self.on_bad_rows!r}; expected 'error' or 'drop'")
        if self.format is not None and self.format not in DIALECTS:
            near = did_you_mean(self.format, DIALECTS)
            raise UsageError(f"format is {self.format!r}; expected one of {', '.join(DIALECTS)}{near}")
        # The class is frozen, so that instances can be hashed; these two are set once, here.
        object.__setattr__(self, "loss_on", LossOn.of(self.loss_on))
        policy = RenderingPolicy(self.allow_partial, self.on_unwritten)
        object.__setattr__(self, "_encoder", as_encoder(self.renderer, on=self.loss_on, policy=policy))

    @property
    def row_length(self) -> int | None:
        """The most tokens of a row; `None`: as many as a conversation has."""
        return self.max_length if self.pack is None else self.pack

    def __call__(self, batch: Any, indices: Sequence[int] | None = None) -> dict[str, list[npt.NDArray[Any]]]:
        """The columns of a batch: `input_ids`, `labels` (int32), with `pack` also `seq_lengths` (int32).

        Args:
            batch: columns by name, a `pyarrow.Table`, or a list of rows; with `messages` and perhaps `tools`, or the
                columns of another format.
            indices: the rows' numbers, for messages; `datasets.map(with_indices=True)` passes them.

        Raises:
            DataError: a row cannot be rendered, or is longer than a row may be (number named).
            UsageError: a message has a weight other than 0 and 1, which labels cannot express; a row has a label of
                KTO, and no format is named.
        """
        # Of this batch alone: batches run in many processes.
        bad = _BadRows(self.on_bad_rows)
        batch_rows = _rows(batch)
        encoded = list(self._encoder.encode(self._conversations(batch_rows, indices), bad))
        weights = np.concatenate([np.empty(0, np.float32), *(part.weights for part in encoded)])
        fractional = weights[(weights != 0) & (weights != 1)]
        if fractional.size:
            raise UsageError(
                f"a message has the weight {float(fractional[0]):g}; labels can express only 0 and 1. Give messages "
                "weights of 0 and 1, or build episodes, which store weights"
            )
        ids = np.concatenate([np.empty(0, np.int64), *(part.ids for part in encoded)]).astype(np.uint32)
        lengths = np.concatenate([np.empty(0, np.int64), *(part.lengths for part in encoded)])
        names = [chat.where for part in encoded for chat in part.conversations]
        rows = self._fitted(rows_of(ids, lengths, weights.astype(np.uint8)), names, bad)
        bad.log(len(batch_rows))
        return self._columns(rows)

    def _conversations(
        self, rows: Sequence[Mapping[str, Any]], indices: Sequence[int] | None
    ) -> Iterator[Conversation | Rejected]:
        """The rows as conversations, or why they are none; as from Arrow, on which `datasets` and Ray are built."""
        of_batch = " of the batch" if indices is None else ""
        numbers = range(len(rows)) if indices is None else indices
        return from_rows(((f"row {n}{of_batch}", row) for n, row in zip(numbers, rows, strict=True)), self.format)

    def _fitted(self, rows: Rows, names: list[str], bad: _BadRows) -> Rows:
        """The rows with at most `row_length` tokens; those that have nothing to train afterwards are left out."""
        width = self.row_length
        if width is None or not len(rows) or rows.lengths.max() <= width:
            return rows
        long = rows.lengths > width
        if self.too_long == "error":
            first = int(np.argmax(long))
            raise DataError(
                f"{names[first]}: {int(rows.lengths[first]):,} tokens, but a row has at most {width:,}. Rows are "
                'counted from 0. Choose what becomes of longer ones: too_long="drop_partial_turn", "skip", ...'
            )
        if self.too_long == "skip":
            # Logged with the rows that were bad; they are left out on purpose, so they are no error.
            bad.left_out[TOO_LONG] += int(long.sum())
            return rows.take(np.flatnonzero(~long))
        rows = cut(rows, width, self.too_long)
        # Trained flags 0 0 | 0 1 of rows that start at 0 2: the first row has nothing to train.
        trains = np.add.reduceat(rows.trained, rows.starts[:-1], dtype=np.int64) > 0
        bad.left_out[NOTHING_LEFT] += int((~trains).sum())
        return rows.take(np.flatnonzero(trains))

    def _columns(self, rows: Rows) -> dict[str, list[npt.NDArray[Any]]]:
        """The rows, packed if they are to be, as columns of lists."""
        columns: dict[str, list[npt.NDArray[Any]]] = {}
        if self.pack is not None:
            # Rows hold conversations of one batch: a larger batch_size fills them better.
            plan = pack(rows.lengths, self.pack)
            # Texts 0 2 in one row and 1 in the next: `items` is 0 2 1, `offsets` 0 2 3, so the texts of a row become
            # neighbours.
            texts, counts = rows.take(plan.items), np.diff(plan.offsets)
            columns["seq_lengths"] = _split(texts.lengths.astype(np.int32), counts)
            rows = joined(texts, counts)
        values = {"input_ids": rows.signed_ids(), "labels": rows.labels()}
        if self.assistant_masks:
            values["assistant_masks"] = rows.trained.astype(np.int8)
        return {name: _split(column, rows.lengths) for name, column in values.items()} | columns

    def __reduce__(self) -> tuple[Any, ...]:
        """The arguments in a fixed order and form: equal instances have equal pickles."""
        # Sets have another order in every process, and `datasets` hashes the pickle.
        on = self.loss_on
        loss_on = (on.preset, sorted(on.bodies_of_roles), sorted(on.bodies_of_tools), sorted(on.kinds))
        options = {item.name: getattr(self, item.name) for item in fields(self) if item.init}
        del options["renderer"], options["loss_on"]
        return _unpickled, (__version__, self.renderer, loss_on, options)


def _unpickled(version: str, renderer: Any, loss_on: tuple[Any, ...], options: dict[str, Any]) -> Tokenize:
    """The function of a pickle; `UsageError` if another version of the package wrote it: its ids may be others."""
    if version != __version__:
        raise UsageError(
            f"this function was pickled by niels_gpt {version}, and this process has {__version__}; install the same "
            "version on all machines"
        )
    return Tokenize(renderer, LossOn(*loss_on), **options)


class _BadRows(Rejections):
    """Raises at the first bad row, or counts them; rows that are left out on purpose are counted in any case.

    Attributes:
        left_out: rows that were encoded and left out afterwards, by reason.
    """

    def __init__(self, on_bad_rows: OnBadRows) -> None:
        super().__init__(Path(), 0)  # this class writes no file
        self._drop = on_bad_rows == "drop"
        self.left_out: Counter[str] = Counter()

    def _add(self, row: Rejected) -> None:
        self.dropped[row.reason] += 1
        if not (row.expected or self._drop):
            raise DataError(
                f'{row.detail.rstrip(".")}. Rows are counted from 0. To leave such rows out: on_bad_rows="drop"'
            )

    def log(self, rows: int) -> None:
        """One line each for a batch of which rows were left out, or of which rows lost something."""
        reasons = {reason: count for reason, count in (self.dropped + self.left_out).items() if count}
        if reasons:
            _log.warning("left out %d of %d rows: %s", sum(reasons.values()), rows, reasons)
        # Nulls that Arrow added were never in the row, so dropping them loses nothing, as reading loses nothing.
        lost = {
            reason: count for reason, count in self.changed.items() if count and reason not in {ARROW_NULLS, *CHANGES}
        }
        if lost:
            _log.warning("used, of %d rows, but: %s", rows, lost)


def _rows(batch: Any) -> Sequence[Mapping[str, Any]]:
    """The rows of a batch in any of the forms that engines pass."""
    if hasattr(batch, "to_pylist"):  # pyarrow
        rows: Sequence[Mapping[str, Any]] = batch.to_pylist()
        return rows
    # `datasets` and Ray pass columns by name.
    if isinstance(batch, Mapping):
        columns = {name: _plain(batch[name]) for name in batch}
        # The fields of a single row are not columns of equal length: columns of a batch are lists; the messages of a
        # row are mappings, those of a batch are lists of them.
        lists = [values for values in columns.values() if isinstance(values, list)]
        messages = columns.get("messages")
        is_row = isinstance(messages, list) and bool(messages) and isinstance(messages[0], Mapping)
        if is_row or len(lists) < len(columns) or len({len(values) for values in lists}) > 1:
            raise UsageError(
                "found a single row; expected a batch: datasets.map(function, batched=True, "
                "remove_columns=dataset.column_names), or function([row])"
            )
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    if isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
        return batch
    raise UsageError(f"found a batch of type {type(batch).__name__}; expected columns by name, or a list of rows")


def _plain(value: Any) -> Any:
    """Lists in place of the arrays that Ray makes of nested columns."""
    if isinstance(value, np.ndarray):
        return [_plain(item) for item in value.tolist()]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _split(values: npt.NDArray[Any], lengths: npt.NDArray[np.integer[Any]]) -> list[npt.NDArray[Any]]:
    """Lengths 2 and 3 divide a b c d e into a b and c d e."""
    ends = np.cumsum(lengths).tolist()
    return [values[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=False)]
