"""A report on a chat template: how the probe conversations of its certificate are attributed, and which are unproven.

::

    status       attribution of a rendering          by
    certified    full                                tracing, which agrees with the oracle
    proven       full                                the oracle, because tracing is wrong there
    partial      "partial: ...", or an error         none; `reason` says what could not be proven
    refused      none: the template refuses          -

A kind of conversation is what a probe tries ("a call", "two turns"); most are tried with and without a system message
and tools.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from niels_gpt.errors import MessageError, TemplateError
from niels_gpt.messages import normalise
from niels_gpt.progress import SILENT, Progress
from niels_gpt.renderers.template.proofs.certificate import Verdict
from niels_gpt.renderers.template.proofs.probes import Probe, literal_probe, probes
from niels_gpt.renderers.template.proofs.proof import PREFIX, SampledSpan
from niels_gpt.renderers.template.proofs.substitution import Unproven
from niels_gpt.renderers.template.renderer import TemplateRenderer
from niels_gpt.renderers.types import Piece

Status = Literal["certified", "proven", "partial", "refused"]
STATUSES: Final[tuple[Status, ...]] = ("certified", "proven", "partial", "refused")
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
        reason: why tracing is not used, why nothing is proven, or why the template refuses; empty if certified.
        verdict: that of the certificate, with the stops of the sampled spans and the rules by which they start.
        pieces: the rendering with its attribution; empty if the template refuses.
    """

    probe: Probe
    status: Status
    reason: str
    verdict: Verdict
    pieces: list[Piece]

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
            "stops": sorted(self.verdict.stops),
            "rules": sorted(self.verdict.rules),
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
    """

    name: str
    template_sha256: str
    results: list[ProbeResult]
    stop_tokens: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[Status, int]:
        """How many probes have each status."""
        found = Counter(result.status for result in self.results)
        return {status: found[status] for status in STATUSES}

    @property
    def passed(self) -> bool:
        """Whether the attribution of every rendering is full, and there is at least one rendering."""
        counts = self.counts
        return not counts["partial"] and counts["certified"] + counts["proven"] > 0

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
        return dict(Counter(rule for result in self.results for rule in sorted(result.verdict.rules)).most_common())

    @property
    def stops(self) -> dict[str, int]:
        """The control tokens that end sampled spans, "" for an end without one -> the number of probes."""
        return dict(Counter(stop for result in self.results for stop in sorted(result.verdict.stops)).most_common())

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
                if status != "certified"
            },
            "rules": self.rules,
            "stop_tokens": list(self.stop_tokens),
            "stops": self.stops,
            "prompt_is_prefix": self.prompt_is_prefix,
            "probes": [result.to_json() for result in self.results],
        }


def probes_of(renderer: TemplateRenderer) -> list[Probe]:
    """All probes of a template: those for every template, and one for each string that it searches contents for."""
    return [*(probe for probe, _ in probes()), *map(literal_probe, renderer.certificate.literals)]


def report_on(renderer: TemplateRenderer, name: str = "", progress: Progress = SILENT) -> TemplateReport:
    """Render all probes and return the results; takes about as long as 1,000 renderings."""
    every = probes_of(renderer)
    progress.begin("probes", total=len(every), unit="probes")
    results = []
    for probe in every:
        results.append(result_of(renderer, probe))
        progress.advance(1)
    sha256 = renderer.fingerprints["template_sha256"]
    return TemplateReport(name or renderer.encoder.name, sha256, results, renderer.stop_tokens)


def result_of(renderer: TemplateRenderer, probe: Probe) -> ProbeResult:
    """Render one probe as users would, and judge the result."""
    verdict = renderer.certificate.verdict(renderer, probe)
    if verdict.outcome == "refused":
        return ProbeResult(probe, "refused", verdict.reason, verdict, [])
    try:
        out = renderer.emit(normalise(list(probe.messages)), tools=None if probe.tools is None else list(probe.tools))
    except MessageError as error:
        return ProbeResult(probe, "refused", str(error), verdict, [])
    except TemplateError as error:  # a control token whose origin is not known
        return ProbeResult(probe, "partial", str(error), verdict, [])
    if out.attribution != "full" or verdict.outcome == "unproven":
        reason = out.attribution.removeprefix("partial: ") if out.attribution != "full" else verdict.reason
        return ProbeResult(probe, "partial", reason, verdict, out.pieces())
    return ProbeResult(
        probe, "certified" if verdict.outcome == "agrees" else "proven", verdict.reason, verdict, out.pieces()
    )


def spans_of(renderer: TemplateRenderer, probe: Probe) -> list[SampledSpan]:
    """The sampled spans of a probe's rendering, as the oracle proves them; none where it proves nothing."""
    tools = None if probe.tools is None else list(probe.tools)
    try:
        proof = renderer.proof(normalise(list(probe.messages)), tools, False)
    except (Unproven, MessageError):
        return []
    found, added = [], 0  # `added`: how many characters of `final_stop` are before a place; the proof has none
    for span in proof.sampled:
        start = span.start + added
        added += len(span.stop_token) if span.message in proof.added_stops else 0
        found.append(replace(span, start=start, stop=span.stop + added))
    return found


def runs(pieces: Sequence[Piece]) -> Iterator[tuple[int, list[Piece]]]:
    """`(message, pieces)` for each run of neighbouring pieces of one message; -1 for pieces of none."""
    start = 0
    for at in range(1, len(pieces) + 1):
        if at == len(pieces) or pieces[at].msg != pieces[start].msg:
            yield pieces[start].msg, list(pieces[start:at])
            start = at
