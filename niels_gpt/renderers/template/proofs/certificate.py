"""Decides whether tracing can be trusted for a template: on probes it must agree with the oracle (`oracle.py`).

Tracing takes one run of a template and the oracle many, so conversations are traced if that has been shown to be right.
Templates copy texts, so the texts do not matter, but which kinds of messages follow each other does::

    conversation          features                                                        probes within them
    user assistant        {"user first", "assistant after user"}                          1
    ... and a tool call   {..., "calls", "tool after assistant", "assistant after tool"}  4, the above among them

A conversation is traced if tracing agrees with the oracle on every probe whose features are all among its own, and if
these probes together have all its features. If a template searches contents for a string (`/no_think`), there is a
probe for this string, too. A verdict depends on the template and the features alone, so the result of a rendering does
not depend on earlier ones.

What this guarantees: on the probes, both ways agree character by character. What it does not: that a template behaves
on other conversations with the same features as on the probes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Literal, Protocol

import numpy as np

from niels_gpt.errors import MessageError, TemplateError
from niels_gpt.messages import Message, normalise, reasoning_of
from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.template.attribution import ControlTokens
from niels_gpt.renderers.template.isolation import IsolationError
from niels_gpt.renderers.template.proofs.proof import Ints, Proof, may_hold
from niels_gpt.renderers.template.proofs.substitution import NONE, Unproven
from niels_gpt.renderers.types import CONTENT, SAMPLED

Outcome = Literal["agrees", "differs", "unproven", "refused"]
Features = frozenset[str]

MOST_RENDERED: Final = 300  # texts, of a few kilobytes each, that a certificate keeps between two probes


class Template(Protocol):
    """What a certificate needs of a `TemplateRenderer`."""

    controls: ControlTokens

    def traced(self, messages: list[Message], tools: Any, gen: bool) -> Emitter:
        """The attribution by tracing."""

    def proof(self, messages: list[Message], tools: Any, gen: bool, rendered: dict[bytes, str] | None = None) -> Proof:
        """The attribution by the oracle; known texts are taken from `rendered`, and new ones are put there."""


@dataclass(frozen=True)
class Probe:
    """A conversation on which a template is tested."""

    name: str
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] | None = None


@dataclass(frozen=True)
class Verdict:
    """The result of a probe.

    Attributes:
        outcome: "agrees"; "differs": tracing is wrong, but the oracle has a proof; "unproven": the oracle has none
            either; "refused": the template refuses such conversations.
        reason: what differs or could not be proven; empty if it agrees.
        stops: the control tokens that ended the sampled spans, "" for an end without one.
        rules: the rules by which the starts of the sampled spans were found (`proof.PREFIX` and others).
        written: if it agrees, the roles of the messages of which the rendering has some text. Of a message of another
            role it has none, by tracing and by the oracle.
    """

    outcome: Outcome
    reason: str = ""
    stops: frozenset[str] = frozenset()
    rules: frozenset[str] = frozenset()
    written: frozenset[str] = frozenset()


@dataclass
class Certificate:
    """The verdicts on one template. Each is computed when it is first needed, and then stored.

    Args:
        literals: the strings that the template searches contents for.
    """

    literals: Sequence[str] = ()
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    _trusted: dict[tuple[Features, bool], Verdict] = field(default_factory=dict)
    _distrusted_literals: list[str] | None = None
    # Two of three renderings of the oracle are of a conversation's beginning that another probe has, too.
    _rendered: dict[bytes, str] = field(default_factory=dict)

    def trusts(self, template: Template, messages: Sequence[Message], tools: Any, *, gen: bool = False) -> Verdict:
        """Whether to trace a conversation: "agrees" with the stops and roles of all its probes, or the first failure.

        Args:
            gen: whether it is rendered with the generation prompt, and the template may write the messages otherwise
                then: some leave out the stop of the last answer, or quote the question in the prompt.
        """
        wanted = features(messages, tools)
        verdict = self._trusted.get((wanted, gen))
        if verdict is None:
            verdict = self._trusted[wanted, gen] = self._judge_features(template, wanted, gen)
        if verdict.outcome != "agrees":
            return verdict
        # Strings that the template searches for in texts (`"</think>" in content`) and on which tracing is wrong. The
        # others need not be searched for in each conversation.
        if self._distrusted_literals is None:
            self._distrusted_literals = [
                literal
                for literal in self.literals
                if self.verdict(template, literal_probe(literal)).outcome not in ("agrees", "refused")
            ]
        for literal in self._distrusted_literals:
            if any(literal in text for message in messages for text in _texts(message)):
                return self.verdict(template, literal_probe(literal))
        return verdict

    def _judge_features(self, template: Template, wanted: Features, gen: bool) -> Verdict:
        covered: set[str] = set()
        stops: set[str] = set()
        written: set[str] = set()
        for probe, has in probes():
            # A probe with other features may fail because of those, which this conversation does not have.
            if not has <= wanted:
                continue
            verdict = self.verdict(template, probe, gen=gen)
            if verdict.outcome == "agrees":
                covered |= has
                stops |= verdict.stops
                written |= verdict.written
            elif verdict.outcome != "refused":
                return verdict
        # A probe that the template refuses proves nothing, so its features must be in others that agree.
        missing = wanted - covered
        if missing:
            return Verdict("unproven", f"no probe has {', '.join(sorted(missing))}")
        return Verdict("agrees", stops=frozenset(stops), written=frozenset(written))

    def full(self, template: Template) -> dict[str, Verdict]:
        """The verdicts on all probes, by name, in their order; a few seconds for a large template."""
        every = [*(probe for probe, _ in probes()), *map(literal_probe, self.literals)]
        return {probe.name: self.verdict(template, probe) for probe in every}

    def verdict(self, template: Template, probe: Probe, *, gen: bool = False) -> Verdict:
        """The verdict on one probe, or on the same with the generation prompt."""
        name = f"{probe.name}, prompt" if gen else probe.name
        # Without a lock: two threads that judge the same probe at once store equal verdicts.
        found = self.verdicts.get(name)
        if found is None:
            if len(self._rendered) > MOST_RENDERED:
                self._rendered.clear()
            found = self.verdicts[name] = judge(template, probe, self._rendered, gen=gen)
        return found


def judge(template: Template, probe: Probe, rendered: dict[bytes, str] | None = None, *, gen: bool = False) -> Verdict:
    """Compare tracing with the oracle on one probe.

    Args:
        rendered: texts of the template that are known already.
        gen: with the generation prompt.
    """
    messages, tools = normalise(list(probe.messages)), None if probe.tools is None else list(probe.tools)
    try:
        proof = template.proof(messages, tools, gen, rendered)
    except IsolationError:  # the process ended: that concerns the template as a whole, not this probe
        raise
    except (MessageError, TemplateError) as error:  # also forbidden operations, which only some messages lead to
        return Verdict("refused", str(error))
    except Unproven as error:
        return Verdict("unproven", str(error))
    rules = frozenset(span.rule for span in proof.sampled)
    stops = frozenset(span.stop_token for span in proof.sampled)
    if proof.problems:
        return Verdict("unproven", proof.problems[0], stops, rules)
    if proof.added_stops:  # tracing writes what the template does and nothing else
        reason = next(iter(proof.added_stops.values()))
        return Verdict("differs", f"{reason}; final_stop writes one there", stops, rules)
    try:
        traced = template.traced(messages, tools, gen)
    except TemplateError as error:  # tracing loses the origin of a control token
        return Verdict("differs", str(error), stops, rules)
    difference = disagreement(traced, proof, messages, template.controls)
    if difference:
        return Verdict("differs", difference, stops, rules)
    # The facts of text that is of no message are negative.
    written = frozenset(messages[fact >> 3]["role"] for fact in traced.facts if fact >= 0)
    return Verdict("agrees", "", stops, rules, written)


def disagreement(traced: Emitter, proof: Proof, messages: Sequence[Message], controls: ControlTokens) -> str:
    """A description of the first character whose attribution by tracing differs from the proof; empty if none does."""
    if traced.attribution != "full":
        return traced.attribution
    lengths = [len(text) for text in traced.texts]
    facts = np.repeat(np.array(traced.facts, np.int64), lengths)
    owner, sampled = facts >> 3, (facts & SAMPLED) > 0
    expected = np.zeros(len(facts), np.bool_)
    for span in proof.sampled:
        expected[span.start : span.stop] = True
    if (sampled != expected).any():
        at = int(np.argmax(sampled != expected))
        return f"tracing {'samples' if sampled[at] else 'does not sample'} {_shown(proof.text, at)}"
    is_assistant = np.array([*(message["role"] == "assistant" for message in messages), False])
    # The contents of other roles. Those of assistants were compared above, as sampled characters.
    body = (proof.content >= 0) & ~is_assistant[proof.content]
    # Three kinds of faults: content that is not attributed to its message; a sampled character attributed to another
    # message; a character of the template attributed as content.
    wrong = body & ((owner != proof.content) | ((facts & CONTENT) == 0))
    wrong |= expected & (owner != proof.owner)
    wrong |= proof.is_template & ~expected & ((facts & CONTENT) > 0)
    if wrong.any():
        at = int(np.argmax(wrong))
        if owner[at] == proof.owner[at]:
            what = "does not see" if body[at] else "takes more than"
            return f"tracing {what} the content of message {owner[at]} at {_shown(proof.text, at)}"
        return f"tracing gives {_shown(proof.text, at)} to message {owner[at]}; it is of message {proof.owner[at]}"
    # Each traced content that substitutes do not prove whole must be a text that its message holds.
    at = 0
    for text, fact in zip(traced.texts, traced.facts, strict=True):
        is_content = (fact & CONTENT) and not (fact & SAMPLED)
        if is_content and (proof.content[at : at + len(text)] < 0).any() and not may_hold(messages[fact >> 3], text):
            return f"tracing takes more than the content of message {owner[at]} at {_shown(proof.text, at)}"
        at += len(text)
    return _turn_disagreement(owner, proof, controls)


def _turn_disagreement(owner: Ints, proof: Proof, controls: ControlTokens) -> str:
    """The same of the template's own text: the headers and the ends of turns, and a prompt, which is of no message.

    Args:
        owner: the message of each character by tracing.
    """
    if proof.added and owner[proof.added - 1] >= 0:
        return f"tracing gives {_shown(proof.text, 0)}, which the template adds, to message {owner[proof.added - 1]}"
    unseen = {*proof.owner.tolist()} - {*owner.tolist(), NONE}
    if unseen:  # messages without data, in loops that tracing does not see
        return f"tracing does not see message {min(unseen)}"
    # Headers are compared at their last visible character, right before a content or a sampled span, because the white
    # space and the text between turns may count to either turn.
    starts = np.flatnonzero((proof.content >= 0) & (np.diff(proof.content, prepend=-1) != 0)).tolist()
    starts += [span.start for span in proof.sampled]
    for start in starts:
        at = len(proof.text[:start].rstrip()) - 1
        if at >= 0 and proof.content[at] < 0 and owner[at] != proof.owner[at] >= 0:
            return (
                f"tracing gives the header that ends in {_shown(proof.text, max(0, at - 8))} to message {owner[at]}; "
                f"it is of message {proof.owner[at]}"
            )
    # White space too, so that it has one owner in all conversations. Text outside of loops may be of none, but not the
    # end of a turn.
    is_end = np.zeros(len(proof.text), np.bool_)
    is_end[_footers(proof, controls)] = True
    # The turns of messages without content, each to its first stop: a template may close the conversation after it. Of
    # <|user|>\n<|end|>\n<|endoftext|> the turn of the message "" is <|user|>\n<|end|>.
    for message in np.setdiff1d(proof.owner[proof.owner >= 0], proof.content):
        start, last = np.flatnonzero(proof.owner == message)[[0, -1]].tolist()
        length = controls.first_stop(proof.text[start : last + 1])
        turn = slice(start, start + length if length else last + 1)
        is_end[turn] |= np.maximum.accumulate(owner)[turn] >= 0
    wrong = (proof.content < 0) & (proof.owner >= 0) & (owner != proof.owner) & (is_end | (owner >= 0))
    owned = np.flatnonzero(proof.owner >= 0)
    prompt = int(owned[-1]) + 1 if len(owned) else len(owner)  # a generation prompt is of no message
    visible = np.array([not character.isspace() for character in proof.text[prompt:]], np.bool_)
    wrong[prompt:] |= visible & (owner[prompt:] >= 0)
    if wrong.any():
        at = int(np.argmax(wrong))
        return f"tracing gives {_shown(proof.text, at)} to message {owner[at]}; it is of message {proof.owner[at]}"
    return ""


def _footers(proof: Proof, controls: ControlTokens) -> list[int]:
    """The positions of the first visible character after each content, if that is scaffold, and of the turn's stop.

    Some templates write the stop in the iteration of the next message, or after the loop, with more text before it::

        text     <r>4 degrees</r><|end|>      positions of   <   in </r>   and of   >   in <|end|>
    """
    ends = (np.flatnonzero((proof.content >= 0) & (np.diff(proof.content, append=-1) != 0)) + 1).tolist()
    after = [end + len(proof.text[end:]) - len(proof.text[end:].lstrip()) for end in ends]
    turn_ends = [*(np.flatnonzero(np.diff(proof.owner) != 0) + 1).tolist(), len(proof.text)]
    starts = [at for at in after if at < len(proof.text) and proof.content[at] < 0]
    turns = [(at, turn_ends[bisect_right(turn_ends, at)]) for at in starts]
    stops = [at + controls.first_stop(proof.text[at:end]) for at, end in turns]
    return [*starts, *(stop - 1 for stop, at in zip(stops, starts, strict=True) if stop > at)]


def _shown(text: str, at: int) -> str:
    return repr(text[at : at + 24])


# ---- features


def features(messages: Sequence[Message], tools: Any) -> Features:
    """Properties of conversations that a template may branch on: kinds of messages, and the order of their roles."""
    found = {"tools"} if tools else set()
    before = ""
    for message in messages:
        role, content = message["role"], message["content"]
        found.add(f"{role} after {before}" if before else f"{role} first")
        before = role
        if not isinstance(content, str):  # a list of parts, which templates write in a loop of its own
            found.add(f"parts of {role}")
        elif not content.strip():
            found.add(f"empty {role}" if "tool_calls" not in message else "calls alone")
        if len(message) <= 2:  # a role and a content, as most messages
            continue
        if reasoning_of(message) is not None:
            found.add("reasoning")
        calls = message.get("tool_calls") or []
        if calls:
            found.add("calls")
        if len(calls) > 1:
            found.add("many calls")
        if any(isinstance(call["function"].get("arguments"), str) for call in calls):
            found.add("arguments as text")
    return frozenset(found)


def _texts(message: Message) -> list[str]:
    content = message["content"]
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in content if isinstance(part.get("text"), str)]


# ---- probes

_WORDS: Final = ("what is near here?", 'A river, and\na "bridge".', "how far?", "Two miles.", "and then?", "A mill.")
_TOOLS: Final = (
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Looks up a place.",
            "parameters": {
                "type": "object",
                "properties": {"place": {"type": "string", "description": "Its name."}},
                "required": ["place"],
            },
        },
    },
)
_RESULT: Final = 'a "mill"\nby the river'


def _user(number: int = 0, **fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": _WORDS[2 * number], **fields}


def _assistant(number: int = 0, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": _WORDS[2 * number + 1], **fields}


def _call(number: int = 0, **arguments: Any) -> dict[str, Any]:
    arguments = arguments or {"place": "Oxbow Mill", "near": True}
    return {
        "type": "function",
        "id": f"call0000{number}",
        "function": {"name": "look_up", "arguments": arguments},
    }


def _text_call() -> dict[str, Any]:
    """A call whose arguments are JSON in a string."""
    return {**_call(), "function": {"name": "look_up", "arguments": '{"place": "Oxbow Mill", "near": true}'}}


def _tool(number: int = 0, content: str = _RESULT) -> dict[str, Any]:
    return {"role": "tool", "name": "look_up", "tool_call_id": f"call0000{number}", "content": content}


def _conversations() -> Mapping[str, list[dict[str, Any]]]:
    """Name -> a conversation without a system message; the name says what it tests."""
    a_call: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [_call()]}
    two_calls: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [_call(), _call(1, place="Weir")]}
    reasoning: dict[str, Any] = {"reasoning_content": "Consider the map first."}
    one_turn, two_turns = [_user(), _assistant()], [_user(), _assistant(), _user(1), _assistant(1)]
    return {
        "one turn": one_turn,
        "two turns": two_turns,
        "three turns": [*two_turns, _user(2), _assistant(2)],
        "ends with a user": [*one_turn, _user(1)],
        "only a user": [_user()],
        "reasoning": [_user(), _assistant(**reasoning)],
        "reasoning twice": [_user(), _assistant(**reasoning), _user(1), _assistant(1, **reasoning)],
        "a call": [_user(), a_call, _tool(), _assistant(1)],
        "a call and a text": [_user(), _assistant(tool_calls=[_call()]), _tool(), _assistant(1)],
        "a call, then a user": [_user(), a_call, _tool(), _assistant(1), _user(2), _assistant(2)],
        "a call after a turn": [*one_turn, _user(1), a_call, _tool(), _assistant(2)],
        "ends with a call": [_user(), a_call],
        "ends with a result": [_user(), a_call, _tool()],
        "two calls": [_user(), two_calls, _tool(), _tool(1, "a weir"), _assistant(1)],
        "call after call": [_user(), a_call, _tool(), {**a_call, "tool_calls": [_call(1)]}, _tool(1), _assistant(1)],
        "reasoning and a call": [_user(), {**a_call, **reasoning}, _tool(), _assistant(1, **reasoning)],
        "arguments as text": [_user(), {**a_call, "tool_calls": [_text_call()]}, _tool(), _assistant(1)],
        "a text and arguments as text": [_user(), _assistant(tool_calls=[_text_call()]), _tool(), _assistant(1)],
        "a text and two calls": [_user(), {**two_calls, "content": _WORDS[3]}, _tool(), _tool(1), _assistant(1)],
        "a result, then a user": [_user(), a_call, _tool(), _user(1), _assistant(1)],
        "an empty answer": [_user(), {"role": "assistant", "content": ""}],
        "a system message later": [*one_turn, {"role": "system", "content": "Now be brief."}, _user(1), _assistant(1)],
        "a system message last": [_user(), {"role": "system", "content": "Now be brief."}, _assistant(1)],
        "an empty result": [_user(), a_call, _tool(0, ""), _assistant(1)],
        "an empty system message": [{"role": "system", "content": ""}, *one_turn],
        "an empty question": [{"role": "user", "content": ""}, _assistant(), _user(1), _assistant(1)],
        "white space around": [
            {"role": "user", "content": "  how far? \n"},
            {"role": "assistant", "content": "\n Two miles. "},
        ],
        "answer after answer": [*one_turn, _assistant(1)],
        "question after question": [_user(), _user(1), _assistant(1)],
        "assistant first": [_assistant(), _user(1), _assistant(1)],
        "parts": [
            {"role": "user", "content": [{"type": "text", "text": _WORDS[0]}]},
            {"role": "assistant", "content": [{"type": "text", "text": _WORDS[1]}]},
        ],
        "parts of users": [{"role": "user", "content": [{"type": "text", "text": _WORDS[0]}]}, _assistant()],
        "markup": [
            {"role": "user", "content": "is <b>x</b> & y?"},
            {"role": "assistant", "content": "<think>\nlet me see\n</think>\n\nIt is {x}."},
        ],
    }


@cache
def probes() -> list[tuple[Probe, Features]]:
    """All probes with their features: each conversation with and without a system message and tools."""
    found = []
    for name, messages in _conversations().items():
        for system in ([], [{"role": "system", "content": "Answer in few words."}]):
            for tools in (None, _TOOLS):
                title = name + (", system" if system else "") + (", tools" if tools else "")
                conversation = (*system, *messages)
                found.append((Probe(title, conversation, tools), features(normalise(list(conversation)), tools)))
    return found


def literal_probe(literal: str) -> Probe:
    """A conversation whose texts contain a string that the template searches for."""
    texts = (f"one {literal} two", f"three {literal} four", f"{literal} five", "six")
    roles = ("user", "assistant", "user", "assistant")
    messages = ({"role": role, "content": text} for role, text in zip(roles, texts, strict=True))
    return Probe(f"contents with {literal!r}", tuple(messages))
