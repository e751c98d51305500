"""`diagnose`: from whatever is given to a report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from niels_gpt import ranges
from niels_gpt.doctor.comparing import compared, sides_of
from niels_gpt.doctor.judged import Conditions
from niels_gpt.doctor.kit import Kit, renderer_for
from niels_gpt.doctor.learning import bare, learn
from niels_gpt.doctor.pool import examined
from niels_gpt.doctor.reading import Opened, is_tokenizer, open_input
from niels_gpt.doctor.report import Finding, Report, Silenced
from niels_gpt.doctor.rules import RULES, masks, rule_of, tokenizers
from niels_gpt.doctor.summaries import details_of, summary_of
from niels_gpt.doctor.tally import Tally
from niels_gpt.errors import InputError, UsageError
from niels_gpt.progress import SILENT, Progress
from niels_gpt.renderers.loss import LossOn

EVIDENCE: Final = 5
SEED: Final = 0


def diagnose(
    source: Any,
    other: Any = None,
    *,
    chats: Any = None,
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
        chats: conversations (rows, a file, a directory) on which the two are compared, beside the built-in probes.
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
        UsageError: arguments that do not go together, a number out of range, or no such rule.
        DataError: what cannot be read at all.
    """
    ranges.SAMPLE.check(sample)
    ranges.SEED.check(seed)
    ranges.EXAMINED_LENGTH.check(max_length)
    ranges.WORKERS.check(workers)
    ranges.EVIDENCE.check(evidence)
    for name, reason in (silence or {}).items():
        rule_of(name)
        if not reason.strip():
            raise UsageError(f"rule {name} is silenced without a reason; say why: {name}=REASON")
    if other is not None:
        sides = sides_of(source, other, tokenizer, renderer, date)
        tally, told = compared(sides, _chats(chats, split, form), sample, seed, workers, evidence, progress)
        about = {"kind": "drift", "name": str(source), "other": str(other), **told}
        return _report(tally, about, Conditions("drift", {}), silence or {})
    if chats is not None:
        raise UsageError("chats= (--chats) is for comparing two tokenizers or templates; name the second one too")
    if isinstance(source, str | Path) and is_tokenizer(Path(source)):
        tally, told, conditions = _tokenizer_alone(source, template, renderer, date, evidence)
        return _report(tally, told, conditions, silence or {})
    progress.begin("looking into the input")
    opened = open_input(source, split=split, form=form)
    kit = Kit.of(opened, tokenizer, template, renderer, date)
    work = kit.work(opened, loss_on or LossOn(), max_length, evidence)
    tally = Tally(evidence)
    progress.begin(f"examining {opened.name}", total=sample or opened.count(), unit="rows")
    for part in examined(work, opened.slices(sample, seed), workers):
        tally.merge(part)
        progress.advance(part.sums["rows"])
    if not tally.sums["rows"]:
        raise InputError(f"{opened.name}: no row in it, so there is nothing to say of it; check the path")
    progress.begin("concluding")
    kit.conclude(tally, opened, sampled=sample is not None)
    told = {"kind": opened.kind, "name": opened.name, "form": opened.form, **kit.told}
    if opened.kind == "chats":
        told["dialect"] = opened.dialect
    if sample is not None:
        told |= {"sample": sample, "seed": seed}
    kind = "documents" if opened.form == "documents" else opened.kind
    conditions = kit.conditions(kind, tally, length=max_length is not None, sampled=sample is not None)
    return _report(tally, told, conditions, silence or {})


def _chats(chats: Any, split: str | None, form: str | None) -> Opened | None:
    opened = None if chats is None else open_input(chats, split=split, form=form)
    if opened is not None and opened.kind != "chats":
        raise UsageError(f"{opened.name}: rows of ids; two formats are compared on conversations")
    return opened


def _tokenizer_alone(
    source: Any, template: Any, renderer: Any, date: str | None, keep: int
) -> tuple[Tally, dict[str, Any], Conditions]:
    encoder, made = renderer_for(source, template, renderer, date)
    layout = learn(made) if made is not None else bare(encoder)
    tally = Tally(keep)
    tokenizers.check(encoder, made, layout, tally, alone=True)
    if made is not None and not layout.trusted:
        tally.add("format-not-understood", [], count=1, rows=0)
    kit = Kit(encoder, made, layout)
    return tally, {"kind": "tokenizer", "name": encoder.name, **kit.told}, kit.conditions("tokenizer", tally)


def _report(tally: Tally, told: Mapping[str, Any], conditions: Conditions, silence: Mapping[str, str]) -> Report:
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
    skipped, judged = conditions.of(RULES.values(), tally.hits)
    return Report(
        source=told,
        rows=tally.sums["rows"],
        tokens=tally.sums["tokens"],
        trained_tokens=tally.sums["trained tokens"],
        findings=tuple(finding for finding in findings if finding.rule not in silence),
        silenced=tuple(Silenced(f, silence[f.rule]) for f in findings if f.rule in silence),
        skipped=skipped,
        judged=judged,
        stats={} if share is None else {"loss_share": round(share, 4)},
    )
