"""`diagnose`: from whatever is given to a report."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import chain, islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from niels_gpt.doctor.chats import ChatRow
from niels_gpt.doctor.layout import Layout, sentinel_layout
from niels_gpt.doctor.learning import AnyRenderer, bare, learn
from niels_gpt.doctor.probes import PROBES
from niels_gpt.doctor.reading import Opened, Slice, is_tokenizer, open_input
from niels_gpt.doctor.report import Finding, Report, Silenced
from niels_gpt.doctor.rules import RULES, calls, data, drift, masks, rule_of, tokenizers, turns
from niels_gpt.doctor.stored import sentinels_of, vocab_of
from niels_gpt.doctor.summaries import details_of, summary_of
from niels_gpt.doctor.tally import Tally
from niels_gpt.doctor.view import Scope
from niels_gpt.doctor.work import Work
from niels_gpt.errors import TemplateError, UsageError
from niels_gpt.inputs import Rejected
from niels_gpt.messages import normalise
from niels_gpt.progress import SILENT, Progress
from niels_gpt.renderers.default import DefaultRenderer
from niels_gpt.renderers.loss import LossOn
from niels_gpt.renderers.opening import open_renderer
from niels_gpt.renderers.registry import create_renderer
from niels_gpt.renderers.template import load_template
from niels_gpt.sources.chat_file import conversation_of_record
from niels_gpt.tokenizer.opening import open_encoder
from niels_gpt.tokenizer.protocol import PieceEncoder

EVIDENCE: Final = 5
SEED: Final = 0


def diagnose(
    source: Any,
    other: Any = None,
    *,
    tokenizer: Any = None,
    template: str | Path | None = None,
    renderer: Any = None,
    date: str | None = None,
    loss_on: LossOn | None = None,
    split: str | None = None,
    form: str | None = None,
    sample: int | None = None,
    seed: int = SEED,
    max_length: int | None = None,
    workers: int = 1,
    silence: Mapping[str, str] | None = None,
    evidence: int = EVIDENCE,
    progress: Progress = SILENT,
) -> Report:
    """Look for what is wrong.

    Args:
        source: rows in memory (dicts, conversations or `input_ids`), a file of them, a dataset directory, one of our
            caches, a hub dataset, a tokenizer directory.
        other: a second tokenizer directory or template file: then the two are compared (drift).
        tokenizer: of the rows: whatever `open_encoder` takes.
        template: a template's text, or a file with it. renderer: a family's name, a config, or a renderer.
        loss_on: which tokens of conversations are trained.
        split: of a hub dataset or of ours. form: the dialect of conversations.
        sample: look at so many rows only, drawn by `seed`.
        max_length: the longest row that training takes.
        workers: processes. With more than one, a script needs `if __name__ == "__main__"`.
        silence: rule -> why it is accepted.
        evidence: how many places of each rule are kept.

    Returns:
        The report; the same whatever the number of workers.

    Raises:
        UsageError: arguments that do not go together, or no such rule. DataError: what cannot be read at all.
    """
    for name, reason in (silence or {}).items():
        rule_of(name)
        if not reason.strip():
            raise UsageError(f"rule {name} is silenced without a reason; say why: {name}=REASON")
    if other is not None:
        tally, told = _compared(source, other, tokenizer, renderer, date, evidence)
        return _report(tally, told, {}, silence or {})
    if isinstance(source, str | Path) and is_tokenizer(Path(source)):
        tally, told = _tokenizer_alone(source, template, renderer, date, evidence)
        return _report(tally, told, {}, silence or {})
    progress.begin("looking into the input")
    opened = open_input(source, split=split, form=form)
    kit = Kit.of(opened, tokenizer, template, renderer, date)
    work = kit.work(opened, loss_on or LossOn(), max_length, evidence)
    tally = Tally(evidence)
    progress.begin(f"examining {opened.name}", total=sample or opened.count(), unit="rows")
    for part in _examined(work, opened.slices(sample, seed), workers):
        tally.merge(part)
        progress.advance(part.sums["rows"])
    progress.begin("concluding")
    kit.conclude(tally, opened)
    told = {"kind": opened.kind, "name": opened.name, "form": opened.form, **kit.told}
    if opened.kind == "chats":
        told["dialect"] = opened.dialect
    if sample is not None:
        told |= {"sample": sample, "seed": seed}
    return _report(tally, told, kit.skipped(opened, tally), silence or {})


class Kit:
    """Encoder, renderer and layout of a diagnosis, as far as they are known.

    Attributes:
        told: what reports say of them.
    """

    def __init__(self, encoder: PieceEncoder | None, renderer: AnyRenderer | None, layout: Layout | None) -> None:
        self.encoder, self.renderer, self.layout = encoder, renderer, layout
        self.sentinels: dict[str, int] = {}
        self.told: dict[str, Any] = {}
        if encoder is not None:
            name = getattr(renderer, "name", "template") if renderer is not None else "none"
            self.told = {"tokenizer": encoder.name, "renderer": name}

    @classmethod
    def of(cls, opened: Opened, tokenizer: Any, template: Any, renderer: Any, date: str | None) -> Kit:
        """For an input; one of our own datasets brings its sentinels with it."""
        if tokenizer is not None or _is_renderer(renderer):
            encoder, made = _renderer(tokenizer, template, renderer, date)
            kit = cls(encoder, made, learn(made) if made is not None else bare(encoder))
            if encoder.engine == "sentencepiece":
                kit.sentinels = dict(zip(("sys", "usr", "asst", "eot"), encoder.control_ids.values(), strict=True))
            return kit
        if template is not None or renderer is not None:
            raise UsageError("a template or renderer without a tokenizer; pass --tokenizer (tokenizer=) too")
        kit = cls(None, None, None)
        if opened.form in ("cache", "episodes"):
            special = sentinels_of(opened.files[0], opened.form)
            size = vocab_of(opened.files[0], opened.form)
            if special and size:
                kit.layout, kit.sentinels = sentinel_layout(special, size), special
        return kit

    def work(self, opened: Opened, on: LossOn, max_length: int | None, keep: int) -> Work:
        """What workers are given."""
        if max_length is not None and max_length < 2:
            raise UsageError(f"max_length is {max_length}; expected at least 2 tokens")
        layout = self.layout
        spell: Callable[[int], str] = str
        if self.encoder is not None:
            spell = Speller(self.encoder)
        elif layout is not None:
            spell = Named(layout.names)
        return Work(
            opened=opened,
            scope=Scope(layout, spell, max_length, self.sentinels),
            keep=keep,
            renderer=self.renderer if opened.kind == "chats" else None,
            on=on,
            controls=tuple(self.encoder.control_ids) if self.encoder is not None else (),
            bad_forms=calls.bad_forms(self.renderer) if self.renderer is not None and opened.kind == "chats" else {},
        )

    def conclude(self, tally: Tally, opened: Opened) -> None:
        """What only the whole input shows."""
        turns.finish(tally)
        masks.finish(tally)
        calls.finish(tally)
        data.duplicates(tally, opened.name)
        share = masks.share(tally)
        if share is not None and not masks.LEAST_SHARE <= share <= masks.MOST_SHARE:
            tally.add("loss-share", [], count=tally.sums["plain real tokens"], rows=tally.sums["rows"])
        if self.encoder is not None and self.layout is not None:
            tokenizers.check(self.encoder, self.renderer, self.layout, tally, alone=False)
        if self.layout is not None and self.renderer is not None and not self.layout.trusted:
            tally.add("format-not-understood", [], count=1, rows=0)

    def skipped(self, opened: Opened, tally: Tally) -> dict[str, str]:
        """The rules that could not be judged, and why."""
        if opened.kind == "chats":
            if self.renderer is not None:
                return {}
            return {rule.id: "no tokenizer was given" for rule in (*masks.RULES, *turns.RULES)}
        if self.layout is None:
            return {rule.id: "no tokenizer was given" for rule in (*masks.RULES, *turns.RULES) if rule.id not in PLAIN}
        if not self.layout.trusted:
            why = self.layout.doubt
            return {rule.id: why for rule in (*masks.RULES, *turns.RULES) if rule.id not in PLAIN}
        if not tally.sums["rows with a mask"]:
            return {rule.id: "the data has no mask" for rule in masks.RULES}
        return {}


# What can be judged without knowing turns.
PLAIN: Final = ("mask-all-zero", "mask-all-one", "padding-trained", "loss-share", "double-bos", "format-not-understood")


class Speller:
    """An id as the text that a tokenizer gives it; holds the texts, so that workers need no tokenizer."""

    def __init__(self, encoder: PieceEncoder) -> None:
        self._spelt = encoder.token_bytes(range(encoder.vocab_size))

    def __call__(self, token: int) -> str:
        """The text; ids outside the vocabulary as numbers."""
        return self._spelt[token].decode("utf-8", "replace") if 0 <= token < len(self._spelt) else f"<{token}?>"


class Named:
    """An id as its name if it has one."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = dict(names)

    def __call__(self, token: int) -> str:
        """The name, or the number."""
        return self._names.get(token, str(token))


