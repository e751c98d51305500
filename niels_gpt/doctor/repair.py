"""`repair`: the rows of an input with those faults repaired whose repair is certain.

::

    conversations   copies and unreadable rows are left out, arguments of calls are decoded, nulls that the tool does
                    not have are dropped, wrongly decoded text is decoded again
    rows of ids     labels and masks become what the model samples, in the turns that the row trains
    a tokenizer     generation_config.json lists the end-of-turn

Everything else is for a person to decide; what was left is counted. A row that needs no repair is written as it is.
"""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from niels_gpt.doctor.columns import IDS, STARTS, columns_of, is_tokenised, token_rows
from niels_gpt.doctor.context import Context
from niels_gpt.doctor.counters import Counters
from niels_gpt.doctor.examine import judge_rows
from niels_gpt.doctor.open_input import Opened
from niels_gpt.doctor.report import Report
from niels_gpt.doctor.rows import Bools, ChatRow, covered, rule_of
from niels_gpt.doctor.rules.chats import hash_of
from niels_gpt.doctor.rules.contents import DAMAGED, damage_in
from niels_gpt.doctor.rules.tokenizers import served_and_missing
from niels_gpt.doctor.slices import decoded
from niels_gpt.doctor.view import Scope, TurnMasks, View, without_empty_thoughts
from niels_gpt.errors import UsageError
from niels_gpt.format.masks import IGNORE_INDEX, MASK_COLUMNS
from niels_gpt.progress import SILENT, Progress
from niels_gpt.sources.arrow_nulls import without_arrow_nulls
from niels_gpt.sources.chat_files import record_to_conversation
from niels_gpt.sources.files.inputs import Rejected
from niels_gpt.storage.files import atomic_file, write_atomic

# Rules whose finding is a wrong mask, which is repaired to what the model samples.
OF_MASKS: Final = (
    "mask-missing",
    "row-without-mask",
    "mask-all-one",
    "mask-shifted",
    "padding-trained",
    "user-tokens-trained",
    "tool-results-trained",
    "header-trained",
    "supplied-trained",
    "packed-start-trained",
    "eot-not-trained",
    "eot-masked-as-padding",
    "labels-preshifted",
)
REWRITTEN: Final = frozenset(("labels-foreign",))
WITHOUT: Final = frozenset(("mask-missing", "row-without-mask"))
# Rows without a mask train empty think blocks if other rows do, and if there are no others.
THINK_AS: Final = frozenset(("empty-think-trained", "mask-missing"))


@dataclass
class Repaired:
    """The result of `repair`.

    Attributes:
        path: the file that it wrote. rows: how many are in it.
        repaired, left_out: rows by rule. left: rules whose findings remain, and in how many rows.
        unrepaired: rows whose fault is of a kind that is repaired, but could not be, or not everywhere, by rule.
    """

    path: str
    rows: int = 0
    repaired: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    left: dict[str, int] = field(default_factory=dict)
    unrepaired: Counter[str] = field(default_factory=Counter)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        counts = {"repaired": dict(self.repaired), "left_out": dict(self.left_out), "left": self.left}
        return {"path": self.path, "rows": self.rows, **counts}


def check_target(opened: Opened, path: Path) -> None:
    """Refuse what `repair` cannot write, before the input is read.

    Raises:
        UsageError: an input that cannot be written as rows, another kind of file, or the input itself.
    """
    if opened.dataset is not None or opened.token_files is not None or opened.kind == "preferences":
        raise UsageError(f"{opened.name}: only files of conversations or ids are repaired; build this dataset again")
    if path.suffix != ".jsonl":
        raise UsageError(f"{path}: repaired rows are written as JSON lines; name a .jsonl file")
    if any(file.resolve() == path.resolve() for file in opened.files):
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
    done = Repaired(str(path))
    rows = _repaired_chats(opened, done) if opened.kind == "chats" else _repaired_ids(report, opened, scope, done)
    with atomic_file(path) as file:
        for row in rows:
            text = json.dumps(row, ensure_ascii=False, default=_as_list)
            # Half of a surrogate pair, which JSON's \ud83d alone gives, is written as it was read.
            file.write(f"{text}\n".encode("utf-8", "surrogatepass"))
            done.rows += 1
            progress.advance(1)
    done.repaired, done.unrepaired = +done.repaired, +done.unrepaired  # without zeros
    touched = {*done.repaired, *done.left_out}
    # Findings of rules that are not repaired, and those rows of repaired rules that could not be.
    done.left = {finding.rule: finding.rows for finding in report.findings if finding.rule not in touched}
    done.left |= {rule: rows for rule, rows in done.unrepaired.items() if rule in touched}
    return done.to_json()


