"""`Layout`: what the turns of one chat format look like in ids.

A part of the layout of ChatML, where the tokenizer has the ids 10 <|im_start|>, 11 <|im_end|>, 20 user, 21 assistant
and 1 newline; roles are numbered as in `rows.ROLES`, so 1 is the user and 2 the assistant::

    openers    (1, (10, 20)), (2, (10, 21))
    supplied   {1: ((1,),)}                      after opener 1 the generation prompt writes a newline
    stops      (11,)

    ids        10 20 1 5 6 11 1 10 21 1 7 11 1   the user's turn is 0:7, the assistant's 7:13, of which 10:12 is sampled

Layouts are inferred from a renderer (`inference.py`). That of our own sentinels is known without one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from niels_gpt.doctor.rows import ASSISTANT, ROLES
from niels_gpt.inputs.rows import Int64s

Ids = tuple[int, ...]


@dataclass(frozen=True)
class HeaderFacts:
    """What follows the openers of a format in the probes, see `headers.py`.

    Attributes:
        fewest_white: for each opener the fewest bytes of white space after it.
        most_white: the most bytes of white space between an assistant's opener and what follows it, by
            `(index in openers, the control token or think tag that follows, or -1)`.
        pairs: `(control token that begins a header or a part of one, the id after it)`.
        after_opener: `(index in openers, the id after it)` for openers that the model writes itself.
    """

    fewest_white: tuple[int, ...] = ()
    most_white: Mapping[tuple[int, int], int] = field(default_factory=dict)
    pairs: frozenset[tuple[int, int]] = frozenset()
    after_opener: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True)
class PromptPart:
    """A part of what a generation prompt writes after an opener: a token, or white space, whichever tokens spell it."""

    token: int = -1
    white: int = 0  # bytes; 0 for a token


@dataclass(frozen=True)
class Prefill:
    """All that a generation prompt may write after one opener.

    Attributes:
        opener: its index in `Layout.openers`.
        parts: a token or a run of white space each, never two of white space after each other.
    """

    opener: int
    parts: tuple[PromptPart, ...]


@dataclass(frozen=True)
class Layout:
    """What turns look like in ids, and which ids of the vocabulary are special.

    Attributes:
        openers: `(role, ids)` of each beginning of a turn, without the white space and think tags after it.
        supplied: for the openers of assistants, by their index in `openers`, what a generation prompt may write after
            them. DeepSeek-R1's prompt opens a think block after the header, and nothing after results of tools.
        stops: the ids that end an assistant turn.
        has_own_stop: assistant turns end in a token of their own. Without it (GLM) the opener of the next turn ends
            them, and `stops` are these openers.

        preamble: control tokens that occur only at the beginning of a text.
        first_ids: ids that renderings of the probes begin with; empty if one of them could be ordinary text.
        template_ids: all ids in the renderings of the probes.
        headers: what follows the openers in the probes.

        repeats_opener: the model itself writes the assistant's opener between parts of an answer (gpt-oss's channels).
        joins_parts: an assistant's opener continues the turn before it if that has no stop, because only the last part
            of an answer has one (Inkling).
        headerless: an assistant turn that is the first, or follows another one, has no opener (DeepSeek-V3.1).

        vocab_size: all ids are below it.
        controls: control tokens, which no ordinary text is encoded as.
        names: of sentinels, by id, which have no other text.
        bos, pad: the tokenizer's own beginning-of-text and padding tokens.
        serving_stops: all ids that serving stops at.
        think: ids of `<think>` and `</think>`, where each is one token.
        white_bytes: int64 of shape (vocab_size,): the bytes of tokens that are nothing but white space, 0 for others.

        trusted: whether the turns of every probe were found exactly where the renderer wrote them.
        untrusted_because: which turns were not found; empty if trusted.
    """

    vocab_size: int
    controls: frozenset[int]
    serving_stops: frozenset[int]
    white_bytes: Int64s

    openers: tuple[tuple[int, Ids], ...] = ()
    supplied: Mapping[int, tuple[Ids, ...]] = field(default_factory=dict)
    stops: Ids = ()
    has_own_stop: bool = True
    preamble: Ids = ()
    template_ids: frozenset[int] = frozenset()
    bos: int | None = None
    pad: int | None = None
    think: tuple[int, int] | None = None
    first_ids: frozenset[int] = frozenset()
    headers: HeaderFacts = field(default_factory=HeaderFacts)
    repeats_opener: bool = False
    joins_parts: bool = False
    headerless: bool = False
    names: Mapping[int, str] = field(default_factory=dict)
    trusted: bool = True
    untrusted_because: str = ""

    @cached_property
    def closers(self) -> Ids:
        """The ids that close assistant turns: the stops; without a stop of their own, also the tokens that open others.

        A template does not say at which of these serving stops, so they need not be among its stops.
        """
        openers = {ids[0] for role, ids in self.openers if role != ASSISTANT and ids[0] in self.controls}
        return self.stops if self.has_own_stop else tuple(sorted({*self.stops, *openers}))

    @cached_property
    def unwritten_controls(self) -> frozenset[int]:
        """Control tokens that neither the format writes nor serving knows."""
        named = {token for token in (self.bos, self.pad) if token is not None}
        return self.controls - self.template_ids - self.serving_stops - named

    @cached_property
    def roles(self) -> Int64s:
        """The role of each opener, so that `layout.roles[opener]` are those of many."""
        return np.array([role for role, _ in self.openers], dtype=np.int64)

    def white_at(self, ids: Int64s, at: Int64s) -> Int64s:
        """The bytes of the tokens at some positions that are nothing but white space, 0 for other tokens.

        Also 0 for ids outside of the vocabulary, and after the last id.
        """
        found = ids[np.minimum(at, len(ids) - 1)]
        known = (at < len(ids)) & (found >= 0) & (found < len(self.white_bytes))
        white = np.zeros(len(at), dtype=np.int64)
        white[known] = self.white_bytes[found[known]]
        return white

    @cached_property
    def prefills(self) -> list[Prefill]:
        """`supplied`, with white space as its number of bytes; for each opener longest first."""
        return [prefill for opener, runs in self.supplied.items() for prefill in self._prefills_of(opener, runs)]

    def _prefills_of(self, opener: int, runs: Iterable[Ids]) -> list[Prefill]:
        # The last token of white space may be shared with the model's text, so runs that differ only in the length of
        # their last white space are one run, and the shortest is what the format writes.
        shortest: dict[tuple[tuple[PromptPart, ...], bool], int] = {}
        for run in runs:
            parts = self._parts_of(run)
            last = parts.pop().white if parts and parts[-1].white else 0
            key = (tuple(parts), last > 0)
            shortest[key] = min(last, shortest.get(key, last))
        found = [
            Prefill(opener, (*parts, PromptPart(white=last)) if last else parts)
            for (parts, _), last in shortest.items()
        ]
        return sorted(found, key=lambda prefill: (-len(prefill.parts), [-part.white for part in prefill.parts]))

    def _parts_of(self, ids: Ids) -> list[PromptPart]:
        """The ids of what a prompt writes as parts.

        ::

            newline, <think>, newline, newline      1 byte of white space, <think>, 2 bytes of white space
        """
        parts: list[PromptPart] = []
        for token in ids:
            white = int(self.white_bytes[token])
            if white and parts and parts[-1].white:
                parts[-1] = PromptPart(white=parts[-1].white + white)
            else:
                parts.append(PromptPart(white=white) if white else PromptPart(token))
        return parts


def sentinel_layout(special: dict[str, int], vocab_size: int) -> Layout:
    """The layout of the sentinel format, in which each of `sys`, `usr`, `asst` and `eot` is one id.

    Args:
        special: the ids of these four, by name.
    """
    opener_of = {"system": "sys", "user": "usr", "assistant": "asst"}
    stop = special["eot"]
    return Layout(
        openers=tuple((ROLES.index(role), (special[name],)) for role, name in opener_of.items()),
        stops=(stop,),
        template_ids=frozenset(special.values()),
        vocab_size=vocab_size,
        controls=frozenset(special.values()),
        serving_stops=frozenset((stop,)),
        white_bytes=np.zeros(vocab_size, dtype=np.int64),
        first_ids=frozenset(special[name] for name in opener_of.values()),
        names={token: f"<{name}>" for name, token in special.items()},
    )
