"""Renders conversations through a template and finds the message and the kind of every character.

::

    output         <u>Hi<e>\n<a>Yo<e>\n                 of the template, which the ids are made of
    letters.py     ...①②..........③④......             whose contents and labels are where
    gaps.py        <e>\n of message 0, <a> of message 1, ...   how the text between them divides, remembered
    pieces         <u> TEMPLATE 0, Hi CONTEXT 0, <e>\n TEMPLATE 0, <a> TEMPLATE 1, Yo REPLY 1, <e> STOP 1, \n TEMPLATE 1

Where letters or remembered gaps do not show it, the oracle (`proofs/`) attributes the conversation itself, which takes
two renderings per message. `Emitter.notes.route` says which of the two it was.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from niels_gpt.errors import MessageError
from niels_gpt.messages import Message, normalise
from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.kinds import CONTROL, Kind
from niels_gpt.renderers.notes import Notes
from niels_gpt.renderers.template.caller_texts import as_text, check_roles, keep_texts
from niels_gpt.renderers.template.controls import ControlTokens
from niels_gpt.renderers.template.disguise import Disguise, disguise_of, respelled
from niels_gpt.renderers.template.divisions import Division, divisions_of, relocated
from niels_gpt.renderers.template.gaps import Gap, gaps_of
from niels_gpt.renderers.template.letters import USUAL, Leaf, Lettered, Lettering, Manner, Unseen, Writer, letters_in
from niels_gpt.renderers.template.pieces import Pieces
from niels_gpt.renderers.template.proofs.oracle import Oracle
from niels_gpt.renderers.template.proofs.proof import PLACE, Problem, Proof, Unproven
from niels_gpt.renderers.template.reads import Reads
from niels_gpt.renderers.template.standins import TOOLS, Shape, shape_of, stand_in, windows_of
from niels_gpt.renderers.template.stretches import Stretch, stretches_of, with_declarations, with_edges
from niels_gpt.renderers.template.strings import template_strings
from niels_gpt.renderers.template.unwritten import not_in, notes_of

_MOST_WINDOWS: Final = 2048  # stand-in conversations that are remembered
_MOST_KNOWN: Final = 8192  # sequences of gaps

_ALL_WRITTEN: Final = {route: Notes(route) for route in ("gaps", "oracle")}

Divisions = tuple[Division, ...]


class Chat(NamedTuple):
    """A conversation and what the template makes of it.

    Attributes:
        messages: normalised.
        given: the same as the template gets them.
        tools: as the template gets them; `None` for none.
        gen: the value of `add_generation_prompt`.
        text: the output.
    """

    messages: list[Message]
    given: list[dict[str, Any]]
    tools: Any
    gen: bool
    text: str


class Seen(NamedTuple):
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
        final_stop: what is written after answers without a stop; "" for nothing.
    """

    run: Callable[[Mapping[str, Any], str], str]
    source: str
    writer: Writer
    variables: Mapping[str, Any]
    final_stop: str = ""
    reads: Reads = field(init=False)
    _windows: dict[Any, dict[tuple[int, int, str], Division]] = field(default_factory=dict)
    _known: dict[Any, Divisions] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.reads = Reads(lambda messages: self._text(messages, None, False, self.variables))

    @property
    def controls(self) -> ControlTokens:
        """The control tokens."""
        return self.writer.controls

    # ---- rendering

    def text(self, messages: Sequence[Mapping[str, Any]], tools: Any, gen: bool) -> str:
        """The output on normalised messages.

        Args:
            gen: the value of `add_generation_prompt`.

        Raises:
            MessageError: the template refuses them; the last message of the shortest beginning that it refuses so is
                named.
        """
        return self._chat(messages, tools, gen).text

    def _chat(self, messages: Any, tools: Any, gen: bool) -> Chat:
        given = [*map(self.reads.given, messages)]
        try:
            return Chat(messages, given, tools, gen, self._text(given, tools, gen, self.variables))
        except MessageError as error:
            for count in range(1, len(given)):
                try:
                    self._text(given[:count], tools, gen, self.variables)
                except MessageError as other:
                    if str(other) == str(error):
                        raise MessageError(error.reason, f"message {count - 1}: {error}") from error
            raise MessageError(error.reason, f"message {len(given) - 1}: {error}") from error

    def _text(self, messages: list[dict[str, Any]], tools: Any, gen: bool, variables: Mapping[str, Any]) -> str:
        asked = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": gen}
        return self.run({**asked, **variables}, self.source)  # transformers also passes documents

    # ---- attribution

    def attribute(self, messages: list[Message], tools: Any, gen: bool) -> Emitter:
        """The rendering of normalised messages as pieces.

        Raises:
            MessageError: the template refuses the messages (`template_raised`, `template_failed`), or writes a role
                that it does not know into a control token (`unknown_role_in_control_token`).
        """
        return self._attributed(self._chat(messages, tools, gen))

    def _attributed(self, chat: Chat) -> Emitter:
        lettered = self._lettered(chat, USUAL)
        seen = None if lettered.has_tokens else self._seen(chat, lettered)
        if seen is None and (disguised := self._disguised(chat)) is not None:
            return self._by_disguise(chat, *disguised)
        if lettered.has_tokens:
            seen = self._seen(chat, lettered)
        if seen is None:
            return self._by_oracle(chat, None)
        check_roles(self.writer, chat.messages, chat.text, seen.stretches)
        divided = self._divided(chat, seen)
        return (divided and self._by_gaps(chat, seen, *divided)) or self._by_oracle(chat, seen)

    def _by_disguise(self, chat: Chat, disguise: Disguise, inner: Attributor, hidden: Chat) -> Emitter:
        """The rendering as the disguised template shows it."""
        out = inner._attributed(hidden)
        texts, facts = list[str](), list[int]()
        for piece, fact in zip(out.texts, out.facts, strict=True):
            # A text without any letter, such as a token alone, is between the contents that are seen.
            parts = disguise.parts(piece) if fact & CONTROL else [piece]
            texts += map(disguise.shown, parts)
            facts += (fact if number % 2 == 0 else as_text(fact, chat.messages) for number in range(len(parts)))
        out.texts, out.facts, out.messages = texts, facts, chat.messages
        unwritten, by_format = (
            tuple(one._replace(text=disguise.shown(one.text)) for one in some)
            for some in (out.notes.unwritten, out.notes.by_format)
        )
        out.notes = out.notes._replace(unwritten=unwritten, by_format=by_format)
        return out

    def _disguised(self, chat: Chat) -> tuple[Disguise, Attributor, Chat] | None:
        """The disguise, the attributor of the disguised template, and the conversation for it.

        `None` if no message has a token to hide, or the disguised template writes another text, or tokens for those of
        the messages.
        """
        if self._disguise is None:
            return None
        disguise, inner = self._disguise
        messages: list[Message] = disguise.hidden(chat.messages)
        if messages == chat.messages:
            return None
        try:
            hidden = inner._chat(messages, disguise.hidden(chat.tools), chat.gen)
            if disguise.shown(hidden.text) != chat.text or disguise.writes_them_again(
                self.controls, hidden.text, messages, lambda some: inner.text(some, hidden.tools, chat.gen)
            ):
                return None
        except MessageError:
            return None
        return disguise, inner, hidden

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
        chat = self._chat(messages, tools, gen)
        disguised = self._disguised(chat)
        return self._proof(chat) if disguised is None else disguised[1]._proof(disguised[2])

    def _proof(self, chat: Chat) -> Proof:
        known: dict[bytes, str] = {}

        def text_once(messages: Sequence[Message], gen: bool) -> str:
            # Pickled, since "" and a missing content are equal and have the same `repr`.
            key = pickle.dumps((messages, gen))
            if (found := known.get(key)) is None:
                found = known[key] = self.text(messages, chat.tools, gen)
            return found

        bos = self.variables.get("bos_token")
        return Oracle(text_once, self.writer, bos if isinstance(bos, str) else "").prove(
            chat.messages, add_generation_prompt=chat.gen
        )

    def _known_of(self, chat: Chat, stretches: Sequence[Stretch]) -> Proof:
        """What the oracle proves; if it proves nothing, which are the template's own text and the contents."""
        try:
            return self._proof(chat)
        except Unproven as error:
            states = np.full(len(chat.text), -1 << 4 | Kind.TEMPLATE, np.int64)
            for start, stop, leaf in stretches:
                is_context = leaf.message >= 0 and chat.messages[leaf.message]["role"] != "assistant"
                states[start:stop] = leaf.message << 4 | (Kind.CONTEXT if is_context else Kind.LABEL)
            return Proof(chat.text, states, (), [Problem(-1, PLACE, str(error))])

    # ---- letters

    def _lettered(self, chat: Chat, manner: Manner) -> Lettered:
        lettering = Lettering(self.writer, manner, letters_in(chat.text))
        return lettering.conversation(chat.given, chat.tools, self.variables)

    def _seen(self, chat: Chat, lettered: Lettered) -> Seen | None:
        """Where the texts are; `None` if the letters do not show it."""
        found = self._rendered(chat, lettered)
        if found is None:
            lettered = self._lettered(chat, Manner(careful=True))
            found = self._rendered(chat, lettered)
        if found is None:
            return None
        stretches, unwritten = found
        joined = with_declarations(chat.text, with_edges(chat.text, stretches), self.controls, chat.tools)
        return Seen(lettered, joined, unwritten, stretches if unwritten else ())

    def _rendered(self, chat: Chat, lettered: Lettered) -> tuple[list[Stretch], list[Leaf]] | None:
        try:
            other = self._text(lettered.messages, lettered.tools, chat.gen, lettered.variables)
            return stretches_of(chat.text, other, lettered, self.controls)
        except (MessageError, Unseen):
            return None

    # ---- gaps

    def _divided(self, chat: Chat, seen: Seen) -> tuple[list[Gap], Divisions] | None:
        """The gaps of an output and their divisions; `None` if one is not answered by a stand-in conversation."""
        shape = shape_of(chat.given, seen.lettered)
        if shape is None:
            return None
        gaps = gaps_of(chat.text, seen.stretches, len(chat.messages), self.controls)
        key = shape, chat.gen, bool(chat.tools), tuple([gap[:2] + gap[6:] for gap in gaps])
        divisions = self._known.get(key)
        if divisions is not None:
            return gaps, divisions
        found = [self._division(shape, TOOLS if chat.tools else None, chat.gen, gap) for gap in gaps]
        is_narrow = chat.tools and None in found
        if is_narrow:
            # A template may write declarations in ordinary text, of which nothing shows where it ends. Then the
            # stand-ins have the same declarations.
            narrow = gaps_of(chat.text, seen.stretches, len(chat.messages), self.controls, narrow=True)
            for number, gap in enumerate(narrow):
                if found[number] is None:
                    gaps[number], found[number] = gap, self._division(shape, chat.tools, chat.gen, gap)
        divisions = tuple(one for one in found if one is not None)
        if len(divisions) < len(gaps):
            return None
        if not is_narrow:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[key] = divisions
        return gaps, divisions

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
        """The divisions of a stand-in conversation's gaps; the tools are none, `TOOLS`, or the caller's."""
        key = window, gen, None if tools is None else tools is TOOLS or json.dumps(tools)
        found = self._windows.get(key)
        if found is None:
            if len(self._windows) >= _MOST_WINDOWS:
                self._windows.clear()
            found = self._windows[key] = self._solve(normalise(stand_in(window)), tools, gen)
        return found

    def _solve(self, messages: list[Message], tools: Any, gen: bool) -> dict[tuple[int, int, str], Division]:
        try:
            chat = self._chat(messages, tools, gen)
            seen = self._seen(chat, self._lettered(chat, USUAL))
            if seen is None:
                return {}
            is_own = tools is not None and tools is not TOOLS
            gaps = gaps_of(chat.text, seen.stretches, len(messages), self.controls, narrow=is_own)
            return divisions_of(self._known_of(chat, seen.stretches), seen.stretches, gaps, self.final_stop)
        except MessageError:
            return {}

    # ---- pieces

    def _by_gaps(self, chat: Chat, seen: Seen, gaps: list[Gap], divisions: Divisions) -> Emitter | None:
        """The rendering as its gaps divide; `None` if these are not its whole text."""
        pieces = Pieces(chat.text, chat.messages)
        if not pieces.write(seen.stretches, gaps, divisions):
            return None
        out = pieces.out
        problems = [problem for division in divisions for problem in division.problems]
        out.attribution = f"partial: {problems[0]}" if problems else "full"
        out.notes = self._notes("gaps", chat, seen.parts, seen.unwritten)
        return out

    def _by_oracle(self, chat: Chat, seen: Seen | None) -> Emitter:
        """The rendering as the oracle attributes it; without its proof, the template's own text and the contents."""
        stretches = None if seen is None else seen.stretches
        proof = self._known_of(chat, stretches or ())
        states, stops = proof.states, proof.stops
        doubted = set[str]() if seen is not None else self._tokens_of_texts(chat)
        uncertain = keep_texts(self.writer, states, chat.text, (chat.messages, chat.tools), stretches, doubted)
        out, text = Emitter(chat.messages), chat.text
        edges = {0, len(text), *(place for place, _ in stops), *(np.flatnonzero(np.diff(states)) + 1).tolist()}
        for start, stop in pairwise([*sorted(edges), len(text)]):
            for _, message in (one for one in stops if one[0] == start):
                out.texts.append(self.final_stop)
                out.facts.append(message << 4 | Kind.STOP)
            if stop > start:
                out.texts.append(text[start:stop])
                out.facts.append(int(states[start]))
        problem = uncertain or str(next(iter(proof.problems), ""))
        out.attribution = f"partial: {problem}" if problem else "full"
        parts, unwritten = (seen.parts, seen.unwritten) if seen is not None else ((), not_in(text, chat.messages))
        out.notes = self._notes("oracle", chat, parts, unwritten)
        absent = (*out.notes.unwritten, *out.notes.by_format)
        if seen is None and problem and absent:  # the template may have changed every text: it cannot be known which
            out.notes, first = _ALL_WRITTEN["oracle"], absent[0]
            more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
            out.attribution += f"; changed or left out: {first.field} of message {first.message}{more}"
        return out

    def _tokens_of_texts(self, chat: Chat) -> set[str]:
        """The control tokens that an output has more often than where no text has a sign that one begins or ends in."""
        other, without = "", dict.fromkeys(self.controls.ends, "-")
        with suppress(MessageError):
            other = self.text(respelled(without, chat.messages), respelled(without, chat.tools), chat.gen)
        return {*(self.controls.count(chat.text) - self.controls.count(other))}

    def _notes(self, route: str, chat: Chat, parts: Sequence[Stretch], unwritten: Sequence[Leaf]) -> Notes:
        if not unwritten:
            return _ALL_WRITTEN[route]
        return notes_of(route, chat.messages, chat.tools, (parts, unwritten), self.reads)
