"""`repair`: rows of ids with those faults repaired whose repair is certain, and `repair_stops` of a tokenizer.

::

    rows of ids     labels and masks become what the model samples, in the turns that the row trains
    a tokenizer     generation_config.json lists the end-of-turn

Everything else is for a person to decide; what was left is counted. A row that needs no repair is written as it is.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from niels_gpt.doctor.context import Context
from niels_gpt.doctor.counters import Counters
from niels_gpt.doctor.examine import judge_rows
from niels_gpt.doctor.report import Report
from niels_gpt.doctor.rows import counts_in, covered
from niels_gpt.doctor.rules.masks import without_empty_thoughts
from niels_gpt.doctor.rules.tokenizers import served_and_missing
from niels_gpt.doctor.view import Scope, View
from niels_gpt.errors import UsageError
from niels_gpt.inputs.columns import IDS, STARTS, Places, columns_of, ids_name, token_rows
from niels_gpt.inputs.opened import Opened
from niels_gpt.inputs.parts import decoded
from niels_gpt.inputs.rows import Bools, TokenRows
from niels_gpt.progress import SILENT, Progress
from niels_gpt.sources.files.inputs import Rejected
from niels_gpt.store.files import atomic_file, write_atomic
from niels_gpt.store.masks import IGNORE_INDEX, MASK_COLUMNS

# Rules whose finding is a wrong mask, which is repaired to what the model samples.
OF_MASKS: Final = (
    "mask-missing",
    "mask-all-one",
    "mask-shifted",
    "padding-trained",
    "user-tokens-trained",
    "tool-results-trained",
    "header-trained",
    "packed-start-trained",
    "eot-not-trained",
    "eot-masked-as-padding",
    "labels-preshifted",
)
Counts = Counter[tuple[str, str]]  # rows by what became of them ("repaired", "left_out", "unrepaired") and rule


def check_target(opened: Opened, path: Path) -> None:
    """Refuse what `repair` cannot write, before the input is read.

    Raises:
        UsageError: an input that cannot be written as rows, another kind of file, or the input itself.
    """
    if opened.dataset is not None or opened.token_files is not None:
        raise UsageError(f"{opened.name}: only files with rows of ids are repaired; build this dataset again")
    if opened.kind != "tokens":
        raise UsageError(
            f"{opened.name} holds {opened.kind}; only rows of ids and tokenizers are repaired. A recipe leaves copies "
            "and unusable rows out of a build; change texts and arguments of calls with a script of your own"
        )
    if path.suffix != ".jsonl":
        raise UsageError(f"{path}: repaired rows are written as JSON lines; name a .jsonl file")
    if any(isinstance(file, Path) and file.resolve() == path.resolve() for file in opened.files):
        raise UsageError(f"{path} is the input itself; name another file")


def repair(report: Report, opened: Opened, scope: Scope, path: Path, progress: Progress = SILENT) -> dict[str, Any]:
    """Write the rows of an input to a file of JSON lines, with what is certain repaired.

    Args:
        report: of this input, which says what there is to repair.
        opened, scope: the input, and what its rows of ids were judged by.
        path: a new .jsonl file; one that exists is replaced as a whole, at the end.

    Returns:
        `path`, the number of `rows` in it, rules with the number of rows that were `repaired` and `left_out`, and rules
        whose findings are `left` as they are.

    Raises:
        StorageError: the disk refused.
    """
    done, rows = Counts(), 0
    with atomic_file(path) as file:
        for row in _repaired_rows(report, opened, scope, done):
            text = json.dumps(row, ensure_ascii=False, default=_as_list)
            # Half of a surrogate pair, which JSON's \ud83d alone gives, is written as it was read.
            file.write(f"{text}\n".encode("utf-8", "surrogatepass"))
            rows += 1
            progress.advance(1)
    return _outcome(report, str(path), rows, done)


def _outcome(report: Report, path: str, rows: int, done: Counts) -> dict[str, Any]:
    of = {what: {rule: n for (kind, rule), n in done.items() if kind == what} for what in ("repaired", "left_out")}
    touched = {*of["repaired"], *of["left_out"]}
    # Findings of rules that are not repaired, and those rows of repaired rules that could not be.
    left = {finding.rule: finding.rows for finding in report.findings if finding.rule not in touched}
    left |= {rule: n for (kind, rule), n in done.items() if kind == "unrepaired" and rule in touched}
    return {"path": path, "rows": rows, **of, "left": left}


def repair_stops(report: Report, context: Context, folder: str | Path, path: str | Path) -> dict[str, Any]:
    """Write a generation_config.json at whose ids generate() stops at the end of a turn.

    Args:
        folder: the tokenizer's directory, whose generation_config.json is the start of the new one.

    Returns:
        As `repair`; `rows` is 0.
    """
    assert context.encoder is not None
    rule = "eot-not-in-stop-set"
    if report.finding(rule) is None or context.renderer is None or context.layout is None:
        return _outcome(report, str(path), 0, Counts())
    # Other settings, such as the temperature, are copied.
    file = Path(folder) / "generation_config.json"
    config = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    served, missing = served_and_missing(context.encoder, context.renderer, context.layout)
    write_atomic(Path(path), (json.dumps(config | {"eos_token_id": [*served, *missing]}, indent=2) + "\n").encode())
    return _outcome(report, str(path), 0, Counts({("repaired", rule): 1}))


def _repaired_rows(report: Report, opened: Opened, scope: Scope, done: Counts) -> Iterator[Any]:
    """The rows of ids that can be used, their masks repaired where a rule of `OF_MASKS` fires."""
    found = {finding.rule for finding in report.findings}
    # Rows without a mask train empty think blocks if other rows do, and if there are no others.
    with_thoughts = "empty-think-trained" in found or not report.trained_tokens
    for numbers, payload in opened.slices():
        for number, record in zip(numbers.tolist(), decoded(numbers, payload), strict=True):
            value = None if isinstance(record, Rejected) else record.value
            if not isinstance(value, Mapping):
                done["left_out", "unusable-row"] += 1
                continue
            rows = _usable(value, Places(np.array([number]), [record.where]))
            if isinstance(rows, str):
                done["left_out", rows] += 1
                continue
            # Each row is judged alone: the report names rules, and only the first rows in which they fired.
            counters = Counters(1)
            view = judge_rows(View(rows, scope, counters))
            fired = found & {*OF_MASKS} & ({*counters.hits} | ({"mask-missing"} if rows.trained is None else set()))
            expected = _expected(view, with_empty_thoughts=with_thoughts) if fired else None
            # Other labels than the ids may be anything, but where the mask is repaired they are written anew.
            fired |= {"labels-foreign"} & {*counters.hits}
            done.update(("unrepaired" if expected is None else "repaired", rule) for rule in sorted(fired))
            yield dict(value) if expected is None else _with_mask(value, rows, expected)


def _usable(row: Mapping[str, Any], place: Places) -> TokenRows | str:
    """A row of ids, or the rule by which it is left out."""
    # Of a row alone, a mask that is empty is none.
    value = {name: column for name, column in row.items() if name in IDS or not _is_empty(column)}
    columns, misfits = columns_of([value], place)
    rows, more = token_rows(columns, place)
    if not ids_name(value) or any(each.rule == "unusable-row" for each in (*misfits, *more)):
        return "unusable-row"
    return rows if len(rows) else "empty-row"


def _with_mask(row: Mapping[str, Any], rows: TokenRows, expected: Bools) -> dict[str, Any]:
    """The row with its labels and masks written anew."""
    masks = [name for name in MASK_COLUMNS if name in row]
    # Megatron-Bridge's masks belong to the targets: . # # of the tokens is # # . there.
    of_targets = np.append(expected[1:], False) if STARTS in row and "labels" not in row else expected
    made = {**row, **{name: of_targets.astype(np.int64).tolist() for name in masks}}
    if "labels" in row or not masks:
        made["labels"] = np.where(expected, rows.ids, IGNORE_INDEX).tolist()
    return made


def _is_empty(value: Any) -> bool:
    """Whether a column holds nothing in this row; rows in memory may hold arrays."""
    return (
        value is None or (isinstance(value, list) and not value) or (isinstance(value, np.ndarray) and not value.size)
    )


def _as_list(value: Any) -> Any:
    """An array or tensor of a row in memory, for JSON.

    Raises:
        TypeError: anything else that JSON cannot hold.
    """
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a row holds a {type(value).__name__}, which JSON lines cannot hold")


def _expected(view: View, *, with_empty_thoughts: bool) -> Bools | None:
    """The correct mask, bool of shape (tokens,): answers and their stops in turns that the row trains.

    `None` where the row's turns are not known, or the next opener ends them (GLM): it may be trained, or not.

    Args:
        with_empty_thoughts: a row without a mask trains empty think blocks; the mask of other rows says what they do.
    """
    layout = view.scope.layout
    if layout is None or not layout.has_own_stop or view.turns is None or not len(view.turns.assistants):
        return None
    # Rows that leave empty think blocks out of the loss do so on purpose; their bodies begin after the block.
    answers = view.turns.assistants
    if view.rows.trained is not None or not with_empty_thoughts:
        answers = without_empty_thoughts(view, layout, answers)
    # A row may train its last answer only, on purpose: which turns it trains is not repaired.
    touched = counts_in(view.trained, answers.start, np.minimum(answers.end, answers.sampled_end + 1)) > 0
    if view.rows.trained is None or not touched.any():
        touched = np.ones(len(answers), dtype=np.bool_)
    answers = answers.select(touched)
    return covered(answers.body, answers.sampled_end, len(view.rows.ids)) & ~view.padding
