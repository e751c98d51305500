"""Rows of conversations or preferences, of any number: listed, searched, rendered. They are never loaded whole."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from niels_gpt.errors import MessageError, NielsError, UsageError
from niels_gpt.explorer.dataset import ALL_ROWS, About, Dataset, Filter, RowDetail, RowSummary
from niels_gpt.explorer.line_index import LineIndex
from niels_gpt.explorer.renderer_list import RendererChoice, RendererList
from niels_gpt.explorer.token_columns import MODES, LossMode, TokenTable
from niels_gpt.inputs.opened import Opened
from niels_gpt.messages import Conversation, Message, reasoning_of
from niels_gpt.renderers.images.loading import image_part, source_of
from niels_gpt.sources.chat_files import record_to_conversation
from niels_gpt.sources.files.inputs import Rejected
from niels_gpt.sources.preference_files import record_to_preference
from niels_gpt.sources.rows.preference_rows import Preference
from niels_gpt.store.remote import address

PREVIEW = 160  # characters of the first user message, in the list of rows
SHOWN_CHARACTERS = 2000  # of a completion in the list; its tokens are shown whole
MOST_SOURCE_BYTES = 1 << 14  # of a row that cannot be used
_IMAGE_KINDS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"RIFF", "image/webp"),
)


class ChatRows(Dataset):
    """Conversations or preferences, of any number.

    A row of preferences is shown as its prompt with one of its completions, by default the best. Searches, filters
    and sizes take all of them.

    Args:
        opened: what it is, as the doctor opens it.
    """

    def __init__(self, opened: Opened, renderers: RendererList) -> None:
        self.opened, self.lines, self._renderers = opened, LineIndex(opened), renderers
        self.splits = ["all"]

    def close(self) -> None:
        self.lines.close()

    def about(self, split: str) -> About:
        facts: dict[str, Any] = {"read as": self.opened.dialect}
        if self.opened.kind == "preferences":
            facts["histograms"] = "of the best completions"
        if self.opened.is_here:
            # Checked each time: the page reports a file that was deleted, although the open one could still be read.
            facts["bytes"] = sum(Path(address(file)).stat().st_size for file in self.opened.files)
        lines = self.lines
        share = lines.share  # before the rows: once it is 1, all are there
        return About(self.opened.name, "chats", "characters", self.splits, len(lines), share, lines.problem, facts)

    def conversation(self, row: int, completion: int = 0) -> Conversation | Rejected:
        """A row as a conversation, or the reason why it cannot be used.

        Raises:
            UsageError: the row has no such completion.
        """
        found = self._read(row)
        return _conversation_of(found, completion) if isinstance(found, Preference) else found

    def _read(self, row: int) -> Conversation | Preference | Rejected:
        record = self.lines.record(row)
        if isinstance(record, Rejected):
            return record
        is_preference = self.opened.kind == "preferences"
        read = record_to_preference if is_preference else record_to_conversation
        return read(record, self.opened.dialect_at(record.where))

    def summary(self, split: str, row: int, wanted: Filter) -> RowSummary | None:
        chat = self._read(row)
        if isinstance(chat, Rejected):
            # A rejected row has no texts or size to compare.
            passes = wanted.matches(chat.why) if wanted.unusable else replace(wanted, rows=None) == ALL_ROWS
            return RowSummary(row, chat.where, "", 0, problem=chat.why) if passes else None
        if isinstance(chat, Preference):
            # All its completions, one after another.
            answers = [message for one in chat.completions for message in one.messages]
            chat = replace(chat.prompt, messages=[*chat.prompt.messages, *answers])
        texts = [text for message in chat.messages for text in texts_of(message)]
        size = sum(map(len, texts))
        if wanted.unusable or not wanted.fits(size) or not any(map(wanted.matches, texts)):
            return None
        first = next((m for m in chat.messages if m["role"] == "user"), chat.messages[0])
        preview = "".join(texts_of(first))[:PREVIEW]
        return RowSummary(row, chat.where, preview, size, [m["role"] for m in chat.messages])

    def detail(
        self, split: str, row: int, choice: RendererChoice, modes: Sequence[LossMode], completion: int = 0
    ) -> RowDetail:
        """See `Dataset`; of a row of preferences one of its completions."""
        self.check_row(split, row)
        found = self._read(row)
        if isinstance(found, Rejected):
            source = self.lines.line(row)[1][:MOST_SOURCE_BYTES].decode("utf-8", "backslashreplace")
            return RowDetail(row, found.where, None, problem=found.why, source=source)
        if isinstance(found, Preference):
            chat = _conversation_of(found, completion)
            shown = self._rendered(row, chat, choice, modes)
            return replace(shown, completions=_summaries_of(found), completion=completion)
        if completion:
            raise UsageError(f"{found.where}: completion is {completion}, but the row is no preference; leave it out")
        return self._rendered(row, found, choice, modes)

    def _rendered(self, row: int, chat: Conversation, choice: RendererChoice, modes: Sequence[LossMode]) -> RowDetail:
        conversation = {"messages": chat.messages, "tools": chat.tools}
        try:
            table = self._table(chat, choice, modes)
        # The page shows the messages in any case, and the error in place of the tokens.
        except NielsError as error:
            return RowDetail(row, chat.where, None, conversation, str(error))
        return RowDetail(row, chat.where, table, conversation)

    def _table(self, chat: Conversation, choice: RendererChoice, modes: Sequence[LossMode]) -> TokenTable:
        return self._renderers.table(chat.messages, chat.tools, choice, modes, kwargs=chat.chat_template_kwargs)

    def image(self, row: int, message: int, part: int, completion: int = 0) -> tuple[bytes, str]:
        """The bytes of an image in a content, and their media type. Paths are relative to the folder of the file.

        Raises:
            UsageError: the row has no such completion.
            MessageError: no image there; one outside of the folder, on the network, too large or of an unknown kind.
        """
        self.check_row(self.splits[0], row)
        chat = self.conversation(row, completion)
        contents = [] if isinstance(chat, Rejected) else [one["content"] for one in chat.messages]
        parts = contents[message] if 0 <= message < len(contents) else ""
        is_there = not isinstance(parts, str) and 0 <= part < len(parts)
        found = image_part(parts[part], message, part) if is_there else None  # type: ignore[arg-type]
        if found is None:
            raise MessageError("no_image", f"row {row}, message {message}: part {part} is no image")
        source, opened = source_of(found), Path(self.opened.name).resolve()
        if not isinstance(source, Path):
            data = source.getvalue()
        else:
            folder = opened if opened.is_dir() else opened.parent
            path = (folder / source).resolve()
            # The page is open to whatever the file names; it must not show other files of this machine.
            if not path.is_relative_to(folder):
                raise MessageError(
                    "image_outside", f"{found.where}: {source} does not lie in {folder}; it is not shown"
                )
            try:
                data = path.read_bytes()
            except (OSError, ValueError) as error:
                raise MessageError("broken_image", f"{found.where}: {source}: {error}") from error
        kind = next((kind for begin, kind in _IMAGE_KINDS if data.startswith(begin)), None)
        if kind is None:
            raise MessageError("broken_image", f"{found.where}: not shown: expected PNG, JPEG, GIF or WebP")
        return data, kind

    def sizes(self, split: str, rows: list[int], choice: RendererChoice) -> list[tuple[int, float]]:
        """See `Dataset`; what is trained follows the usual loss mode."""
        # One mode is enough for a histogram, and each costs a pass over the tokens.
        usual = next(mode for mode in MODES if mode.name == "end_of_turn")
        found = []
        for chat in map(self.conversation, rows):
            if isinstance(chat, Rejected):
                continue
            try:
                table = self._table(chat, choice, [usual])
            except (MessageError, UsageError):  # refused, or too long for the page
                continue
            total = table.counts["total"]
            found.append((total, table.modes[0].count / max(1, total)))
        return found


def texts_of(message: Message) -> list[str]:
    """The texts of a message: its content, or each of its text parts; its reasoning; names and arguments of calls."""
    content = message["content"]
    texts = [content] if isinstance(content, str) else [str(part.get("text", "")) for part in content]
    reasoning, calls = reasoning_of(message), [call["function"] for call in message.get("tool_calls") or ()]
    texts += [reasoning] if reasoning is not None else []
    for call in calls:
        texts += [call["name"], json.dumps(call["arguments"], ensure_ascii=False)]
    return texts


# ---- rows of preferences: the conversation that each completion makes with its prompt


def _conversation_of(row: Preference, completion: int) -> Conversation:
    """The prompt with one of its completions.

    Args:
        completion: 0 is the best, or the first where they have no order.

    Raises:
        UsageError: there is no such completion.
    """
    last = len(row.completions) - 1
    if not 0 <= completion <= last:
        raise UsageError(f"{row.prompt.where}: completion is {completion}; the row has completions 0 to {last}")
    return replace(row.prompt, messages=[*row.prompt.messages, *row.completions[completion].messages])


def _summaries_of(row: Preference) -> list[dict[str, Any]]:
    """The completions as the page lists them, the best first."""
    summaries = []
    for one in row.completions:
        facts = []  # such as: rank 0 (best), score 0.9
        # The names of a pair, chosen and rejected, say its order.
        if one.rank is not None and row.form != "preference":
            facts.append(f"rank {one.rank}{' (best)' if one.rank == 0 else ''}")
        if one.label is not None:
            facts.append("desirable" if one.label else "undesirable")
        if one.score is not None:
            facts.append(f"score {one.score:g}")
        # The margin is a fact of the pair; it is shown once, with the chosen one.
        if row.margin is not None and one is row.completions[0]:
            facts.append(f"margin {row.margin:g}")
        text = "\n\n".join(text for message in one.messages for text in texts_of(message))
        shown = {"name": one.name, "facts": ", ".join(facts), "text": text[:SHOWN_CHARACTERS], "size": len(text)}
        summaries.append(shown)
    return summaries
