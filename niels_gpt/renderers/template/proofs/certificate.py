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

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from niels_gpt.errors import MessageError, TemplateError
from niels_gpt.messages import Message, normalise
from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.template.attribution import ControlTokens
from niels_gpt.renderers.template.isolation import IsolationError
from niels_gpt.renderers.template.proofs.disagreements import disagreement
from niels_gpt.renderers.template.proofs.probes import Features, Probe, features, literal_probe, probes, texts_in
from niels_gpt.renderers.template.proofs.proof import Proof
from niels_gpt.renderers.template.proofs.substitution import Unproven

Outcome = Literal["agrees", "differs", "unproven", "refused"]

MOST_RENDERED: Final = 300  # texts, of a few kilobytes each, that a certificate keeps between two probes


class Template(Protocol):
    """What a certificate needs of a `TemplateRenderer`."""

    controls: ControlTokens

    def traced(self, messages: list[Message], tools: Any, gen: bool) -> Emitter:
        """The attribution by tracing."""

    def proof(self, messages: list[Message], tools: Any, gen: bool, rendered: dict[bytes, str] | None = None) -> Proof:
        """The attribution by the oracle; known texts are taken from `rendered`, and new ones are put there."""


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
            if any(literal in text for message in messages for text in texts_in(message)):
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
    written = frozenset(messages[fact >> 4]["role"] for fact in traced.facts if fact >= 0)
    return Verdict("agrees", "", stops, rules, written)
