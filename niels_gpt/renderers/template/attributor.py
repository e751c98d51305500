"""Renders conversations through a template and finds the message and the kind of every character.

::

    output         <u>Hi<e>\n<a>Yo<e>\n                 of the template, which the ids are made of
    letters.py     ...①②..........③④......             whose contents and labels are where
    gaps.py        <e>\n of message 0, <a> of message 1, ...   how the text between them divides, remembered
    pieces         <u> TEMPLATE 0, Hi CONTEXT 0, <e>\n TEMPLATE 0, <a> TEMPLATE 1, Yo REPLY 1, <e> STOP 1, \n TEMPLATE 1

Where letters or remembered gaps do not show it, the oracle (`proofs/`) attributes the conversation itself, which takes
two renderings per message. `Emitter.route` says which of the two it was.
"""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

import numpy as np

from niels_gpt.errors import MessageError
from niels_gpt.messages import Message, normalise
from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.kinds import CONTROL, Kind
from niels_gpt.renderers.notes import Notes
from niels_gpt.renderers.template.caller_texts import as_text, check_roles, keep_texts
from niels_gpt.renderers.template.controls import ControlTokens
from niels_gpt.renderers.template.disguise import Disguise, disguise_of, respelled
from niels_gpt.renderers.template.divisions import divisions_of, relocated, states_of
from niels_gpt.renderers.template.gaps import Division, Gap, Run, gaps_of
from niels_gpt.renderers.template.letters import (
    USUAL,
    WORD,
    Leaf,
    Lettered,
    Manner,
    Unseen,
    Writer,
    given,
    letters_in,
)
from niels_gpt.renderers.template.pieces import Pieces, joined
from niels_gpt.renderers.template.proofs.oracle import Oracle
from niels_gpt.renderers.template.proofs.proof import PLACE, Problem, Proof, Unproven
from niels_gpt.renderers.template.reads import Reads
from niels_gpt.renderers.template.standins import TOOLS, MessageKind, Shape, shape_of, stand_in, takes_text, windows_of
from niels_gpt.renderers.template.stretches import Stretch, stretches_of, with_declarations, with_edges
from niels_gpt.renderers.template.strings import template_strings
from niels_gpt.renderers.template.unwritten import notes_of, searched_notes

_MOST_WINDOWS: Final = 2048  # stand-in conversations that are remembered
_MOST_KNOWN: Final = 8192  # sequences of gaps

_OTHER_MANNERS: Final = (
    Manner(names=False),
    Manner(scalars=False),
    Manner(signs=False),
    Manner(scalars=False, names=False, signs=False),
)
_ALL_WRITTEN: Final = {route: Notes(route) for route in ("gaps", "oracle")}

Divisions = tuple[Division, ...]


@dataclass(frozen=True)
class Seen:
    """Where the texts of a conversation are in its output.

    Attributes:
        lettered: the conversation with letters.
        stretches: of all contents and labels, ascending.
        unwritten: the parts of texts of which nothing is there.
        parts: where there are such, the stretches of the parts of texts.
    """

    lettered: Lettered
    stretches: list[Stretch]
    unwritten: list[Leaf]
    parts: Sequence[Stretch]