def repair_stops(report: Report, context: Context, folder: str | Path, path: str | Path) -> dict[str, Any]:
    """Write a generation_config.json at whose ids generate() stops at the end of a turn.

    Args:
        folder: the tokenizer's directory, whose generation_config.json is the start of the new one.

    Returns:
        As `repair`; `rows` is 0.
    """
    assert context.encoder is not None
    rules = [rule for rule in ("eot-not-in-stop-set", "stop-set-unknown") if report.finding(rule)]
    done = Repaired(str(path))
    done.left = {finding.rule: finding.rows for finding in report.findings if finding.rule not in rules}
    if not rules or context.renderer is None or context.layout is None:
        return done.to_json()
    # Other settings, such as the temperature, are copied.
    file = Path(folder) / "generation_config.json"
    config = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    served, missing = served_and_missing(context.encoder, context.renderer, context.layout)
    write_atomic(Path(path), (json.dumps(config | {"eos_token_id": [*served, *missing]}, indent=2) + "\n").encode())
    done.repaired.update(rules)
    return done.to_json()


# ---- conversations


def _repaired_chats(opened: Opened, done: Repaired) -> Iterator[Any]:
    """The rows of conversations that can be used, each once and with its faults repaired."""
    repairs = (
        ("tool-arguments-double-encoded", _decode_arguments),
        ("tool-arguments-null", _drop_argument_nulls),
        ("tool-schema-null", _drop_schema_nulls),
    )
    # Hashes of the rows written so far, 8 bytes each, as the rule `duplicate-row` computes them.
    seen: set[int] = set()
    for _, payload in opened.slices():
        for record in decoded(payload):
            if isinstance(record, Rejected):
                done.left_out["unusable-row"] += 1
                continue
            read = record_to_conversation(record, opened.dialect)
            # As the rules do: a row with the columns and nothing in them is empty, any other is unusable.
            if isinstance(read, Rejected):
                done.left_out[rule_of(record, read, opened.dialect)] += 1
                continue
            digest = hash_of(ChatRow(0, read.where, read.messages, read.tools))
            if digest in seen:
                done.left_out["duplicate-row"] += 1
                continue
            seen.add(digest)
            row = copy.deepcopy(record.value)  # rows in memory belong to the caller
            for rule, repair_one in repairs:
                if isinstance(row, dict) and repair_one(row):
                    done.repaired[rule] += 1
            repaired = _repair_texts(row)
            done.repaired["text-damaged"] += repaired != row
            done.unrepaired["text-damaged"] += _is_damaged(repaired)
            yield repaired


