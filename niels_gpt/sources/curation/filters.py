"""Filters: conversations that are left out on purpose, each counted under its reason.

`ChatFiles` has checks of its rows, which work in every build, with any number of workers. `RowFilters` is one of them;
`contamination.Benchmarks` and `duplicates.Duplicates` are others.

::

    RowFilters(min_messages=2, exclude="(?i)as an ai")

    2 messages, "Paris."                    used
    2 messages, "As an AI, I cannot ..."    left out: excluded
    1 message                               left out: too_few_messages
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.metadata import version
from itertools import islice
from typing import Any, Final, Protocol

from niels_gpt.errors import MissingExtra, UsageError, did_you_mean
from niels_gpt.messages import Conversation, Message, reasoning_of
from niels_gpt.ranges import FILTER_COUNT
from niels_gpt.sources.files.inputs import Rejected

ROLES: Final = ("system", "user", "assistant", "tool")
ROWS_AT_ONCE: Final = 256  # checks work on whole arrays; a batch of long rows must fit into memory
LANGUAGE_CHARACTERS: Final = 10_000  # of a conversation, from which its language is detected
LANGUAGE_LETTERS: Final = 20  # of fewer the language is not detected: py3langid takes "Hello" for Breton

Reason = tuple[str, str]  # a code, by which rows are counted, and a sentence


class RowCheck(Protocol):
    """Decides which conversations are left out. It pickles, because workers read the rows."""

    def describe(self) -> dict[str, Any]:
        """Everything that decides the check, as JSON for the source's `config`; empty if it leaves nothing out."""

    def reasons(self, chats: Sequence[Conversation]) -> list[Reason | None]:
        """Why each conversation is left out; `None` for one that is used. Each is judged alone."""