@dataclass
class Attributor:
    """One template with its variables.

    Args:
        run: the output on variables of a template whose text is given.
        source: the template's text.
        writer: what it compares with texts, the control tokens, and the roles that are its own text.
        variables: those of every rendering.
        bos: the token that begins a text, which belongs to no message.
        final_stop: what is written after answers without a stop; "" for nothing.
    """

    run: Callable[[Mapping[str, Any], str], str]
    source: str
    writer: Writer
    variables: Mapping[str, Any]
    bos: str = ""
    final_stop: str = ""
    reads: Reads = field(init=False)
    _windows: dict[Any, dict[tuple[int, int, str], Division]] = field(default_factory=dict)
    _known: dict[Any, Divisions] = field(default_factory=dict)
    _has_reasoning: bool | None = None

    def __post_init__(self) -> None:
        self.reads = Reads(lambda messages: self.text(messages, None, False))

    @property
    def controls(self) -> ControlTokens:
        """The control tokens."""
        return self.writer.controls

    # ---- rendering

    @cached_property
    def _takes_text(self) -> bool:
        """Whether the template takes arguments of calls as JSON text alone; see `takes_text`."""
        return takes_text(lambda messages: self._text(messages, None, False, self.variables))

    def _given(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A message as the template reads it."""
        return given(message, text_arguments="tool_calls" in message and self._takes_text)

    def text(self, messages: Sequence[Mapping[str, Any]], tools: Any, gen: bool) -> str:
        """The output on normalised messages.

        Args:
            gen: the value of `add_generation_prompt`.
        """
        return self._checked_text([self._given(message) for message in messages], tools, gen)

    def _checked_text(self, messages: list[dict[str, Any]], tools: Any, gen: bool) -> str:
        try:
            return self._text(messages, tools, gen, self.variables)
        except MessageError as error:
            raise self._located(error, messages, tools, gen) from error

    def _located(self, error: MessageError, messages: list[dict[str, Any]], tools: Any, gen: bool) -> MessageError:
        """The error with the message in front that the template refuses: the last of the shortest beginning with it."""
        for count in range(1, len(messages)):
            try:
                self._text(messages[:count], tools, gen, self.variables)
            except MessageError as other:
                if str(other) == str(error):
                    return MessageError(error.reason, f"message {count - 1}: {error}")
        return MessageError(error.reason, f"message {len(messages) - 1}: {error}")

    def _text(self, messages: list[dict[str, Any]], tools: Any, gen: bool, variables: Mapping[str, Any]) -> str:
        return self.run(
            {
                "messages": messages,
                "tools": tools,
                "documents": None,  # which transformers passes, too
                "add_generation_prompt": gen,
                **variables,
            },
            self.source,
        )

    # ---- attribution

    def attribute(self, messages: list[Message], tools: Any, gen: bool) -> Emitter:
        """The rendering of normalised messages as pieces.

        Raises:
            MessageError: the template refuses the messages (`template_raised`, `template_failed`), or writes a role
                that it does not know into a control token (`unknown_role_in_control_token`).
        """
        conversation = [self._given(message) for message in messages]
        return self._attributed(messages, conversation, tools, gen, self._checked_text(conversation, tools, gen))

    def _attributed(
        self, messages: list[Message], conversation: list[dict[str, Any]], tools: Any, gen: bool, text: str
    ) -> Emitter:
        lettered = self.writer.letter(conversation, tools, self.variables, USUAL, letters_in(text))
        seen = None if lettered.has_tokens else self._seen(conversation, tools, gen, text, lettered)
        if seen is None and (out := self._by_disguise(messages, tools, gen, text)) is not None:
            return out
        if lettered.has_tokens:
            seen = self._seen(conversation, tools, gen, text, lettered)
        if seen is not None:
            check_roles(self.writer, messages, text, seen.stretches)
        divided = None if seen is None else self._divided(conversation, tools, gen, text, seen)
        if seen is not None and divided is not None:
            out = self._by_gaps(messages, tools, text, seen, divided)
            if out is not None:
                return out
        return self._by_oracle(messages, tools, gen, text, seen)

    def _by_disguise(self, messages: list[Message], tools: Any, gen: bool, text: str) -> Emitter | None:
        """The rendering as the disguised template shows it; `None` if that writes another text."""
        found = self._disguised(messages, tools, gen, text)
        if found is None:
            return None
        disguise, inner, hidden, tools, text = found
        out = inner._attributed(hidden, [inner._given(message) for message in hidden], tools, gen, text)
        texts, facts = list[str](), list[int]()
        for piece, fact in zip(out.texts, out.facts, strict=True):
            # A text without any letter, such as a token alone, is between the contents that are seen.
            parts = disguise.parts(piece) if fact & CONTROL else [piece]
            texts += map(disguise.shown, parts)
            facts += (fact if number % 2 == 0 else as_text(fact, messages) for number in range(len(parts)))
        out.texts, out.facts, out.messages = texts, facts, messages
        unwritten, by_format = (
            tuple(one._replace(text=disguise.shown(one.text)) for one in some)
            for some in (out.notes.unwritten, out.notes.by_format)
        )
        out.notes = out.notes._replace(unwritten=unwritten, by_format=by_format)
        return out

    def _disguised(
        self, messages: list[Message], tools: Any, gen: bool, text: str
    ) -> tuple[Disguise, Attributor, list[Message], Any, str] | None:
        """The disguise, the attributor of the disguised template, its messages and tools, and the text of these.

        `None` if no message has a token to hide, or the disguised template writes another text, or tokens for those of
        the messages.
        """
        if self._disguise is None:
            return None
        disguise, inner = self._disguise
        hidden: list[Message] = disguise.hidden(messages)
        if hidden == messages:
            return None
        tools = disguise.hidden(tools)
        try:
            other = inner.text(hidden, tools, gen)
            if disguise.shown(other) != text or disguise.writes_them_again(
                self.controls, other, hidden, lambda messages: inner.text(messages, tools, gen)
            ):
                return None
        except MessageError:
            return None
        return disguise, inner, hidden, tools, other

    @cached_property
    def _disguise(self) -> tuple[Disguise, Attributor] | None:
        """The disguise of the template, and what attributes the disguised template's renderings."""
        disguise = disguise_of(self.source, self.controls)
        if disguise is None:
            return None
        writer = replace(self.writer, strings=template_strings(disguise.source))
        return disguise, replace(self, source=disguise.source, writer=writer, _windows={}, _known={})

    def proof(self, messages: list[Message], tools: Any, gen: bool) -> Proof:
        """What the oracle proves of a rendering.

        Raises:
            Unproven: nothing. MessageError: the template refuses the messages.
        """
        found = self._disguised(messages, tools, gen, self.text(messages, tools, gen))
        return self._proof(messages, tools, gen) if found is None else found[1]._proof(found[2], found[3], gen)

    def _proof(self, messages: list[Message], tools: Any, gen: bool) -> Proof:
        known: dict[bytes, str] = {}

        def text_once(messages: Sequence[Message], gen: bool) -> str:
            # Pickled, since "" and a missing content are equal and have the same `repr`.
            key = pickle.dumps((messages, gen))
            if (found := known.get(key)) is None:
                found = known[key] = self.text(messages, tools, gen)
            return found

        return Oracle(text_once, self.writer, self.bos).prove(messages, add_generation_prompt=gen)

    # ---- letters

    def _seen(
        self, messages: list[dict[str, Any]], tools: Any, gen: bool, text: str, lettered: Lettered
    ) -> Seen | None:
        """Where the texts are; `None` if the letters do not show it."""
        found = self._rendered(lettered, gen, text)
        for manner in _OTHER_MANNERS:
            if found is None and (manner.scalars or lettered.has_scalars):
                lettered = self.writer.letter(messages, tools, self.variables, manner, letters_in(text))
                found = self._rendered(lettered, gen, text)
        if found is None:
            return None
        stretches, unwritten = found
        joined = with_declarations(text, with_edges(text, stretches), self.controls, tools)
        return Seen(lettered, joined, unwritten, stretches if unwritten else ())

    def _rendered(self, lettered: Lettered, gen: bool, text: str) -> tuple[list[Stretch], list[Leaf]] | None:
        try:
            other = self._text(lettered.messages, lettered.tools, gen, lettered.variables)
            return stretches_of(text, other, lettered, self.controls)
        except (MessageError, Unseen):
            return None

    # ---- gaps

    def _divided(
        self, messages: list[dict[str, Any]], tools: Any, gen: bool, text: str, seen: Seen
    ) -> tuple[list[Gap], Divisions] | None:
        """The gaps of an output and their divisions; `None` if one is not answered by a stand-in conversation."""
        shape = shape_of(messages, seen.lettered)
        if shape is None:
            return None
        gaps = gaps_of(text, seen.stretches, len(messages), self.controls)
        key = shape, gen, bool(tools), tuple([gap[:2] + gap[6:] for gap in gaps])
        divisions = self._known.get(key)
        if divisions is not None:
            return gaps, divisions
        found = [self._division(shape, TOOLS if tools else None, gen, gap) for gap in gaps]
        if None not in found:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            divisions = self._known[key] = tuple(one for one in found if one is not None)
            return gaps, divisions
        if not tools:
            return None
        # A template may write declarations in ordinary text, of which nothing shows where it ends. Then the stand-ins
        # have the same declarations.
        narrow = gaps_of(text, seen.stretches, len(messages), self.controls, narrow=True)
        for number, gap in enumerate(narrow):
            if found[number] is None:
                gaps[number], found[number] = gap, self._division(shape, tools, gen, gap)
        return None if None in found else (gaps, tuple(one for one in found if one is not None))

    def _division(self, shape: Shape, tools: Any, gen: bool, gap: Gap) -> Division | None:
        """How a gap divides, as stand-in conversations show it, or the first division if none proves everything."""
        partial = None
        for window, where in windows_of(shape, gap.before, gap.after):
            division = self._solved(window, tools, gen).get((where[gap.before], where[gap.after], gap.text))
            division = None if division is None else relocated(division, where)
            if division is not None and not division.problems:
                return division
            partial = partial or division
        return partial

    def _solved(self, window: Shape, tools: Any, gen: bool) -> dict[tuple[int, int, str], Division]:
        """The divisions of a stand-in conversation's gaps."""
        is_own = tools is not None and tools is not TOOLS
        offered = hashlib.sha256(json.dumps(tools).encode()).digest() if is_own else tools is None
        key = window, offered, gen
        found = self._windows.get(key)
        if found is None:
            if len(self._windows) >= _MOST_WINDOWS:
                self._windows.clear()
            found = self._windows[key] = self._solve(normalise(stand_in(window)), tools, gen)
        return found

    def _solve(self, messages: list[Message], tools: Any, gen: bool) -> dict[tuple[int, int, str], Division]:
        conversation = [self._given(message) for message in messages]
        try:
            text = self._text(conversation, tools, gen, self.variables)
            lettered = self.writer.letter(conversation, tools, self.variables, USUAL, letters_in(text))
            seen = self._seen(conversation, tools, gen, text, lettered)
            if seen is None:
                return {}
            narrow = tools is not None and tools is not TOOLS
            gaps = gaps_of(text, seen.stretches, len(messages), self.controls, narrow=narrow)
            proof = self._proof(messages, tools, gen)
        except MessageError:
            return {}
        except Unproven as error:
            unproven = Division((Run(-1, 0, -1, int(Kind.TEMPLATE)),), False, (Problem(-1, PLACE, str(error)),))
            return {(gap.before, gap.after, gap.text): unproven for gap in gaps}
        return divisions_of(proof, messages, seen.stretches, gaps, self.final_stop)

    # ---- pieces

    def _by_gaps(
        self, messages: list[Message], tools: Any, text: str, seen: Seen, divided: tuple[list[Gap], Divisions]
    ) -> Emitter | None:
        """The rendering as its gaps divide; `None` if these are not its whole text."""
        gaps, divisions = divided
        out = Emitter(messages)
        pieces = Pieces(text, out, [message["role"] == "assistant" for message in messages])
        following = zip(gaps, divisions, strict=True)
        gap, division = next(following)
        inner: list[Stretch] = []
        at, begin, message = 0, 0, -1
        for stretch in seen.stretches:
            owner = stretch.leaf.message
            if owner < 0:
                inner.append(stretch)
                continue
            if owner != message:
                pieces.gap(gap, division)
                gap, division = next(following)
                message = owner
            else:
                if text[at : stretch.start].isspace() and text[begin : stretch.stop] in joined(messages[message]):
                    stretch = stretch._replace(start=at)
                else:
                    pieces.within(message, at, stretch.start, inner)
            inner = []
            pieces.content(stretch)
            begin, at = stretch.start, stretch.stop
        pieces.gap(gap, division)
        if sum(map(len, out.texts)) - pieces.inserted != len(text):  # nothing remembered may change what is encoded
            return None
        problems = [problem for division in divisions for problem in division.problems]
        out.attribution = f"partial: {problems[0]}" if problems else "full"
        out.notes = self._notes("gaps", messages, tools, seen)
        return out

    def _by_oracle(self, messages: list[Message], tools: Any, gen: bool, text: str, seen: Seen | None) -> Emitter:
        """The rendering as the oracle attributes it; without its proof, the template's own text and the contents."""
        stretches = None if seen is None else seen.stretches
        proof: Proof | None = None
        try:
            proof = self._proof(messages, tools, gen)
            states, problem = states_of(proof, messages), str(next(iter(proof.problems), ""))
        except Unproven as error:
            states, problem = np.full(len(text), -1 << 4 | Kind.TEMPLATE, np.int64), str(error)
            for stretch in stretches or ():
                leaf = stretch.leaf
                is_context = leaf.message >= 0 and messages[leaf.message]["role"] != "assistant"
                kind = Kind.CONTEXT if is_context else Kind.LABEL
                states[stretch.start : stretch.stop] = leaf.message << 4 | kind
        doubted = set[str]() if seen is not None else self._tokens_of_texts(messages, tools, gen, text)
        uncertain = keep_texts(self.writer, states, text, (messages, tools), stretches, doubted)
        out = Emitter(messages)
        spans = proof.sampled if proof is not None else ()
        added = {span.stop: span.message for span in spans if proof is not None and span.message in proof.added_stops}
        edges = {0, len(text), *added, *(np.flatnonzero(np.diff(states)) + 1).tolist()}
        for start, stop in pairwise([*sorted(edges), len(text)]):
            if start in added:
                out.texts.append(self.final_stop)
                out.facts.append(added[start] << 4 | Kind.STOP)
            if stop > start:
                out.texts.append(text[start:stop])
                out.facts.append(int(states[start]))
        out.attribution = f"partial: {uncertain or problem}" if problem or uncertain else "full"
        if seen is not None:
            out.notes = self._notes("oracle", messages, tools, seen)
        else:
            out.notes = searched_notes("oracle", messages, text, self._writes_reasoning)
            absent = (*out.notes.unwritten, *out.notes.by_format)
            if out.attribution != "full" and absent:  # it cannot be known which
                out.notes, first = _ALL_WRITTEN["oracle"], absent[0]
                more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
                out.attribution += f"; changed or left out: {first.field} of message {first.message}{more}"
        return out

    def _tokens_of_texts(self, messages: list[Message], tools: Any, gen: bool, text: str) -> set[str]:
        """The control tokens that an output has more often than where no text has a sign that one begins or ends in."""
        other, without = "", dict.fromkeys(self.controls.ends, "-")
        with suppress(MessageError):
            other = self.text(respelled(without, messages), respelled(without, tools), gen)
        return {*(self.controls.count(text) - self.controls.count(other))}

    def _notes(self, route: str, messages: list[Message], tools: Any, seen: Seen) -> Notes:
        if not seen.unwritten:
            return _ALL_WRITTEN[route]
        return notes_of(route, messages, tools, (seen.parts, seen.unwritten), self._writes_reasoning)

    def _writes_reasoning(self) -> bool:
        """Whether the template writes the reasoning of a last answer."""
        if self._has_reasoning is None:
            shape = (MessageKind("user", "text", (WORD,)), MessageKind("assistant", "text", (WORD,), WORD))
            try:
                text = self.text(normalise(stand_in(shape)), None, False)
            except MessageError:
                text = ""
            self._has_reasoning = "reasoning 1" in text
        return self._has_reasoning
