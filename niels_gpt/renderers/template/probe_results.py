"""A report on a chat template: what is proven of the attribution of probe conversations.

Each probe is judged by both ways: its rendering as users get it must have the facts that the oracle proves of the
conversation itself::

    status       attribution of the rendering
    proven       full, and the oracle proves the same
    partial      "partial: ...", or the two ways differ; `reason` says what could not be proven
    refused      none: there is no rendering; `reason` is what the template, or its sandbox, says
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from niels_gpt.errors import MessageError, TemplateError
from niels_gpt.messages import normalise
from niels_gpt.progress import SILENT, Progress
from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.kinds import SAMPLED, Kind, pack
from niels_gpt.renderers.template.isolation import IsolationError
from niels_gpt.renderers.template.proofs.probes import Probe, literal_probe, probes
from niels_gpt.renderers.template.proofs.proof import Proof, SampledSpan, Unproven
from niels_gpt.renderers.template.renderer import TemplateRenderer
from niels_gpt.renderers.template.strings import template_strings
from niels_gpt.renderers.types import Piece

Status = Literal["proven", "partial", "refused"]
STATUSES: Final[tuple[Status, ...]] = ("proven", "partial", "refused")
# Quoted text and numbers, which differ between two probes that have the same reason.
_DETAILS: Final = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\d+")
_LACKED: Final = re.compile(r"ends without its stop '(.+?)'")


@dataclass(frozen=True)
class ProbeResult:
    """The result of one probe conversation.

    Attributes:
        probe: the conversation.
        status: one of `STATUSES`, see the module.
        reason: why something is not proven, or why the template refuses; "" if all is proven.
        route: how the rendering was attributed, see `Notes`.
        spans: what the model emits, as the oracle proves it; empty if it proves nothing.
        pieces: the rendering with its attribution; empty if the template refuses.
    """

    probe: Probe
    status: Status
    reason: str = ""
    route: str = ""
    spans: tuple[SampledSpan, ...] = ()
    pieces: tuple[Piece, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The result as JSON, with the text in pieces of one message and kind."""
        return {
            "probe": self.probe.name,
            "status": self.status,
            "reason": self.reason,
            "route": self.route,
            "stops": sorted({span.stop_token for span in self.spans}),
            "rules": sorted({span.rule for span in self.spans} - {""}),
            "pieces": [
                {"text": text, "message": message, "kind": kind.name.lower()} for text, message, kind in self.pieces
            ],
        }


@dataclass(frozen=True)
class TemplateReport:
    """The results of all probes.

    Attributes:
        name: the tokenizer, or the template's file.
        template_sha256: of the template's text.
        results: one for each probe, in the order of the probes.
        stop_tokens: the spellings that end a turn, see `TemplateRenderer.stop_tokens`.
        final_stop: a value of the option of this name with which fewer probes are partial; "" if there is none.
    """

    name: str
    template_sha256: str
    results: list[ProbeResult]
    stop_tokens: tuple[str, ...] = ()
    final_stop: str = ""

    @property
    def counts(self) -> dict[Status, int]:
        """How many probes have each status."""
        return {status: len(self.of(status)) for status in STATUSES}

    @property
    def passed(self) -> bool:
        """Whether the attribution of every rendering is full, and there is at least one rendering."""
        return not self.of("partial") and bool(self.of("proven"))

    def of(self, status: Status) -> list[ProbeResult]:
        """The results with a status."""
        return [result for result in self.results if result.status == status]

    def reasons(self, status: Status) -> dict[str, list[ProbeResult]]:
        """The reasons of a status and the probes with each, the most frequent first.

        Quoted text and numbers do not distinguish reasons; those of the first probe are there.
        """
        alike: dict[str, list[ProbeResult]] = {}
        for result in self.of(status):
            alike.setdefault(_DETAILS.sub("_", result.reason), []).append(result)
        return {some[0].reason: some for some in sorted(alike.values(), key=len, reverse=True)}

    @property
    def rules(self) -> dict[str, int]:
        """The rules by which sampled spans start (`proof.PREFIX` and others) -> the number of probes with this rule."""
        return _counted({span.rule for span in result.spans if span.rule} for result in self.results)

    @property
    def stops(self) -> dict[str, int]:
        """The control tokens that end sampled spans, "" for an end without one -> the number of probes."""
        return _counted({span.stop_token for span in result.spans} for result in self.results)

    def to_json(self) -> dict[str, Any]:
        """The report as JSON."""
        reasons = {
            status: {text: [one.probe.name for one in some] for text, some in self.reasons(status).items()}
            for status in STATUSES[1:]
        }
        return {
            "name": self.name,
            "template_sha256": self.template_sha256,
            "passed": self.passed,
            "counts": self.counts,
            "reasons": reasons,
            "rules": self.rules,
            "stop_tokens": list(self.stop_tokens),
            "stops": self.stops,
            "final_stop": self.final_stop,
            "probes": [result.to_json() for result in self.results],
        }


