"""Prompts with what a reward is computed from: rows of files, for reinforcement learning.

::

    {"messages": [...], "answer": "4", "level": 3}                 messages, or a prompt as text or messages
    {"problem": "2 + 2?", "solution": "4"}                         the columns of MATH and GSM8K
    {"prompt": [...], "reward_model": {"ground_truth": "4"}}       those of verl
    ->  Prompt(messages, answer, tools, metadata)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

from niels_gpt.errors import MessageError, UsageError, did_you_mean
from niels_gpt.messages import Message, normalise
from niels_gpt.sources.arrow_nulls import without_arrow_nulls
from niels_gpt.sources.chat_files import files_with_rows
from niels_gpt.sources.files.inputs import Record, Rejected
from niels_gpt.sources.files.records import read_records
from niels_gpt.sources.mapping import value_at
from niels_gpt.sources.rows.chat_shapes import to_messages, tools_of
from niels_gpt.sources.rows.media_columns import refuse_media_columns
from niels_gpt.storage.remote import AnyFile

PROMPTS: Final = ("messages", "prompt", "question", "problem")
ANSWERS: Final = ("answer", "ground_truth", "solution", "reward_model.ground_truth")
COLUMNS: Final = ("prompt", "answer", "system", "tools")

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Prompt:
    """The prompt of a row, and what is known of the right answer.

    Attributes:
        messages: after `normalise`; the last one is not of the assistant.
        answer: the ground truth as it is in the row, of any type; `None` where rows need none.
        where: the row's place, as in `Rejected`.
        tools: those that the row offers.
        metadata: the other columns.
    """

    messages: list[Message]
    answer: Any
    where: str = ""
    tools: list[Any] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PromptColumns:
    """The columns that hold the prompt, the answer and other fields.

    Attributes:
        columns: pairs of one of `COLUMNS` and a path such as `extra.answer`. Default of `prompt`: the first of
            `PROMPTS` that a row has; of `answer`: the first of `ANSWERS`.
        answers: every row needs an answer; False: rows without one are used, too.

    Raises:
        UsageError: an unknown column.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    answers: bool = True

    def __post_init__(self) -> None:
        for name in self.columns:
            if name not in COLUMNS:
                near = did_you_mean(name, COLUMNS)
                raise UsageError(f"no column {name!r} of prompts; expected one of {', '.join(COLUMNS)}{near}")

    def read(self, record: Record | Rejected) -> Prompt | Rejected:
        """A record as a prompt, or `Rejected`. Nulls that Arrow added are dropped, see `arrow_nulls`."""
        if isinstance(record, Rejected):
            return record
        row, where = record.value, record.where
        if not isinstance(row, Mapping):
            return Rejected(
                where, "row_not_an_object", f"{where}: the row is a {type(row).__name__}; expected an object"
            )
        try:
            return self._prompt(row, where, arrow=record.arrow)
        except MessageError as error:
            return Rejected(where, error.reason, f"{where}: {error}")

    def _prompt(self, row: Row, where: str, *, arrow: bool) -> Prompt:
        prompt_path, turns = self._found(row, "prompt", PROMPTS)
        if prompt_path is None:
            raise _missing(row, "no_prompt", PROMPTS)
        answer_path, answer = self._found(row, "answer", ANSWERS)
        if self.answers and answer is None:
            raise _missing(row, "no_answer", ANSWERS)
        beside = {name: self._found(row, name, (name,)) for name in ("system", "tools")}
        if isinstance(turns, str):
            if not turns.strip():
                raise MessageError("no_prompt", f"{prompt_path} is an empty text; expected a question")
            turns = [{"role": "user", "content": turns}]
        # From here on a prompt is read like a conversation, so that both are rendered alike.
        conversation = {"messages": turns, **{name: value for name, (_, value) in beside.items()}}
        if arrow:
            conversation, _ = without_arrow_nulls(conversation)
        messages = normalise(to_messages(conversation, "messages"))
        if messages[-1]["role"] == "assistant":
            raise MessageError(
                "prompt_ends_with_answer",
                f"{prompt_path} ends with a message of the assistant; expected a question: remove the answer",
            )
        refuse_media_columns(row, messages)
        paths = [prompt_path, answer_path, *(path for path, _ in beside.values())]
        # A column of which only one field was used (`reward_model.ground_truth`) stays.
        metadata = {name: value for name, value in row.items() if name not in paths}
        return Prompt(messages, answer, where, tools_of(conversation), metadata)

    def _found(self, row: Row, name: str, paths: Sequence[str]) -> tuple[str | None, Any]:
        """`(path, value)` of the first path at which a row has something; `(None, None)` if it has nothing.

        Raises:
            MessageError: the path that the columns name leads nowhere.
        """
        if name in self.columns:
            return self.columns[name], value_at(row, name, self.columns[name])
        for path in paths:
            try:
                value = value_at(row, name, path)
            except MessageError:  # nothing there; the row may have one of the other columns
                continue
            # A null is nothing: Arrow gives every row the columns that any row has.
            if value is not None:
                return path, value
        return None, None


def _missing(row: Row, reason: str, names: Sequence[str]) -> MessageError:
    found = ", ".join(map(repr, row)) or "none"
    column = reason.removeprefix("no_")
    return MessageError(
        reason,
        f"no {' or '.join(map(repr, names))} in the row, or it is null; columns found: {found}. Name it: "
        f"--columns {column}=PATH (columns={{'{column}': PATH}})",
    )


def read_prompts(inputs: Sequence[str | AnyFile], columns: PromptColumns) -> Iterator[Prompt | Rejected]:
    """The prompts of files, URLs and glob patterns (`.jsonl`, `.json`, `.parquet`, `hf://...`), in this order.

    Raises:
        InputError: a file is missing or damaged, or a pattern matches nothing.
    """
    return map(columns.read, chain.from_iterable(map(read_records, files_with_rows(inputs))))


def prompts_of(rows: Iterable[Mapping[str, Any]], columns: PromptColumns) -> Iterator[Prompt | Rejected]:
    """The prompts of rows in memory, or of a `datasets.Dataset`, whose nulls are dropped."""
    return (columns.read(Record(f"row {number}", row, arrow=True)) for number, row in enumerate(rows))
