"""A report on a chat template: how probe conversations are attributed by both ways, and which are unproven.

::

    status       attribution of a rendering
    proven       full, by letters and remembered gaps, and the oracle proves the same of the conversation itself
    partial      "partial: ...", or the two ways differ; `reason` says what could not be proven
    refused      none: the template refuses

A kind of conversation is what a probe tries ("a call", "two turns"); most are tried with and without a system message
and tools.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np

from niels_gpt.errors import MessageError, TemplateError
from niels_gpt.messages import Message, normalise
from niels_gpt.progress import SILENT, Progress
from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.kinds import SAMPLED
from niels_gpt.renderers.template.divisions import states_of
from niels_gpt.renderers.template.proofs.probes import Probe, literal_probe, probes
from niels_gpt.renderers.template.proofs.proof import PREFIX, Proof, SampledSpan
from niels_gpt.renderers.template.proofs.substitution import Unproven
from niels_gpt.renderers.template.renderer import TemplateRenderer
from niels_gpt.renderers.template.strings import template_strings
from niels_gpt.renderers.types import Piece

Status = Literal["proven", "partial", "refused"]
STATUSES: Final[tuple[Status, ...]] = ("proven", "partial", "refused")
_VARIANTS: Final = {
    "": "alone",
    ", system": "with a system message",
    ", tools": "with tools",
    ", system, tools": "with both",
}
# Quoted text and numbers, which differ between two probes that have the same reason.
_DETAILS: Final = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\d+")


@dataclass(frozen=True)
class ProbeResult:
    """The result of one probe conversation, for users.

    Attributes:
        probe: the conversation.
        status: one of `STATUSES`, see the module.
        reason: why something is not proven, or why the template refuses; empty if all is proven.
        route: how the rendering was attributed, see `Notes`.
        spans: the sampled spans as the oracle proves them, in characters of the pieces; none if it proves nothing.
        pieces: the rendering with its attribution; empty if the template refuses.
    """

    probe: Probe
    status: Status
    reason: str = ""
    route: str = ""
    spans: tuple[SampledSpan, ...] = ()
    pieces: tuple[Piece, ...] = ()

    @property
    def stops(self) -> frozenset[str]:
        """The control tokens that end the sampled spans, "" for an end without one."""
        return frozenset(span.stop_token for span in self.spans)

    @property
    def rules(self) -> frozenset[str]:
        """The rules by which the starts of the sampled spans were found (`proof.PREFIX` and others)."""
        return frozenset(span.rule for span in self.spans if span.rule)

    @property
    def kind(self) -> str:
        """The kind of conversation that the probe tests: its name without "system" and "tools"."""
        return self.probe.name.removesuffix(", tools").removesuffix(", system")

    @property
    def variant(self) -> str:
        """Whether the probe has a system message and tools, in words."""
        return _VARIANTS[self.probe.name.removeprefix(self.kind)]

    def to_json(self) -> dict[str, Any]:
        """The result as JSON, with the text in pieces of equal attribution."""
        return {
            "probe": self.probe.name,
            "status": self.status,
            "reason": self.reason,
            "stops": sorted(self.stops),
            "rules": sorted(self.rules),
            "pieces": [
                {"text": piece.text, "message": piece.msg, "sampled": piece.sampled, "content": piece.content}
                for piece in self.pieces
            ],
        }


@dataclass(frozen=True)
class Reason:
    """A reason that one or more probes have.

    Attributes:
        text: the reason, with the details of the first probe.
        kinds: the kinds of conversations, as `TemplateReport.kinds` writes them.
        results: the probes themselves.
    """

    text: str
    kinds: list[str]
    results: list[ProbeResult]

    @property
    def count(self) -> int:
        """How many probes have it."""
        return len(self.results)


@dataclass(frozen=True)
class TemplateReport:
    """The results of all probes.

    Attributes:
        name: the tokenizer, or the template's file.
        template_sha256: of the template's text.
        results: one for each probe, in the order of the probes.
        stop_tokens: the spellings that end a turn, see `TemplateRenderer.stop_tokens`.
        final_stop: the value of the option of this name with which fewer probes are partial; "" for none.
    """

    name: str
    template_sha256: str
    results: list[ProbeResult]
    stop_tokens: tuple[str, ...] = ()
    final_stop: str = ""

    @property
    def counts(self) -> dict[Status, int]:
        """How many probes have each status."""
        found = Counter(result.status for result in self.results)
        return {status: found[status] for status in STATUSES}

    @property
    def passed(self) -> bool:
        """Whether the attribution of every rendering is full, and there is at least one rendering."""
        counts = self.counts
        return not counts["partial"] and counts["proven"] > 0

    def of(self, status: Status) -> list[ProbeResult]:
        """The results with a status."""
        return [result for result in self.results if result.status == status]

    def kinds(self, results: Sequence[ProbeResult]) -> list[str]:
        """The kinds of some results; with the variants in parentheses if these are not all of the kind."""
        return [
            f"{kind} ({variants})" if variants else kind
            for variants, kinds in self.kinds_by_variants(results).items()
            for kind in kinds
        ]

    def kinds_by_variants(self, results: Sequence[ProbeResult]) -> dict[str, list[str]]:
        """Variants, such as "with tools, with both" -> the kinds with just these among the results; "" for all."""
        of_kind = Counter(result.kind for result in self.results)
        # "a call" with two of its four variants and "two turns" with all four become
        # {"": ["two turns"], "with tools, with both": ["a call"]}.
        variants: dict[str, list[str]] = {}
        for result in results:
            variants.setdefault(result.kind, []).append(result.variant)
        found: dict[str, list[str]] = {"": []}
        for kind, some in variants.items():
            found.setdefault("" if len(some) == of_kind[kind] else ", ".join(some), []).append(kind)
        return {names: kinds for names, kinds in found.items() if kinds}

    def reasons(self, status: Status) -> list[Reason]:
        """The reasons of a status, the most frequent first. Quoted text and numbers do not distinguish them."""
        alike: dict[str, list[ProbeResult]] = {}
        for result in self.of(status):
            alike.setdefault(_DETAILS.sub("_", result.reason), []).append(result)
        found = [Reason(some[0].reason, self.kinds(some), some) for some in alike.values()]
        return sorted(found, key=lambda reason: -reason.count)  # stable: then in the order of the probes

    @property
    def rules(self) -> dict[str, int]:
        """The rules by which sampled spans start -> the number of probes with this rule."""
        return dict(Counter(rule for result in self.results for rule in sorted(result.rules)).most_common())

    @property
    def stops(self) -> dict[str, int]:
        """The control tokens that end sampled spans, "" for an end without one -> the number of probes."""
        return dict(Counter(stop for result in self.results for stop in sorted(result.stops)).most_common())

    @property
    def prompt_is_prefix(self) -> bool:
        """Whether every sampled span begins exactly where the generation prompt ends."""
        return set(self.rules) == {PREFIX}

    def to_json(self) -> dict[str, Any]:
        """The report as JSON."""
        return {
            "name": self.name,
            "template_sha256": self.template_sha256,
            "passed": self.passed,
            "counts": self.counts,
            "kinds": {status: self.kinds(self.of(status)) for status in STATUSES},
            "reasons": {
                status: [
                    {"text": reason.text, "count": reason.count, "kinds": reason.kinds}
                    for reason in self.reasons(status)
                ]
                for status in STATUSES
                if status != "proven"
            },
            "final_stop": self.final_stop,
            "rules": self.rules,
            "stop_tokens": list(self.stop_tokens),
            "stops": self.stops,
            "prompt_is_prefix": self.prompt_is_prefix,
            "probes": [result.to_json() for result in self.results],
        }


def probes_of(renderer: TemplateRenderer) -> list[Probe]:
    """All probes of a template: those for every template, and one for each string that it searches contents for."""
    searched = template_strings(renderer.source).searched
    return [*(probe for probe, _ in probes()), *map(literal_probe, searched)]


def report_on(renderer: TemplateRenderer, name: str = "", progress: Progress = SILENT) -> TemplateReport:
    """Render all probes by both ways and return the results; takes about as long as 5,000 renderings."""
    every = probes_of(renderer)
    progress.begin("probes", total=len(every), unit="probes")
    results = []
    for probe in every:
        results.append(result_of(renderer, probe))
        progress.advance(1)
    sha256 = renderer.fingerprints["template_sha256"]
    proposed = proposed_stop(renderer, results)
    return TemplateReport(name or renderer.encoder.name, sha256, results, renderer.stop_tokens, proposed)


def proposed_stop(renderer: TemplateRenderer, results: Sequence[ProbeResult]) -> str:
    """The tokenizer's eos, if with it as `final_stop` some probe is proven whose answers lack a stop; else ""."""
    lacking = [result for result in results if result.status == "partial" and " stop" in result.reason]
    token = next((stop for stop in renderer.stop_tokens if stop in renderer.encoder.control_ids), "")
    if not lacking or renderer.final_stop or not token:
        return ""
    closed = renderer.with_final_stop(token)
    return token if any(result_of(closed, result.probe).status == "proven" for result in lacking) else ""


