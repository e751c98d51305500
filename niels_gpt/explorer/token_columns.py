"""Tokens in columns, as the page draws them: 100 000 tokens are 2 MB of JSON; an object per token would take 40 MB.

What neighbouring tokens share is written once, as runs `[stop, group, facts]`. With tokens a a a b b of two messages::

    runs     [3, 0, BODY] [5, 1, BODY | SAMPLED]
    trained  [3, 5]                               starts and stops in turn: tokens 3 and 4

What is trained is shown under each of `MODES`: the usual choice of trained tokens, and others to compare it with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from niels_gpt.display.example import Example, Ints
from niels_gpt.display.rows import PADDING as PADDED
from niels_gpt.display.rows import TRAINED, whole
from niels_gpt.messages import Message, weight_of
from niels_gpt.renderers.kinds import CONTENT, MODEL_KINDS, Kind
from niels_gpt.renderers.kinds import SAMPLED as OF_MODEL
from niels_gpt.renderers.loss import LossOn, Preset

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class LossMode:
    """A choice of tokens.

    Attributes:
        name: its name in requests.
        title, meaning: its label on the page and a sentence about it.
        on: the tokens that it trains.
    """

    name: str
    title: str
    meaning: str
    on: LossOn = field(default_factory=LossOn)


NO_STOPS = MODEL_KINDS - {Kind.STOP, Kind.OPENER}
MODES = (
    LossMode("none", "No mask", "Every token counts, as in pretraining.", LossOn("all_tokens")),
    LossMode(
        "content",
        "Assistant content",
        "Without the end of turn: the model never learns to stop.",
        LossOn(kinds=NO_STOPS),
    ),
    LossMode("end_of_turn", "+ end of turn", "All that the model itself would emit: the usual choice."),
    LossMode("last_turn", "Last turn", "Only after the last user message.", LossOn("last_assistant_turn")),
    LossMode(
        "tool_bodies",
        "+ tool bodies",
        "The usual choice, and the results of tools, without their wrapping.",
        LossOn(bodies_of_roles=frozenset({"tool"})),
    ),
)
DEFAULT_MODE = "end_of_turn"


@dataclass(frozen=True)
class CustomMode:
    """A loss mode that is put together on the page."""

    preset: Preset = "all_assistant_turns"
    bodies_of_roles: frozenset[str] = frozenset()
    end_of_turn: bool = True

    def mode(self) -> LossMode:
        """The mode, to be shown with the others."""
        kinds = MODEL_KINDS if self.end_of_turn else NO_STOPS
        on = LossOn(self.preset, self.bodies_of_roles, kinds=kinds)
        return LossMode("custom", "Custom", "Your own choice.", on)


SAMPLED, BODY, CONTROL, PADDING, HALF = 1, 2, 4, 8, 16  # bits of `facts`; static/token_table.js has the same
_SENTINEL_ROLES = {"sys": "system", "usr": "user", "asst": "assistant"}


@dataclass(frozen=True)
class Group:
    """The message that a token belongs to, or the episode in a packed row."""

    label: str
    role: str
    weight: float = 1.0


@dataclass(frozen=True)
class ModeMask:
    """Which tokens a loss mode trains: `trained` holds starts and stops in turn, `count` their number in units."""

    name: str
    title: str
    meaning: str
    trained: list[int]
    count: int


@dataclass(frozen=True)
class TokenTable:
    """A sequence of tokens, or of pieces of text where there is no tokenizer.

    Attributes:
        title: a line about what is shown.
        unit: "token"; or "character" where entries are pieces of text, and counts are in characters.
        texts: of each entry; a token that is not whole characters is written `\\xe4\\xbd` and flagged `HALF`.
        ids: of each token; `None` for pieces.
        runs: `[stop, group, facts]`; groups are counted from 0, and -1 is no group.
        groups: messages or episodes.
        modes: the tokens that each loss mode trains.
        counts: `total`, `body`, `scaffold`, `padding` in units.
        facts_known: the attribution of a renderer is known; `False` for stored ids, of which only the mask is.
        note: a remark for the reader; empty if there is none.
        renderer, tokenizer: their names.
    """

    title: str
    unit: Literal["token", "character"]
    texts: list[str]
    ids: list[int] | None
    runs: list[list[int]]
    groups: list[Group]
    modes: list[ModeMask]
    counts: dict[str, int]
    facts_known: bool = True
    note: str = ""
    renderer: str = ""
    tokenizer: str = ""


def spelled(raw: Sequence[str]) -> tuple[list[str], Bools]:
    """Texts of `TokenSpelling.raw` as they are shown, and which are not whole characters: `\\xe4` for such a byte."""
    texts = list(map(whole, raw))
    return texts, np.array([text != one for text, one in zip(texts, raw, strict=True)], np.bool_)


def runs_of(groups: Ints, facts: Ints) -> list[list[int]]:
    """Runs of neighbours with equal group and facts: groups 0 0 1 and facts 2 2 3 give [2,0,2] [3,1,3]."""
    if not len(groups):
        return []
    # `new` holds the last place of each run but the final one: groups 0 0 1 1 1 2 give 1 4.
    new = np.flatnonzero((groups[1:] != groups[:-1]) | (facts[1:] != facts[:-1]))
    last = np.append(new, len(groups) - 1)
    found: list[list[int]] = np.stack([last + 1, groups[last], facts[last]], axis=1).tolist()
    return found


def edges(flags: Bools) -> list[int]:
    """Where runs of True start and stop, in turn: . # # . # gives 1 3 4 5."""
    # With False on both sides every run has a start and a stop, also at the ends of the row.
    inside = np.concatenate(([False], flags, [False]))
    found: list[int] = np.flatnonzero(inside[1:] != inside[:-1]).tolist()
    return found


