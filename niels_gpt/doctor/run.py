"""`diagnose`, from any input to a report, and `check_batch`, the same for a batch that is about to be trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from niels_gpt.doctor.comparing import compare_formats, open_side
from niels_gpt.doctor.context import Context, Skipped, is_renderer, rules_skipped
from niels_gpt.doctor.counters import Counters, Hits
from niels_gpt.doctor.evidence import SEVERITIES
from niels_gpt.doctor.examine import Examination, examine_slices
from niels_gpt.doctor.options import EVIDENCE, DiagnoseOptions
from niels_gpt.doctor.repair import check_target, repair, repair_stops
from niels_gpt.doctor.report import Finding, Report, Silenced
from niels_gpt.doctor.rules import RULES, Rule, data, masks, tokenizers
from niels_gpt.errors import InputError, UsageError
from niels_gpt.inputs.memory import batch_rows
from niels_gpt.inputs.opened import Opened, is_tokenizer, open_input
from niels_gpt.inputs.token_files import ends_of
from niels_gpt.progress import SILENT, Progress
from niels_gpt.renderers.loss import LossOn, Preset
from niels_gpt.seeds import DEFAULT_SEED
from niels_gpt.tokenizer.load import open_encoder

# What was found, the report's `source`, and which rules could be judged.
Judged = tuple[Counters, dict[str, Any], Skipped]


def diagnose(
    source: Any,
    other: Any = None,
    *,
    chats: Any = None,
    tokenizer: Any = None,
    template: str | Path | None = None,
    renderer: Any = None,
    date: str | None = None,
    loss_on: LossOn | Preset | None = None,
    split: str | None = None,
    form: str | None = None,
    sample: int | None = None,
    seed: int = DEFAULT_SEED,
    max_length: int | None = None,
    workers: int = 1,
    validation: Any = None,
    fix: str | Path | None = None,
    silence: Mapping[str, str] | None = None,
    evidence: int = EVIDENCE,
    progress: Progress = SILENT,
) -> Report:
    """Find what is wrong with data, masks, a tokenizer or a template.

    Args:
        source: rows in memory (dicts, conversations or `input_ids`), batches (a `DataLoader`), a file of rows, a
            dataset directory, one of our caches, a hub dataset, or a tokenizer directory.
        other: a second tokenizer directory or template file, to compare the two (drift).
        chats: conversations (rows, a file, a directory) on which the two are compared, besides the built-in probes.
        tokenizer: of the rows; whatever `open_encoder` accepts.
        template: a template's text, or a file with it.
        renderer: a family's name, a config, a renderer, or `RendererOptions`, of which only name and options are used.
        date: the date that templates write, where they write one; default: a fixed day.
        loss_on: which tokens of conversations are trained: a `LossOn`, or the name of its preset.
        split: of a hub dataset (default train), or of a dataset of ours (default all).
        form: the dialect of conversations; by default the first rows decide.
        sample: read only so many rows, drawn with `seed`.
        max_length: the longest row that training takes, in tokens.
        workers: processes. With more than one, a script needs `if __name__ == "__main__"`.
        validation: validation data (rows, a file, a directory, a dataset), whose rows must not be in the input.
        fix: a .jsonl file for the rows of ids with what is certain repaired (see `repair`); of a tokenizer its
            generation_config.json.
        silence: findings that are accepted: rule -> reason.
        evidence: how many places of each rule are reported.
        progress: receives progress.

    Returns:
        The report. It does not depend on the number of workers.

    Raises:
        UsageError: arguments that exclude each other, a number out of range, or an unknown rule.
        DataError: the input cannot be read at all.
    """
    how = DiagnoseOptions(
        loss_on=loss_on,
        split=split,
        form=form,
        sample=sample,
        seed=seed,
        max_length=max_length,
        workers=workers,
        validation=validation,
        fix=fix,
        silence=silence or {},
        evidence=evidence,
        progress=progress,
    )
    how.check()
    if how.fix is not None and (other is not None or how.sample is not None):
        raise UsageError("fix= (--fix) repairs all rows of one input; leave the second input or --sample out")
    if other is not None:
        sides = open_side(source, tokenizer, renderer, date), open_side(other, tokenizer, renderer, date)
        conversations = None if chats is None else open_input(chats, split=how.split, form=how.form)
        if conversations is not None and conversations.kind != "chats":
            raise UsageError(f"{conversations.name}: rows of ids; two formats are compared on conversations")
        counters, description = compare_formats(sides, conversations, how)
        description = {"kind": "drift", "name": str(source), "other": str(other), **description}
        # All that a comparison needs is available, so no rule is skipped.
        return _report(counters, description, rules_skipped({"drift"}, {}, counters), how.silence)
    if chats is not None:
        raise UsageError("chats= (--chats) is for comparing two tokenizers or templates; also name the second one")
    if isinstance(source, str | Path) and is_tokenizer(Path(source)):
        context = Context.for_tokenizer(source, template, renderer, date)
        report = _report(*_judge_tokenizer(context, how.evidence), how.silence)
        return report if how.fix is None else replace(report, repaired=repair_stops(report, context, source, how.fix))
    return _diagnose_rows(source, tokenizer, template, renderer, date, how)


def _diagnose_rows(
    source: Any, tokenizer: Any, template: str | Path | None, renderer: Any, date: str | None, how: DiagnoseOptions
) -> Report:
    """The report on rows, which are repaired where `fix` is set."""
    how.progress.begin("reading the first rows")
    # The form of the input comes first: it decides whether a tokenizer is needed.
    opened = open_input(source, split=how.split, form=how.form, progress=how.progress)
    if opened.token_files is not None and (tokenizer is not None or is_renderer(renderer)):
        # These files do not record which ids end documents; the tokenizer says which may.
        ends = ends_of(renderer.encoder if is_renderer(renderer) else open_encoder(tokenizer))
        opened = replace(opened, content=replace(opened.token_files, ends=ends))
    if how.fix is not None:  # before the input is read, which may take an hour
        check_target(opened, Path(how.fix))
    context = Context.for_input(opened, tokenizer, template, renderer, date)
    report = _report(*_judge_rows(opened, context, how), how.silence)
    if how.fix is None:
        return report
    how.progress.begin(f"repairing {opened.name}", total=report.rows, unit="rows")
    return replace(report, repaired=repair(report, opened, context.scope(), Path(how.fix), how.progress))


def _judge_rows(opened: Opened, context: Context, how: DiagnoseOptions) -> Judged:
    """Judge conversations or rows of ids, slice by slice, and then what only the whole input shows."""
    examination = context.examination(opened, LossOn.of(how.loss_on), how.max_length, how.evidence)
    counters = Counters(examination.max_evidence)
    held_out, validation = _held_out(opened, examination, how)
    how.progress.begin(f"examining {opened.name}", total=how.sample or opened.count(), unit="rows")
    for part in examine_slices(examination.examine, opened.slices(how.sample, how.seed), how.workers):
        counters.merge(part)
        how.progress.advance(part.sums["rows"])
        # The number of rows in a file of lines is not known, the share of its bytes is.
        if how.sample is None and (fraction := opened.fraction_read(counters.sums["tokens"])):
            how.progress.reached(fraction)
    data.leaks(counters, held_out, opened.splits, (opened.name, validation))
    # A wrong pattern or an empty file must not be reported as "nothing found".
    if not counters.sums["rows"]:
        raise InputError(f"{opened.name}: contains no rows; check the path")
    how.progress.begin("concluding")
    context.conclude(counters, opened, sampled=how.sample is not None, max_length=how.max_length)
    description = {"kind": opened.kind, "name": opened.name, "form": opened.form, **context.description}
    if opened.kind != "tokens":
        description["dialect"] = opened.dialect
    if opened.passed_over:
        description["passed_over"] = dict(opened.passed_over)
    if how.sample is not None:
        description |= {"sample": how.sample, "seed": how.seed}
    asked = {
        "over-long": how.max_length is not None,
        "validation-leak": how.validation is not None or data.is_split(opened.splits),
    }
    kinds = {opened.kind, *(["preferences"] if opened.holds_preferences else [])}
    unasked = [rule for rule, is_asked in asked.items() if not is_asked]
    return counters, description, rules_skipped(kinds, context.unmet(opened.kind, counters), counters, unasked)


def _held_out(opened: Opened, examination: Examination, how: DiagnoseOptions) -> tuple[Counters | None, str]:
    """The hashes of the validation data, if there are any, and their name."""
    if how.validation is None:
        return None, "validation"
    validation = open_input(how.validation, split=how.split, form=how.form)
    if validation.kind != opened.kind or opened.kind == "preferences":
        raise UsageError(
            f"{validation.name} holds {validation.kind} and {opened.name} {opened.kind}; validation data is compared "
            "with rows of the same kind, conversations or ids"
        )
    # Only their hashes are wanted, so the rules that need a renderer are left out.
    reader = replace(examination, opened=validation, renderer=None)
    how.progress.begin(f"reading {validation.name}", total=validation.count(), unit="rows")
    found = Counters(0)
    for part in examine_slices(reader.examine, validation.slices(), how.workers):
        found.merge(part)
        how.progress.advance(part.sums["rows"])
    if not found.sums["rows"]:
        raise InputError(f"{validation.name}: contains no rows; check the path")
    return found, validation.name


def _judge_tokenizer(context: Context, max_evidence: int) -> Judged:
    """Judge a tokenizer and its template without data."""
    assert context.encoder is not None
    assert context.layout is not None
    counters = Counters(max_evidence)
    tokenizers.check(context.encoder, context.renderer, context.layout, counters, without_data=True)
    context.check_layout(counters)
    description = {"kind": "tokenizer", "name": context.encoder.name, **context.description}
    return counters, description, rules_skipped({"tokenizer"}, context.unmet("tokenizer", counters), counters)


def _report(counters: Counters, description: Mapping[str, Any], rules: Skipped, silence: Mapping[str, str]) -> Report:
    """The report: hits with the words of their rules, worst first, and the rules that were not judged."""
    findings = [
        Finding(
            rule=rule.id,
            severity=counters.milder.get(rule.id, rule.severity),
            title=rule.title,
            count=hits.count,
            rows=hits.rows,
            summary=summary_of(rule, hits, counters),
            cause=rule.cause,
            fix=rule.fix,
            thread=rule.thread,
            evidence=tuple(hits.evidence),
            details=details_of(rule, counters),
        )
        for rule in RULES.values()
        if (hits := counters.hits.get(rule.id)) is not None
    ]
    # Stable: within a severity the order stays that of the registry.
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    skipped, judged = rules
    share = masks.loss_share(counters)
    stats: dict[str, Any] = {} if share is None else {"loss_share": round(share, 4)}
    for name in ("rows switched off", "answers switched off"):
        if counters.sums[name]:
            stats[name.replace(" ", "_")] = counters.sums[name]
    return Report(
        source=description,
        rows=counters.sums["rows"],
        tokens=counters.sums["tokens"],
        trained_tokens=counters.sums["trained tokens"],
        findings=tuple(finding for finding in findings if finding.rule not in silence),
        silenced=tuple(Silenced(f, silence[f.rule]) for f in findings if f.rule in silence),
        skipped=skipped,
        judged=judged,
        stats=stats,
    )


def summary_of(rule: Rule, hits: Hits, counters: Counters) -> str:
    """How much was found, and which part of the input it is."""
    rows = counters.sums["rows"]
    # These rules count tokens or probes, and not places in rows.
    if rule.id == "loss-share":
        share = masks.loss_share(counters) or 0.0
        return f"{share:.1%} of {hits.count:,} tokens are trained"
    if rule.id == "format-not-understood":
        return "the turns of the built-in probes were not found where the template writes them"
    # Findings about a tokenizer are in no row.
    if not hits.rows or not rows:
        return hits.evidence[0].note if hits.evidence else rule.title
    of_rows = f"in {hits.rows:,} of {rows:,} rows ({hits.rows / rows:.1%})"
    # One hit a row: then both numbers would be the same.
    return of_rows if hits.count == hits.rows else f"{hits.count:,} times, {of_rows}"


def details_of(rule: Rule, counters: Counters) -> dict[str, Any]:
    """Numbers that a report shows with a finding."""
    if rule.id == "over-long":
        losses: dict[str, Any] = {
            policy: dict(policy_losses) for policy, policy_losses in data.policy_losses(counters).items()
        }
        return {"tokens beyond the limit": counters.sums["over-long tokens"], "policies": losses}
    if rule.id == "history-thinking-stripped":
        names = ("samples needed", "tokens of these samples", "tokens of one sequence each")
        return {name: counters.sums[f"thinking: {name}"] for name in names}
    if f"{rule.id}: conversations" in counters.sums:
        return {name: counters.sums[f"{rule.id}: {name}"] for name in ("conversations", "probes")}
    return {}


def check_batch(
    input_ids: Any,
    labels: Any,
    attention_mask: Any = None,
    tokenizer: Any = None,
    *,
    position_ids: Any = None,
    template: Any = None,
    renderer: Any = None,
    **more: Any,
) -> Report:
    """The report on a batch of numpy arrays or torch tensors (on any device), as a trainer uses it.

    Args:
        input_ids: integers of shape (rows, length), or (length,) for one row.
        labels: the same shape, -100 where nothing is trained, aligned with the ids (not shifted).
        attention_mask, position_ids: the same shape.
        tokenizer, template, renderer, more: as for `diagnose`.

    Raises:
        UsageError: the shapes differ, or an array does not hold integers. Else as `diagnose`.
    """
    passed = {"input_ids": input_ids, "labels": labels, "attention_mask": attention_mask, "position_ids": position_ids}
    if input_ids is None:
        raise UsageError("input_ids is None; expected integers of shape (rows, length)")
    rows = batch_rows({name: values for name, values in passed.items() if values is not None})
    return diagnose(rows, tokenizer=tokenizer, template=template, renderer=renderer, **more)