def _is_renderer(given: Any) -> bool:
    return hasattr(given, "render_many") and hasattr(given, "encoder")


def _renderer(
    tokenizer: Any, template: Any, renderer: Any, date: str | None
) -> tuple[PieceEncoder, AnyRenderer | None]:
    """The encoder, and the renderer if the tokenizer has a template or a family is named."""
    if _is_renderer(renderer):
        return renderer.encoder, renderer
    encoder = open_encoder(tokenizer)
    if renderer is None and template is None and encoder.template is None and encoder.engine != "sentencepiece":
        named = _by_name(encoder)
        return (named.encoder, named) if named is not None else (encoder, None)
    if date is not None or isinstance(template, Path):
        made: AnyRenderer = open_renderer(str(tokenizer), renderer or "auto", template=_file(template), date=date)
    elif template is not None:
        if renderer not in (None, "auto", "template", "default"):
            raise UsageError(f"renderer {renderer} writes by its own grammar; a template is for renderer 'template'")
        made = DefaultRenderer(encoder, template=_template_text(template))
    else:
        made = create_renderer(encoder, renderer or "auto")
    return made.encoder, made


def _by_name(encoder: PieceEncoder) -> AnyRenderer | None:
    """A family by the tokenizer's exact hub name; `None` where there is neither a family nor a template."""
    try:
        return create_renderer(encoder)
    except TemplateError:
        return None