@dataclass(frozen=True, eq=False)
class Entries:
    """A rendered conversation; all sequences have an entry for each token, or for each piece of text without ids.

    Attributes:
        owners: the index of its message, -1 for none; int64.
        kinds: its `Kind`; int64.
        control: it is a control token.
        half: its bytes are not whole characters.
    """

    texts: list[str]
    ids: list[int] | None
    owners: Ints
    kinds: Ints
    control: Bools
    half: Bools


def table_of_entries(
    entries: Entries, messages: Sequence[Message], modes: Sequence[LossMode], **labels: str
) -> TokenTable:
    """A rendered conversation under every loss mode.

    Args:
        labels: title, renderer, tokenizer and note of the `TokenTable`.

    Raises:
        MessageError: a message has an invalid weight.
    """
    texts, owners, kinds = entries.texts, entries.owners, entries.kinds
    body = (kinds & CONTENT) != 0
    sampled = (kinds & OF_MODEL) != 0
    facts = sampled * SAMPLED | body * BODY | entries.control * CONTROL | entries.half * HALF
    # Pieces of text are counted in characters.
    sizes = np.array([len(text) if entries.ids is None else 1 for text in texts], np.int64)
    masks = [(mode, mode.on.weights(owners, kinds, messages) > 0) for mode in modes]
    total, of_body = int(sizes.sum()), int(sizes[body].sum())
    return TokenTable(
        unit="character" if entries.ids is None else "token",
        texts=texts,
        ids=entries.ids,
        runs=runs_of(owners, facts),
        groups=[Group(str(index), m["role"], weight_of(m)) for index, m in enumerate(messages)],
        modes=[ModeMask(m.name, m.title, m.meaning, edges(mask), int(sizes[mask].sum())) for m, mask in masks],
        counts={"total": total, "body": of_body, "scaffold": total - of_body, "padding": 0},
        **labels,  # type: ignore[arg-type]
    )


def table_of_row(example: Example, sentinels: dict[str, int], *, by_turn: bool = True) -> TokenTable:
    """A row of a dataset of ours, the last target included.

    Args:
        sentinels: ids of `sys`, `usr`, `asst`, `eot`, which separate the turns; empty where a renderer wrote the ids.
        by_turn: group the tokens of a row with one text by turns, not by its name.
    """
    ids = example.ids
    padding, trained = example.colours == PADDED, example.colours == TRAINED
    control = np.isin(ids, list(sentinels.values())) & ~padding
    texts, half = spelled(example.raw_texts)
    # Stored ids do not show which tokens a template wrote, except for the sentinels; the rest is shown as content.
    facts = padding * PADDING | control * CONTROL | (~padding & ~control) * BODY | half * HALF
    if by_turn and example.segments is None:
        groups, named = _turns(ids, padding, sentinels)
    else:
        segments = np.ones(len(ids), np.int64) if example.segments is None else example.segments
        groups, named = np.where(padding, -1, segments - 1), [Group(name, "episode") for name in example.names]
    without = "No tokenizer with this data's checksum was found: ids are shown instead of text."
    count = int(trained.sum())
    return TokenTable(
        title=example.title,
        unit="token",
        texts=texts if example.spelling else list(map(str, ids.tolist())),
        ids=ids.tolist(),
        runs=runs_of(groups, facts),
        groups=named,
        modes=[ModeMask("stored", "As stored", "The tokens that the files mark as trained.", edges(trained), count)],
        counts={
            "total": int((~padding).sum()),
            "body": int((facts & BODY > 0).sum()),
            "scaffold": int(control.sum()),
            "padding": int(padding.sum()),
        },
        facts_known=False,
        note="" if example.spelling else without,
    )


def _turns(ids: Ints, padding: Bools, sentinels: dict[str, int]) -> tuple[Ints, list[Group]]:
    """The turns that sentinels open.

    ::

        ids     U a A E A b E      U opens a user turn, A an assistant turn      groups  0 0 1 1 2 2 2
    """
    roles = {sentinels[name]: role for name, role in _SENTINEL_ROLES.items() if name in sentinels}
    opens = np.isin(ids, list(roles)) & ~padding
    # Tokens before the first opener (a document's rest, a bos) get -1: opens . # . # . . gives -1 0 0 1 1 1.
    groups = np.where(padding, -1, np.cumsum(opens) - 1)
    return groups, [Group(str(number), roles[int(token)]) for number, token in enumerate(ids[opens])]