def _functions(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The function of each call, in rows that hold messages as OpenAI's format has them."""
    messages = row.get("messages")
    for message in messages if isinstance(messages, list) else ():
        calls = message.get("tool_calls") if isinstance(message, Mapping) else None
        for call in calls if isinstance(calls, list) else ():
            function = call.get("function") if isinstance(call, Mapping) else None
            if isinstance(function, dict):
                yield function


def _decode_arguments(row: Mapping[str, Any]) -> bool:
    """Decode arguments that are JSON text inside JSON text; returns whether any was changed."""
    changed = False
    for function in _functions(row):
        arguments = function.get("arguments")
        inner = _json(arguments)
        # `"{\"city\": \"Oslo\"}"` as JSON text is the text of an object: one `json.dumps` too many.
        if isinstance(inner, str) and isinstance(_json(inner), dict):
            function["arguments"], changed = inner, True
        # Or the text is wrapped in an object with one key: {"input": "{...}"}.
        elif isinstance(arguments, dict) and set(arguments) <= {"arguments", "input"} and len(arguments) == 1:
            # A tool may really have one text argument of this name: then the object is its value, and is left as it is.
            name, value = next(iter(arguments.items()))
            known = _properties(row).get(function.get("name"), {})
            if isinstance(_json(value), dict) and name not in known:
                function["arguments"], changed = _json(value), True
    return changed


def _drop_argument_nulls(row: dict[str, Any]) -> bool:
    """Drop the nulls that Arrow added, as when rows are read through it; returns whether it added any.

    Those under names that the tool does not have show that it did; beside them are those of parameters that the tool
    has and that may not be null.
    """
    properties = _properties(row)
    # A null under a name that the tool does have may be the model's own value.
    if not any(
        value is None and key not in properties.get(function.get("name"), {})
        for function in _functions(row)
        if isinstance(function.get("arguments"), dict)
        for key, value in function["arguments"].items()
    ):
        return False
    row["messages"] = without_arrow_nulls(row)[0]["messages"]
    return True


def _properties(row: Mapping[str, Any]) -> dict[Any, Mapping[str, Any]]:
    """The parameters that the row's tools declare, by the tool's name."""
    tools = row.get("tools")
    declared = _json(tools) if isinstance(tools, str) else tools
    found: dict[Any, Mapping[str, Any]] = {}
    for tool in declared if isinstance(declared, list) else ():
        function = tool.get("function", tool) if isinstance(tool, Mapping) else {}
        parameters = function.get("parameters") if isinstance(function, Mapping) else None
        properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
        if isinstance(properties, Mapping):
            found[function.get("name")] = properties
    return found


def _drop_schema_nulls(row: dict[str, Any]) -> bool:
    """Drop meaningless nulls of tool declarations; returns whether there were any."""
    tools = row.get("tools")
    as_text = isinstance(tools, str)
    before = _json(tools) if as_text else tools
    after = _without_nulls(before)
    if after == before:
        return False
    # In the form that it had: Arrow gives all objects of a column the same keys, so many data sets store JSON text.
    row["tools"] = json.dumps(after, ensure_ascii=False) if as_text else after
    return True


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        # In JSON Schema null is a value of these; of all other keywords it says nothing.
        may_be_null = ("default", "const", "enum", "examples")
        return {
            key: inner if key in may_be_null else _without_nulls(inner)
            for key, inner in value.items()
            if inner is not None or key in may_be_null
        }
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def _json(text: Any) -> Any:
    """The value of a JSON text; `None` for anything else."""
    try:
        return json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None


# The characters of the bytes 80 to FF in Windows-1252; the five bytes without one are control characters.
_BYTES: Final = {chr(n) if (c := bytes([n]).decode("cp1252", "ignore")) == "" else c: n for n in range(128, 256)}
_RUN: Final = re.compile(f"[{re.escape(''.join(_BYTES))}\x80-\x9f]+")


def _repair_texts(value: Any) -> Any:
    """The value with every text decoded again that was decoded wrongly."""
    if isinstance(value, str):
        # Run by run: correct characters of other texts may be beside the damaged ones, and are no bytes of cp1252.
        return value if value.isascii() or not DAMAGED.search(value) else _RUN.sub(_decoded_run, value)
    if isinstance(value, Mapping):
        return {key: _repair_texts(inner) for key, inner in value.items()}
    return [_repair_texts(inner) for inner in value] if isinstance(value, list) else value


def _is_damaged(value: Any) -> bool:
    """Whether a text of the value was decoded wrongly."""
    if isinstance(value, str):
        return damage_in(value) is not None
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return any(map(_is_damaged, inner))


def _decoded_run(found: re.Match[str]) -> str:
    """A run of such characters as the UTF-8 that it is, or as it is: "Ã©" is C3 A9, which is "é"."""
    run = found.group()
    if not DAMAGED.search(run):
        return run
    try:
        return bytes(_BYTES.get(character, ord(character)) for character in run).decode("utf-8")
    except ValueError:  # not UTF-8: correct characters of Windows-1252 are in the run, too
        return run


# ---- rows of ids


def _repaired_ids(report: Report, opened: Opened, scope: Scope, done: Repaired) -> Iterator[Any]:
    """The rows of ids that can be used, their masks repaired where a rule of `OF_MASKS` fires."""
    found = {finding.rule for finding in report.findings}
    wanted = found & set(OF_MASKS)
    for numbers, payload in opened.slices():
        for number, record in zip(numbers.tolist(), decoded(payload), strict=True):
            if isinstance(record, Rejected) or not isinstance(record.value, Mapping):
                done.left_out["unusable-row"] += 1
                continue
            # Of a row alone, a mask that is empty is none.
            value = {name: column for name, column in record.value.items() if name in IDS or not _is_empty(column)}
            columns, problems = columns_of([value])
            rows, more = token_rows(columns, np.array([number]), [record.where])
            unusable = not is_tokenised(value) or any(each.rule == "unusable-row" for each in (*problems, *more))
            if unusable or not len(rows):
                done.left_out["unusable-row" if unusable else "empty-row"] += 1
                continue
            # Each row is judged alone: the report names rules, and only the first rows in which they fired.
            counters = Counters(1)
            view = judge_rows(View(rows, scope, counters))
            fired = sorted(wanted & ({*counters.hits} | (WITHOUT if rows.trained is None else set())))
            expected = _expected(view, with_empty_thoughts=bool(found & THINK_AS)) if fired else None
            row = dict(record.value)
            # Other labels than the ids may be anything, but where the mask is repaired they are written anew, too.
            fired += sorted(REWRITTEN & {*counters.hits})
            if expected is None:
                done.unrepaired.update(fired)
                yield row
                continue
            done.repaired.update(fired)
            masks = [name for name in MASK_COLUMNS if name in row]
            # Megatron-Bridge's masks belong to the targets: . # # of the tokens is # # . there.
            of_targets = np.append(expected[1:], False) if STARTS in row and "labels" not in row else expected
            row |= {name: of_targets.astype(np.int64).tolist() for name in masks}
            if "labels" in row or not masks:
                row["labels"] = np.where(expected, rows.ids, IGNORE_INDEX).tolist()
            yield row


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
    touched = TurnMasks.of(view, answers).touched
    if view.rows.trained is None or not touched.any():
        touched = np.ones(len(answers), dtype=np.bool_)
    answers = answers.select(touched)
    return covered(answers.body, answers.sampled_end, len(view.rows.ids)) & ~view.padding