def _file(template: Any) -> Path | None:
    return None if template is None else Path(template)


def _template_text(template: str) -> str:
    """A template given as text, or as the name of a file with it."""
    one_line = "\n" not in template and "{" not in template
    return load_template(template) if one_line else template


def _examined(work: Work, slices: Iterator[Slice], workers: int) -> Iterator[Tally]:
    """The tallies of all slices in order; small inputs are not worth a pool."""
    if workers < 1:
        raise UsageError(f"workers is {workers}; expected at least 1")
    head = list(islice(slices, 2))
    if workers == 1 or len(head) < 2:
        yield from map(work.examine, chain(head, slices))
        return
    waiting: deque[Future[Tally]] = deque()
    context = get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(work,)) as pool:
        try:
            for part in chain(head, slices):
                waiting.append(pool.submit(_examine, part))
                if len(waiting) > 2 * workers:  # the reader must not run ahead: memory stays flat
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


_WORK: list[Work] = []


def _begin(work: Work) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one process a core is enough
    _WORK[:] = [work]


def _examine(part: Slice) -> Tally:
    return _WORK[0].examine(part)


def _tokenizer_alone(
    source: Any, template: Any, renderer: Any, date: str | None, keep: int
) -> tuple[Tally, dict[str, Any]]:
    encoder, made = _renderer(source, template, renderer, date)
    layout = learn(made) if made is not None else bare(encoder)
    tally = Tally(keep)
    tokenizers.check(encoder, made, layout, tally, alone=True)
    if made is not None and not layout.trusted:
        tally.add("format-not-understood", [], count=1, rows=0)
    kit = Kit(encoder, made, layout)
    return tally, {"kind": "tokenizer", "name": encoder.name, **kit.told}


