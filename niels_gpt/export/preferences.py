"""`trl-dpo`, `trl-kto`, `trl-reward`: preferences as the ids that TRL's trainers make of texts, in parquet.

::

    trl-dpo      prompt_ids, chosen_ids, rejected_ids                   a row for each pair
    trl-kto      prompt_ids, completion_ids, label                      a row for each completion
    trl-reward   chosen_ids, rejected_ids (each with its prompt)        a row for each pair; margin where there are some

A completion ends with its last trained token, the stop, because TRL trains every id of it. What the chat format writes
after a stop (a newline in ChatML) is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from niels_gpt.datasets import open_dataset
from niels_gpt.errors import UsageError
from niels_gpt.export.formats import Settings
from niels_gpt.export.source import Source
from niels_gpt.export.writers import HubFiles
from niels_gpt.preferences.dataset import Fitting, PreferenceSplit, StoredGroup
from niels_gpt.progress import Progress
from niels_gpt.seeds import order
from niels_gpt.store.rows import Split

# Groups that are read and written at once; a file's row group holds their rows.
GROUPS_AT_ONCE: Final = 2048
# Longer than any completion.
NO_LIMIT: Final = (1 << 31) - 2
PAIRS: Final = ("best_worst", "all")

Ids = npt.NDArray[np.int64]


class Side(NamedTuple):
    """A completion to export.

    Attributes:
        prompt, ids: of the prompt, and of the completion up to its stop.
        record: its record of `completions.bin`.
    """

    prompt: Ids
    ids: Ids
    record: Any


Row = dict[str, Any]


@dataclass(frozen=True)
class PreferenceFormat:
    """One format.

    Attributes:
        title: the program that reads it, in one line.
        lists: the columns of ids. scalars: other columns, and their dtypes.
        rows: the rows of a group, by column, from its completions (the best first) and the options.
        use: how to use the files, as lines for the README.
        options: names and defaults of options of this format only.
    """

    name: str
    title: str
    lists: tuple[str, ...]
    scalars: dict[str, str]
    rows: Callable[[Sequence[Side], dict[str, Any]], Iterator[Row]]
    use: list[str]
    options: dict[str, Any] = field(default_factory=dict)
    mask: str = "completions"
    packs: bool = False
    library: str = "pyarrow"


class PreferenceSource:
    """One split of a dataset of preferences, opened and checked.

    Raises:
        UsageError: no preferences, or the format cannot hold them.
        CacheError: the dataset is damaged, or a group too long.
    """

    def __init__(self, path: Path, split: str, chosen: PreferenceFormat, settings: Settings) -> None:
        dataset = open_dataset(path)
        if dataset.manifest.get("kind") != "preferences":
            raise UsageError(
                f"{path}: not a dataset of preferences; build one with: niels-gpt build PAIRS --kind preferences; for "
                "conversations: --to trl"
            )
        self.source = Source(dataset, dataset.split(split))
        self._chosen, self._how, self._options = chosen, settings.how, settings.options
        how = settings.how
        fitting = Fitting(how.max_length or NO_LIMIT, how.too_long)
        self._split = PreferenceSplit([path], split, fitting)
        self._scalars = dict(chosen.scalars)
        # TRL would read a column of margins that were never computed, and its loss would change.
        if "margin" in self._scalars:
            known = ~np.isnan(self._split.records(self._split.begins[:-1])["margin"])
            if not known.any():
                del self._scalars["margin"]
            elif not known.all():
                raise UsageError(
                    f"{path}: {int(known.sum()):,} of {len(known):,} groups have a margin; a column has one for every "
                    "row. Give each a margin, or none of them"
                )

    def open_files(self, folder: Path, settings: Settings) -> HubFiles:
        """The files that `write` fills, below the export's directory."""
        columns = dict.fromkeys(self._chosen.lists, "int32")
        self._files = HubFiles(folder, self.source.split.name, settings.shard_tokens, columns, self._scalars)
        return self._files

    def _append(self, rows: list[Row]) -> None:
        lists = {
            name: (np.concatenate([row[name] for row in rows]), np.array([len(row[name]) for row in rows]))
            for name in self._chosen.lists
        }
        scalars = {name: np.array([row[name] for row in rows], dtype) for name, dtype in self._scalars.items()}
        sizes = np.sum([lengths for _, lengths in lists.values()], axis=0)
        self._files.append({**lists, **scalars}, sizes)

    def write(self, progress: Progress) -> dict[str, int]:
        """Write the rows of all groups, up to the limit.

        Returns:
            Counts: `rows`, `texts`, `tokens`, `trained_tokens`, `groups_without_rows`.

        Raises:
            UsageError: the format cannot hold a group.
        """
        chosen, limit = self._chosen, self._how.limit
        n = len(self._split)
        stored = self.source.split
        # Groups are shuffled, and not rows: a permutation that is computed position by position takes no memory.
        shuffled = None if self._how.shuffle is None else order(self._how.shuffle, 0, n)
        progress.begin(f"{self.source.split.name} to {chosen.name}", total=n, unit="groups")
        counts = dict.fromkeys(("rows", "texts", "tokens", "trained_tokens", "groups_without_rows"), 0)
        for first in range(0, n, GROUPS_AT_ONCE):
            stop = min(n, first + GROUPS_AT_ONCE)
            positions = np.arange(first, stop) if shuffled is None else np.asarray(shuffled[first:stop])
            rows: list[Row] = []
            for group in self._split.read(stored, self._split.filtered[positions]):
                of_group = list(chosen.rows(_sides(self._split, stored, group, self._options), self._options))
                counts["groups_without_rows"] += not of_group
                rows += of_group
            rows = rows[: None if limit is None else limit - counts["rows"]]
            if rows:
                self._append(rows)
            for row in rows:
                lengths = [len(row[name]) for name in chosen.lists]
                counts["tokens"] += sum(lengths)
                # `context`: how many of them are of prompts.
                counts["trained_tokens"] += sum(lengths) - row["context"]
            counts["rows"] += len(rows)
            counts["texts"] += len(rows) * (1 if chosen.name == "trl-kto" else 2)
            progress.advance(stop - first)
            if limit is not None and counts["rows"] >= limit:
                break
        if not counts["rows"]:
            raise UsageError(
                f"{self.source.dataset.path}: no row of {self.source.split.name} is left: no group has a better and a "
                "worse completion"
            )
        return counts


