"""OpenAssistant's message trees as conversations: one for every path from a root to a leaf.

::

    question ── answer ── follow-up ── answer 2        conversations:  question answer follow-up answer-2
             └─ answer b                                               question answer-b

The stored rows are single messages with the id of their parent, in any order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from niels_gpt.messages import Conversation
from niels_gpt.progress import SILENT, Progress
from niels_gpt.ranges import MAX_MESSAGES
from niels_gpt.sources.base import ChatSource
from niels_gpt.sources.files.hub import HubDataset
from niels_gpt.sources.files.inputs import Rejected
from niels_gpt.sources.hub_corpora import HubSource, chat_of

REPO = "OpenAssistant/oasst1"
ROLES = {"prompter": "user", "assistant": "assistant"}
COLUMNS = ("message_id", "parent_id", "message_tree_id", "role", "text", "lang", "deleted")


@dataclass(frozen=True)
class OpenAssistant(HubSource, ChatSource):
    """All root-to-leaf threads of the trees, tree by tree.

    The threads of a tree have one `group`, so that all go to the same split: they share their first messages.

    Args:
        english_only: leave out threads with a message in another language.
        max_messages: threads are cut after this number of messages, 2 (a question and its answer) or more.
        hub_split: the published split to read.

    Raises:
        UsageError: `max_messages` out of range.
    """

    english_only: bool = True
    max_messages: int | None = None
    hub_split: str = "train"
    dataset: HubDataset = field(default_factory=lambda: HubDataset(REPO))

    def __post_init__(self) -> None:
        MAX_MESSAGES.check(self.max_messages)

    def config(self, progress: Progress = SILENT) -> dict[str, Any]:
        """Repository, configuration, commit, and what is left out."""
        options = {"english_only": self.english_only, "max_messages": self.max_messages, "hub_split": self.hub_split}
        return {**super().config(progress), **options}

    def iterate(self, *, start: int = 0) -> Iterator[Conversation | Rejected]:
        """The threads, from thread `start` on. Holds all messages, as those of a tree are not stored together."""
        rows = self.dataset.rows(self.hub_split)
        found = threads(rows, str(self.dataset), english_only=self.english_only, max_messages=self.max_messages)
        return islice(found, start, None)


def threads(
    rows: Iterable[dict[str, Any]], name: str, *, english_only: bool, max_messages: int | None
) -> Iterator[Conversation | Rejected]:
    """Conversations of all trees in `rows`, in the order in which roots and replies are stored.

    A deleted message ends the thread before it. A message whose parent is missing is left out, with all replies below
    it; so are messages whose parents lead back to them, and a second message of an id. The time is proportional to the
    number of messages.

    Raises:
        UsageError: `max_messages` out of range.
    """
    MAX_MESSAGES.check(max_messages)
    messages: dict[str, dict[str, Any]] = {}
    replies: dict[str | None, list[str]] = defaultdict(list)
    for number, row in enumerate(rows):
        missing = [key for key in COLUMNS if key not in row]
        if missing:
            keys = ", ".join(map(repr, row))
            yield Rejected(name, "missing_field", f"{name} row {number}: no {missing[0]!r}; keys found: {keys}")
            continue
        if row["message_id"] in messages:  # listed twice below its parent, its threads would be written twice
            where = f"{name} row {number}"
            yield _left_out(where, "duplicate", f"an earlier row also has the message id {row['message_id']}")
            continue
        # These columns alone: rows have many more, and the messages of all trees are held in memory.
        messages[row["message_id"]] = {key: row[key] for key in COLUMNS}
        replies[row["parent_id"]].append(row["message_id"])
    for parent in [parent for parent in replies if parent is not None and parent not in messages]:
        for orphan in replies[parent]:
            yield _left_out(f"{name} message {orphan}", "orphan", f"its parent {parent} is not in the data")
    # What is below no root and no missing parent is below itself.
    reached: set[str] = set()
    pending = [message for parent, below in replies.items() if parent not in messages for message in below]
    while pending:
        reached.add(current := pending.pop())
        pending += replies.get(current, [])
    for unreached in (message for message in messages if message not in reached):
        yield _left_out(
            f"{name} message {unreached}", "cycle", "its parents lead back to it, so no thread begins there"
        )
    for root in replies[None]:
        for path in _paths(root, messages, replies):
            yield _thread(path, name, english_only, max_messages)


def _paths(
    root: str, messages: dict[str, dict[str, Any]], replies: dict[str | None, list[str]]
) -> Iterator[list[dict[str, Any]]]:
    """Every path from the root to a leaf, depth first; deleted messages and their replies are cut off."""
    # A stack, not recursion: a thread may be longer than Python's recursion limit. `path` is shared, and cut to the
    # depth of each message that is visited.
    pending = [(root, 0)]
    path: list[dict[str, Any]] = []
    while pending:
        current, depth = pending.pop()
        message = messages[current]
        del path[depth:]
        if message["deleted"]:
            continue
        path.append(message)
        below = [reply for reply in replies.get(current, []) if not messages[reply]["deleted"]]
        if not below:
            yield list(path)
        pending += [(reply, depth + 1) for reply in reversed(below)]  # so that the first reply is popped first


def _thread(
    path: list[dict[str, Any]], name: str, english_only: bool, max_messages: int | None
) -> Conversation | Rejected:
    where = f"{name} thread {path[-1]['message_id']}"
    # Of the whole thread, also of messages after the first `max_messages`.
    if english_only and any(message["lang"] != "en" for message in path):
        return _left_out(where, "other_language", "a message is not in English")
    used = path[:max_messages]
    unknown = [message["role"] for message in used if message["role"] not in ROLES]
    if unknown:
        return Rejected(where, "unknown_role", f"{where}: role {unknown[0]!r}; expected prompter or assistant")
    if not any(message["role"] == "assistant" for message in used):
        return _left_out(where, "no_assistant", "it has no answer")
    tree = path[0]["message_tree_id"]
    metadata = {"tree_id": tree, "message_ids": [message["message_id"] for message in used], "lang": path[0]["lang"]}
    turns = [{"role": ROLES[message["role"]], "content": message["text"]} for message in used]
    return chat_of(turns, where, metadata, tree)


def _left_out(where: str, reason: str, why: str) -> Rejected:
    return Rejected(where, reason, f"{where}: {why}", expected=True)
