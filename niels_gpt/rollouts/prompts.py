"""`PromptSet`: prompts as ids, with their answers; `PromptLoader`: in a deterministic order that can be resumed.

Row p of epoch e is a pure function of (seed, e, p), as for episodes: the prompts of a global batch are drawn first,
then cut by rank. A state holds how many prompts all ranks together have taken.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.episodes.batches import hash_of
from niels_gpt.episodes.order.sampling import Sampling
from niels_gpt.episodes.order.schedule import EMPTY, EveryRow, batches_left, take
from niels_gpt.episodes.order.states import Place, place_in, state_of
from niels_gpt.episodes.settings import ranks
from niels_gpt.errors import DataError, MessageError, UsageError, shown
from niels_gpt.messages import Message
from niels_gpt.ranges import BATCH_SIZE, MAX_LENGTH, ROW
from niels_gpt.renderers.protocol import Renderer
from niels_gpt.seeds import DEFAULT_SEED
from niels_gpt.sources.files.inputs import Rejected
from niels_gpt.sources.prompt_files import Prompt, PromptColumns, prompts_of, read_prompts
from niels_gpt.sources.rejections import BadRowLimit, RejectedReason, TooManyBadRows
from niels_gpt.storage.remote import AnyFile


@dataclass(frozen=True, eq=False)
class RenderedPrompt:
    """One prompt of a `PromptSet`.

    Attributes:
        number: in the set; use it as the group of the rollouts that are sampled from it.
        ids: what an inference engine is given, with the generation prompt; uint32, shape (n,).
        messages, answer, tools, metadata, where: see `Prompt`.
    """

    number: int
    ids: npt.NDArray[np.uint32]
    messages: list[Message]
    answer: Any
    tools: list[Any] | None
    metadata: Mapping[str, Any]
    where: str


class PromptSet:
    """Prompts in memory, rendered once: some hundred bytes each, besides the rows themselves.

    Example::

        prompts = PromptSet.open(["math.parquet"], renderer, columns={"answer": "extra.solution"})
        for batch in prompts.loader(batch_size=64, seed=7): ...

    Args:
        rows: what `read_prompts` returns.
        renderer: any renderer; its generation prompt ends the ids.
        max_tokens: prompts with more ids are left out, and counted; `None`: none are.
        max_bad_rows: how many unusable rows to leave out: a number, a share ("5%"), or "all".

    Attributes:
        left_out: how many rows are left out, by reason.
        rejected: the unusable ones.

    Raises:
        TooManyBadRows: more than `max_bad_rows`. DataError: no prompt is left. UsageError: a number out of range,
            or `renderer` is none.
    """

    def __init__(
        self,
        rows: Iterable[Prompt | Rejected],
        renderer: Renderer,
        *,
        max_tokens: int | None = None,
        max_bad_rows: int | str = 0,
    ) -> None:
        if not isinstance(renderer, Renderer):
            raise UsageError(
                f"renderer is {shown(renderer)}; expected a renderer, as ng.renderer(tokenizer) returns one"
            )
        MAX_LENGTH.check(max_tokens, "max_tokens")
        limit = BadRowLimit.of(max_bad_rows)  # before any row is read
        self.left_out: Counter[str] = Counter()
        self.rejected: list[Rejected] = []
        self._prompts: list[Prompt] = []
        ids: list[npt.NDArray[np.uint32]] = []
        for row in rows:
            rendered = row if isinstance(row, Rejected) else _rendered(row, renderer)
            if isinstance(rendered, Rejected):
                self.rejected.append(rendered)
                self.left_out[rendered.reason] += 1
            elif max_tokens is not None and len(rendered) > max_tokens:
                self.left_out["too_long"] += 1
            elif isinstance(row, Prompt):
                self._prompts.append(row)
                ids.append(rendered)
        self._check(limit)
        # All ids in one array: each array takes about 100 bytes besides its ids.
        # Prompts of 3 and 2 ids: `_ends` is 0 3 5.
        self._ends = np.cumsum([0, *map(len, ids)])
        self._ids = np.concatenate([np.empty(0, np.uint32), *ids])

    @classmethod
    def open(
        cls,
        inputs: str | AnyFile | Iterable[Any],
        renderer: Renderer,
        *,
        columns: Mapping[str, str] | None = None,
        answers: bool = True,
        **options: Any,
    ) -> PromptSet:
        """The prompts of files, or of rows in memory.

        Args:
            inputs: files, URLs (`hf://datasets/OWNER/NAME/...`) or patterns; or rows, such as a `datasets.Dataset`.
            columns, answers: see `PromptColumns`.
            options: see `PromptSet`.

        Raises:
            As `PromptSet`, and InputError: a file cannot be read.
        """
        wanted = PromptColumns(columns or {}, answers)
        # The bytes of a text would be taken for a list of files.
        if isinstance(inputs, bytes | bytearray):
            raise UsageError(f"inputs are {shown(inputs)}; expected files, URLs or rows")
        several: list[Any] = list(inputs) if isinstance(inputs, Iterable) and not isinstance(inputs, str) else [inputs]
        in_memory = bool(several) and isinstance(several[0], Mapping)
        rows = prompts_of(several, wanted) if in_memory else read_prompts(several, wanted)
        return cls(rows, renderer, **options)

    def _check(self, limit: BadRowLimit) -> None:
        bad, rows = len(self.rejected), len(self.rejected) + len(self._prompts) + self.left_out["too_long"]
        if not limit.allows(bad, rows):
            reasons: dict[str, RejectedReason] = {}
            for row in self.rejected:
                reasons.setdefault(row.reason, RejectedReason()).add(row)
            raise TooManyBadRows(bad, rows, whole=True, limit=limit, reasons=reasons)
        if not self._prompts:
            raise DataError(f"no usable prompt of {rows:,} rows; left out: {dict(self.left_out) or 'none'}")

    def __len__(self) -> int:
        return len(self._prompts)

    def __repr__(self) -> str:
        """One line of counts."""
        left = "".join(f", {n:,} {reason}" for reason, n in self.left_out.items())
        return f"<PromptSet: {len(self):,} prompts, {len(self._ids):,} tokens{left}>"

    def __getitem__(self, number: int) -> RenderedPrompt:
        """The prompt with this number.

        Raises:
            UsageError: there is none.
        """
        number = ROW.whole(number, "the number of a prompt")
        if number >= len(self):
            raise UsageError(f"prompts 0 to {len(self) - 1:,}; there is no {number:,}")
        row = self._prompts[number]
        ids = self._ids[self._ends[number] : self._ends[number + 1]]
        return RenderedPrompt(number, ids, row.messages, row.answer, row.tools, row.metadata, row.where)

    @property
    def fingerprint(self) -> str:
        """A hash of all ids and answers, in this order: 32 hex digits."""
        digest = hashlib.sha256(self._ids.tobytes() + self._ends.tobytes())
        for row in self._prompts:
            # Answers, too, because rewards are computed from them.
            digest.update(json.dumps(row.answer, sort_keys=True, default=repr).encode() + b"\n")
        return digest.hexdigest()[:32]

    def loader(self, *, batch_size: int, **options: Any) -> PromptLoader:
        """A `PromptLoader` of these prompts; `options` are its other arguments."""
        return PromptLoader(self, batch_size=batch_size, **options)


class PromptLoader:
    """Batches of prompts, endless; each is a list of `RenderedPrompt`.

    Args:
        prompts: the set.
        batch_size: prompts per batch and rank.
        seed, shuffle: of the order. drop_last: leave out an epoch's last batch if it is not full; else it is shorter,
            or empty on some ranks.
        rank, world_size: default those of `torch.distributed`, if it is initialised.

    Raises:
        UsageError: a number out of range, or fewer prompts than a batch over all ranks, with drop_last.
    """

    def __init__(
        self,
        prompts: PromptSet,
        *,
        batch_size: int,
        seed: int = DEFAULT_SEED,
        shuffle: bool = True,
        drop_last: bool = True,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        self.prompts, self.batch_size = prompts, BATCH_SIZE.whole(batch_size)
        order = Sampling(seed=seed, shuffle=shuffle, drop_last=drop_last)
        self.rank, self.world_size = ranks(rank, world_size)
        self._rows, self._drop_last, self._seed = self.batch_size * self.world_size, order.drop_last, order.seed
        if order.drop_last and len(prompts) < self._rows:
            raise UsageError(
                f"{len(prompts):,} prompts, but all ranks together take {self._rows:,} at a time, so drop_last would "
                "drop everything; use a smaller batch_size, or drop_last=False"
            )
        self._schedule = EveryRow(len(prompts), order.seed, order.shuffle)
        self._fingerprint = hash_of({"prompts": prompts.fingerprint, "rows": self._schedule.describe()})
        self._place = Place()

    def __iter__(self) -> Iterator[list[RenderedPrompt]]:
        """Batches without end, from the place of `next_batch` on, which moves with them."""
        while True:
            yield self.next_batch()

    def next_batch(self) -> list[RenderedPrompt]:
        """This rank's prompts of the next batch."""
        drawn, self._place = take(self._schedule, self._place, self._rows, drop_last=self._drop_last)
        # Every rank draws the whole batch and takes its part. Of 6 prompts and two ranks, rank 1 takes the last 3.
        own_rows = drawn[self.rank * self.batch_size : (self.rank + 1) * self.batch_size]
        return [self.prompts[number] for number in own_rows.tolist() if number != EMPTY]

    @property
    def epoch(self) -> int:
        """The epoch of the last prompt that was taken, from 0."""
        return self._place.epoch

    def steps_per_epoch(self) -> int:
        """How many batches an epoch has, on every rank."""
        return batches_left(len(self.prompts), 0, self._rows, drop_last=self._drop_last)

    def state_dict(self) -> dict[str, Any]:
        """The place of the next batch: version, fingerprint, seed, epoch and position (in prompts over all ranks)."""
        return state_of(self._place, fingerprint=self._fingerprint, seed=self._seed)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where a state was taken, perhaps with another number of ranks or batch size.

        Raises:
            Mismatch: the state is of other prompts, another order or seed. UsageError: it is not a state.
        """
        self._place = place_in(
            state,
            fingerprint=self._fingerprint,
            seed=self._seed,
            rows=len(self.prompts),
        )


def _rendered(row: Prompt, renderer: Renderer) -> npt.NDArray[np.uint32] | Rejected:
    if not isinstance(row, Prompt):
        raise UsageError(f"a row is {shown(row)}; expected what read_prompts returns, or use PromptSet.open(rows, ...)")
    try:
        ids = renderer.render_ids(row.messages, tools=row.tools, add_generation_prompt=True)
    except MessageError as error:
        return Rejected(row.where, error.reason, f"{row.where}: {error}")
    return np.asarray(ids, dtype=np.uint32)