def check_options(options: dict[str, Any]) -> None:
    """Raise `UsageError` unless the options of a format have values that exist."""
    if options.get("pairs", PAIRS[0]) not in PAIRS:
        raise UsageError(f"pairs is {options['pairs']!r}; expected one of {', '.join(PAIRS)}")


def _sides(opened: PreferenceSplit, stored: Split, group: StoredGroup, options: dict[str, Any]) -> list[Side]:
    """The completions of a group, cut as the policy says, up to their stops."""
    lengths = np.array([len(ids) for ids in group.ids])
    prompts = group.records["prompt_length"].astype(np.int64)
    # One cut for all completions of the group: they must be compared after the same prompt.
    cut = int(opened.fitting.prompt_cut(lengths.max(), prompts[0]))
    # A prompt that loses 3 tokens, in rows of 5: the tokens 3 to 7.
    window = slice(cut, cut + opened.fitting.width)
    prompt = int(prompts[0]) - cut
    sides: list[Side] = []
    for stored_ids, weights, record in zip(group.ids, group.weights, group.records, strict=True):
        ids, trained = stored_ids[window].astype(np.int64), weights[window] > 0
        # What follows the last trained token, such as a newline, is no part of the completion: TRL would train it.
        end = int(np.flatnonzero(trained)[-1]) + 1 if trained.any() else prompt
        untrained = int((~trained[prompt:end]).sum())
        if end == prompt or (untrained and not options["whole_completions"]):
            reason = f"has {untrained:,} untrained tokens inside" if untrained else "has no trained token left"
            raise UsageError(
                f"{stored.describe(group.first + len(sides))}: the completion {reason}, and TRL trains every token of "
                "a completion; pass whole_completions=True (--option whole_completions=true) to train them, or train "
                "on the batches of PreferenceLoader, which have a mask"
            )
        sides.append(Side(ids[:prompt], ids[prompt:end], record))
    return sides