def _compared(
    source: Any, other: Any, tokenizer: Any, renderer: Any, date: str | None, keep: int
) -> tuple[Tally, dict[str, Any]]:
    """Both on the probes."""
    one, two = (_side(given, tokenizer, renderer, date) for given in (source, other))
    tally = Tally(keep)
    tally.sums["rows"] = len(PROBES)
    chats = [
        ChatRow(number, f"probe {name!r}", normalise(messages), tools)  # type: ignore[arg-type]
        for number, (name, messages, tools) in enumerate(PROBES)
    ]
    tally.sums["tokens"] = drift.check(one, two, chats, tally)
    return tally, {"kind": "drift", "name": str(source), "other": str(other)}


def _side(given: Any, tokenizer: Any, renderer: Any, date: str | None) -> AnyRenderer:
    """One side of a comparison: a renderer, a tokenizer directory, or a template file with `tokenizer`.

    Raises:
        UsageError: a template without a tokenizer. TemplateError: a tokenizer without a template.
    """
    if _is_renderer(given):
        return given  # type: ignore[no-any-return]
    path = Path(str(given))
    if path.is_file() and not is_tokenizer(path):
        if tokenizer is None:
            raise UsageError(f"{path}: a template needs a tokenizer; pass --tokenizer DIR")
        _, made = _renderer(tokenizer, path.read_text(encoding="utf-8"), None, date)
    else:
        _, made = _renderer(given, None, renderer, date)
    if made is None:
        raise TemplateError(f"{given}: no chat template to compare; add chat_template.jinja, or name --renderer")
    return made


def _report(tally: Tally, told: Mapping[str, Any], skipped: Mapping[str, str], silence: Mapping[str, str]) -> Report:
    findings = [
        Finding(
            rule=rule.id,
            severity=rule.severity,
            title=rule.title,
            count=hits.count,
            rows=hits.rows,
            summary=summary_of(rule, hits, tally),
            cause=rule.cause,
            fix=rule.fix,
            thread=rule.thread,
            evidence=tuple(hits.evidence),
            details=details_of(rule, tally),
        )
        for rule in RULES.values()
        if (hits := tally.hits.get(rule.id)) is not None
    ]
    worst = ("error", "warning", "info")
    findings.sort(key=lambda finding: worst.index(finding.severity))
    share = masks.share(tally)
    return Report(
        source=told,
        rows=tally.sums["rows"],
        tokens=tally.sums["tokens"],
        trained_tokens=tally.sums["trained tokens"],
        findings=tuple(finding for finding in findings if finding.rule not in silence),
        silenced=tuple(Silenced(f, silence[f.rule]) for f in findings if f.rule in silence),
        skipped=skipped,
        stats={} if share is None else {"loss_share": round(share, 4)},
    )


def conversations(opened: Opened) -> Iterable[ChatRow]:
    """The usable conversations of an input, one by one."""
    for number, record in enumerate(opened._records()):
        read = record if isinstance(record, Rejected) else conversation_of_record(record, opened.dialect)
        if not isinstance(read, Rejected):
            yield ChatRow(number, read.where, read.messages, read.tools)


def rules_fired(report: Report) -> Sequence[str]:
    """The ids of all rules that fired."""
    return report.rules()