def result_of(renderer: TemplateRenderer, probe: Probe) -> ProbeResult:
    """Render one probe as users would, and compare with what the oracle proves of it."""
    messages, tools = normalise(list(probe.messages)), None if probe.tools is None else list(probe.tools)
    try:
        out = renderer.emit(messages, tools=tools)
    except MessageError as error:
        return ProbeResult(probe, "refused", str(error))
    except TemplateError as error:  # the template cannot be used at all
        return ProbeResult(probe, "partial", str(error))
    reason = out.attribution.removeprefix("partial: ") if out.attribution != "full" else ""
    spans: tuple[SampledSpan, ...] = ()
    try:
        proof = renderer.proof(messages, tools=tools)
    except Unproven as error:
        reason = reason or str(error)
    else:
        reason = reason or str(next(iter(proof.problems), "")) or difference(out, proof, messages)
        spans = _spans_of(proof)
    return ProbeResult(probe, "partial" if reason else "proven", reason, out.notes.route, spans, tuple(out.pieces()))


def difference(out: Emitter, proof: Proof, messages: Sequence[Message]) -> str:
    """Where a rendering's attribution is not the one that the oracle proves; "" if it is."""
    expected = states_of(proof, messages)
    # Without the stops that `final_stop` adds, of which the proof has no characters.
    inserted = {span.stop for span in proof.sampled if span.message in proof.added_stops}
    kept, at = [], 0
    for text, fact in zip(out.texts, out.facts, strict=True):
        if at in inserted and not proof.text.startswith(text, at):
            inserted.discard(at)
            continue
        kept.append((len(text), fact))
        at += len(text)
    found = np.repeat([fact for _, fact in kept], [length for length, _ in kept])
    if len(found) != len(expected):
        return "the two ways give texts of different lengths"
    differs = ((found >> 4) != (expected >> 4)) | ((found & SAMPLED) != (expected & SAMPLED))
    if not differs.any():
        return ""
    place = int(np.argmax(differs))
    one, other = int(found[place]) >> 4, int(expected[place]) >> 4
    what = f"message {one}, and of message {other}" if one != other else "what is sampled, and not"
    return f"the two ways differ at {proof.text[place : place + 20]!r}: it is of {what} by the proof"


def _spans_of(proof: Proof) -> tuple[SampledSpan, ...]:
    """The sampled spans, in characters of a rendering that also has the stops of `final_stop`."""
    found, added = [], 0
    for span in proof.sampled:
        start = span.start + added
        added += len(span.stop_token) if span.message in proof.added_stops else 0
        found.append(replace(span, start=start, stop=span.stop + added))
    return tuple(found)


def runs(pieces: Sequence[Piece]) -> Iterator[tuple[int, list[Piece]]]:
    """`(message, pieces)` for each run of neighbouring pieces of one message; -1 for pieces of none."""
    start = 0
    for at in range(1, len(pieces) + 1):
        if at == len(pieces) or pieces[at].msg != pieces[start].msg:
            yield pieces[start].msg, list(pieces[start:at])
            start = at