def _counted(sets: Iterable[set[str]]) -> dict[str, int]:
    return dict(Counter(text for one in sets for text in sorted(one)).most_common())


def report_on(renderer: TemplateRenderer, name: str = "", progress: Progress = SILENT) -> TemplateReport:
    """Render all probes by both ways; takes about as long as 5,000 renderings.

    The probes are those for every template, and one for each string that this one searches contents for.
    """
    every = [*probes(), *map(literal_probe, template_strings(renderer.source).searched)]
    progress.begin("probes", total=len(every), unit="probes")
    results = []
    for probe in every:
        results.append(result_of(renderer, probe))
        progress.advance(1)
    sha256, proposed = renderer.fingerprints["template_sha256"], _proposed_stop(renderer, results)
    return TemplateReport(name or renderer.encoder.name, sha256, results, renderer.stop_tokens, proposed)


def result_of(renderer: TemplateRenderer, probe: Probe) -> ProbeResult:
    """Render one probe as users would, and compare with what the oracle proves of it."""
    messages, tools = normalise(list(probe.messages)), None if probe.tools is None else list(probe.tools)
    try:
        out = renderer.emit(messages, tools=tools)
    except IsolationError:  # the process ended: that concerns the template as a whole, and not this probe
        raise
    except (MessageError, TemplateError) as error:
        return ProbeResult(probe, "refused", str(error))
    reason = "" if out.attribution == "full" else out.attribution.removeprefix("partial: ")
    spans: tuple[SampledSpan, ...] = ()
    try:
        proof = renderer.proof(messages, tools=tools)
    except Unproven as error:
        reason = reason or str(error)
    else:
        spans = tuple(proof.sampled)
        reason = reason or str(next(iter(proof.problems), "")) or _difference(renderer.final_stop, out, proof)
    return ProbeResult(probe, "partial" if reason else "proven", reason, out.notes.route, spans, tuple(out.pieces()))


def _difference(final_stop: str, out: Emitter, proof: Proof) -> str:
    """Where a rendering's attribution is not the one that the oracle proves; "" if it is."""
    text, expected = "".join(out.texts), proof.states
    for place, message in reversed(proof.stops):  # the rendering has the stop that the option `final_stop` writes
        expected = np.insert(expected, place, [pack(message, Kind.STOP)] * len(final_stop))
    found = np.repeat(np.array(out.facts, np.int64), [len(piece) for piece in out.texts])
    if len(found) != len(expected):
        return f"one way gives a text of {len(found)} characters, the other of {len(expected)}"
    # A proof says nothing of labels, whose kind is another one.
    differs = (found >> 4 != expected >> 4) | ((found ^ expected) & SAMPLED != 0)
    differs |= (found & 15 == Kind.STOP) != (expected & 15 == Kind.STOP)
    if not differs.any():
        return ""
    at = int(np.argmax(differs))
    one, other = (f"{Kind(fact & 15).name.lower()} of message {fact >> 4}" for fact in (found[at], expected[at]))
    return f"the two ways differ at {text[at : at + 20]!r}: {one} by letters, {other} by proof"


def _proposed_stop(renderer: TemplateRenderer, results: Sequence[ProbeResult]) -> str:
    """A value of the option `final_stop` with which a partial probe is proven; "" if there is none.

    It is the stop that the template writes after other answers (Qwen 1.5), or the tokenizer's eos where it writes none.
    """
    lacking = [result for result in results if result.status == "partial" and " stop" in result.reason]
    named = Counter(stop for result in lacking for stop in _LACKED.findall(result.reason))
    candidates = [*(stop for stop, _ in named.most_common()), *renderer.stop_tokens]
    token = next((stop for stop in candidates if stop in renderer.encoder.control_ids), "")
    if renderer.final_stop or not token:
        return ""
    closed = renderer.with_final_stop(token)
    return token if any(result_of(closed, result.probe).status == "proven" for result in lacking) else ""