@dataclass(frozen=True, kw_only=True)
class RowFilters:
    """Which conversations are used. A filter that is `None` leaves nothing out.

    Attributes:
        min_messages, max_messages: how many messages a conversation has.
        min_characters, max_characters: of all contents together, reasoning included.
        min_answer_characters: of the shortest content of an assistant message without tool calls.
        match: a regular expression (Python's `re`) that some content must contain.
        exclude: one that no content may contain.
        role: only the contents of this role are searched by `match` and `exclude`.
        languages: codes such as "en" and "de". A conversation is used if the language of its contents is one of them,
            or if they are too short for detection (`LANGUAGE_LETTERS`). The library py3langid decides.

    Raises:
        UsageError: a number out of range, an expression that Python cannot read, no such role, or no such language.
        MissingExtra: languages without py3langid.
    """

    min_messages: int | None = None
    max_messages: int | None = None
    min_characters: int | None = None
    max_characters: int | None = None
    min_answer_characters: int | None = None
    match: str | None = None
    exclude: str | None = None
    role: str | None = None
    languages: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("min_messages", "max_messages", "min_characters", "max_characters", "min_answer_characters"):
            FILTER_COUNT.check(getattr(self, name), name)
        for unit, (least, most) in self._sizes.items():
            if least is not None and most is not None and least > most:
                raise UsageError(
                    f"min_{unit} is {least} and max_{unit} is {most}, so no row would be left; exchange them"
                )
        _ = self._expressions
        if self.role is not None and self.role not in ROLES:
            known = ", ".join(ROLES)
            raise UsageError(f"role is {self.role!r}; expected one of {known}{did_you_mean(self.role, ROLES)}")
        if self.role is not None and self.match is None and self.exclude is None:
            raise UsageError("role is set without match or exclude; it says where these two search")
        if self.languages is not None:
            if not self.languages:
                raise UsageError("languages is empty, so no row would be left; name one, or leave it out")
            # Ranking any text names all languages that the library knows.
            codes = sorted({code for code, _ in _identifier().rank("")})
            for language in self.languages:
                if language not in codes:
                    meant = did_you_mean(language, codes)
                    raise UsageError(f"languages name {language!r}; expected codes such as en, de or zh{meant}")

    def __bool__(self) -> bool:
        """Whether there is any filter."""
        return bool(self.describe())

    def describe(self) -> dict[str, Any]:
        """The filters that are set."""
        found = {name: value for name, value in asdict(self).items() if value is not None}
        if self.languages is not None:
            # Another version may decide otherwise, so it makes another build.
            found |= {"languages": sorted(self.languages), "py3langid": version("py3langid")}
        return {"filters": found} if found else {}

    def reasons(self, chats: Sequence[Conversation]) -> list[Reason | None]:
        return [next(self._reasons(chat.messages), None) for chat in chats]

    def _reasons(self, messages: list[Message]) -> Iterator[Reason]:
        """Why the filters leave a conversation out, the cheap ones first: to detect a language takes longest."""
        for unit, (least, most) in self._sizes.items():
            if least is None and most is None:
                continue
            n = len(messages) if unit == "messages" else sum(len(text) for each in messages for text in texts_of(each))
            if least is not None and n < least:
                yield f"too_few_{unit}", f"{n:,} {unit}, min_{unit} is {least:,}"
            if most is not None and n > most:
                yield f"too_many_{unit}", f"{n:,} {unit}, max_{unit} is {most:,}"
        least = self.min_answer_characters or 0
        for index, message in enumerate(messages if least else ()):
            # An answer that only calls tools has no content, and is not short for that.
            if message["role"] == "assistant" and not message.get("tool_calls"):
                n = sum(map(len, _contents(message)))
                if n < least:
                    yield "short_answer", f"message {index} has {n:,} characters, min_answer_characters is {least:,}"
        match, exclude = self._expressions
        searched = list(enumerate(messages)) if match or exclude else []
        texts = [(at, text) for at, m in searched if self.role in (None, m["role"]) for text in texts_of(m)]
        # Before `match`: a conversation to which both apply is left out.
        for index, text in texts:
            if exclude is not None and exclude.search(text):
                yield "excluded", f"message {index} contains the excluded expression {self.exclude!r}"
        if match is not None and not any(match.search(text) for _, text in texts):
            yield "not_matched", f"no content contains the expression {self.match!r}"
        if self.languages is not None:
            # Without reasoning, which may be in another language than the conversation.
            text = "\n".join(each for message in messages for each in _contents(message))[:LANGUAGE_CHARACTERS]
            is_short = sum(map(str.isalpha, text)) < LANGUAGE_LETTERS
            language = "" if is_short else _identifier().classify(text)[0]
            if language and language not in self.languages:
                yield "other_language", f"its language is {language}, languages are {', '.join(self.languages)}"

    @cached_property
    def _sizes(self) -> dict[str, tuple[int | None, int | None]]:
        """The least and the most of each unit."""
        return {
            "messages": (self.min_messages, self.max_messages),
            "characters": (self.min_characters, self.max_characters),
        }

    @cached_property
    def _expressions(self) -> list[re.Pattern[str] | None]:
        """`match` and `exclude`.

        Raises:
            UsageError: Python cannot read one.
        """
        found: list[re.Pattern[str] | None] = []
        for name, expression in (("match", self.match), ("exclude", self.exclude)):
            try:
                found.append(None if expression is None else re.compile(expression))
            except (re.error, RecursionError, OverflowError) as error:  # also of deep nesting, and of a{99999999999}
                raise UsageError(
                    f"{name} is {expression!r}, which is no regular expression of Python ({error})"
                ) from error
        return found


def _identifier() -> Any:
    try:
        import py3langid
    except ImportError as error:
        raise MissingExtra("py3langid") from error
    return py3langid


def texts_of(message: Message) -> Iterator[str]:
    """The texts of a normalised message that people wrote or a model wrote: its reasoning and its content."""
    if reasoning := reasoning_of(message):
        yield reasoning
    yield from _contents(message)


def _contents(message: Message) -> Iterator[str]:
    content = message["content"]
    parts = [{"text": content}] if isinstance(content, str) else content
    yield from (part["text"] for part in parts if isinstance(part.get("text"), str))


def checked(rows: Iterable[Conversation | Rejected], checks: Sequence[RowCheck]) -> Iterator[Conversation | Rejected]:
    """The rows in order, `Rejected` in place of those that a check leaves out, which are `expected`.

    Args:
        checks: in this order; a row that one of them leaves out is not shown to the next.
    """
    remaining = iter(rows)
    while batch := list(islice(remaining, ROWS_AT_ONCE)):
        for check in checks:
            # Found again for each check, since the one before has replaced some conversations in the batch.
            chats = {n: row for n, row in enumerate(batch) if isinstance(row, Conversation)}
            for n, why in zip(chats, check.reasons([*chats.values()]), strict=True):
                if why is not None:
                    code, sentence = why
                    batch[n] = Rejected(batch[n].where, code, f"{batch[n].where}: {sentence}", expected=True)
        yield from batch