def _pairs(sides: Sequence[Side], how: str) -> Iterator[tuple[Side, Side]]:
    """Pairs of a better and a worse completion; completions of equal rank form none.

    Raises:
        UsageError: the dataset holds single completions.
    """
    if len(sides) < 2:
        raise UsageError("the dataset holds single completions, which form no pairs; export them with --to trl-kto")
    pairs = combinations(sides, 2) if how == "all" else [(sides[0], sides[-1])]
    return ((better, worse) for better, worse in pairs if better.record["rank"] < worse.record["rank"])


def _dpo(sides: Sequence[Side], options: dict[str, Any]) -> Iterator[Row]:
    """The rows of `trl-dpo`; the prompt of both completions is one column."""
    for chosen, rejected in _pairs(sides, options["pairs"]):
        n = len(chosen.prompt)
        yield {"prompt_ids": chosen.prompt, "chosen_ids": chosen.ids, "rejected_ids": rejected.ids, "context": n}


def _reward(sides: Sequence[Side], options: dict[str, Any]) -> Iterator[Row]:
    """The rows of `trl-reward`; RewardTrainer reads each completion with its prompt in front."""
    for chosen, rejected in _pairs(sides, options["pairs"]):
        yield {
            "chosen_ids": np.concatenate([chosen.prompt, chosen.ids]),
            "rejected_ids": np.concatenate([rejected.prompt, rejected.ids]),
            "margin": float(sides[0].record["margin"]),  # that of a group is in the record of its first completion
            "context": 2 * len(chosen.prompt),
        }


def _kto(sides: Sequence[Side], options: dict[str, Any]) -> Iterator[Row]:
    """The rows of `trl-kto`."""
    del options
    # -1 is no label.
    labelled = [(side, int(side.record["label"])) for side in sides]
    if len(sides) > 1:  # the best is desirable, the worst is not, and those between them are neither
        labelled = [] if sides[0].record["rank"] == sides[-1].record["rank"] else [(sides[0], 1), (sides[-1], 0)]
    for side, label in labelled:
        if label < 0:
            raise UsageError("the completions have scores and no labels; trl-kto needs a label for each")
        row = {"prompt_ids": side.prompt, "completion_ids": side.ids, "label": bool(label)}
        yield row | {"context": len(side.prompt)}


_COMMON_OPTIONS: Final = {"whole_completions": False}

PREFERENCE_FORMATS: Final[dict[str, PreferenceFormat]] = {
    "trl-dpo": PreferenceFormat(
        name="trl-dpo",
        title="parquet for TRL's DPOTrainer: prompt_ids, chosen_ids, rejected_ids",
        lists=("prompt_ids", "chosen_ids", "rejected_ids"),
        scalars={},
        rows=_dpo,
        use=[
            "from niels_gpt.trainers.trl_preferences import StoredDPOTrainer: TRL's DPOTrainer, which takes these ids "
            "as they are; DPOTrainer itself would look for texts.",
            "DPOConfig(max_length=None): rows were cut by the export. Its collator pads, and makes completion_mask.",
        ],
        options={"pairs": "best_worst", **_COMMON_OPTIONS},
    ),
    "trl-kto": PreferenceFormat(
        name="trl-kto",
        title="parquet for TRL's KTOTrainer: prompt_ids, completion_ids, label",
        lists=("prompt_ids", "completion_ids"),
        scalars={"label": "bool"},
        rows=_kto,
        use=[
            "from niels_gpt.trainers.trl_preferences import StoredKTOTrainer: TRL's KTOTrainer, which takes these ids "
            "as they are; KTOTrainer itself would look for texts.",
            'KTOConfig(max_length=None, train_sampling_strategy="sequential"): KTO pairs each prompt with the '
            "completion of the row before it, so shuffle here (--seed) and not there.",
        ],
        options=dict(_COMMON_OPTIONS),
    ),
    "trl-reward": PreferenceFormat(
        name="trl-reward",
        title="parquet for TRL's RewardTrainer: chosen_ids, rejected_ids, margin",
        lists=("chosen_ids", "rejected_ids"),
        scalars={"margin": "float64"},
        rows=_reward,
        use=[
            "RewardTrainer(train_dataset=datasets.load_dataset(DIRECTORY, split='train'), ...) takes the rows as "
            "they are."
        ],
        options={"pairs": "best_worst", **_COMMON_OPTIONS},
    ),
}
