"""The control tokens of a tokenizer in texts, and the roles and fields of messages that templates know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

from niels_gpt.renderers.template.strings import any_of

# The names under which templates read the reasoning: Qwen3 `reasoning_content`, gpt-oss `thinking`.
REASONING_FIELDS: Final = ("reasoning_content", "thinking", "reasoning")

# The fields that are a message's content. Templates write headers from the others (role, name, ids): labels.
CONTENT_FIELDS: Final = frozenset({"content", "tool_calls", *REASONING_FIELDS})

# Roles of the formats in use. Templates write them into control tokens (`'<|' + message.role + '|>'`), so these count
# as the template's own text.
KNOWN_ROLES: Final = frozenset(
    {"system", "developer", "user", "assistant", "model", "chatbot"}
    | {"tool", "function", "ipython", "observation", "environment", "context"}
)


def past_spaces(text: str, at: int = 0) -> int:
    """The position of the first character from `at` on that is no white space."""
    return at + len(text[at:]) - len(text[at:].lstrip())


class ControlTokens:
    """The spellings of a tokenizer's control tokens, and which of them end a turn.

    Args:
        spellings: of all control tokens.
        stops: of those that end a turn; also ordinary text, if it is among the spellings.
        final_stop: the one that is written after an answer where the template writes no stop; "" for none.
    """

    def __init__(self, spellings: Iterable[str], stops: Iterable[str], final_stop: str = "") -> None:
        spellings = [*spellings]
        self._any, self._stops = any_of(spellings), frozenset(stops)
        self.ends = sorted({sign for one in spellings for sign in (one[0], one[-1])})  # signs at their ends
        self.final_stop = final_stop

    def first(self, text: str) -> str:
        """The first control token in a text; empty if there is none."""
        found = self._any.search(text)
        return found.group() if found else ""

    def first_at_start(self, text: str) -> str:
        """The control token that a text begins with, except for white space; empty if it begins with something else."""
        found = self._any.match(text, past_spaces(text))
        return found.group() if found else ""

    def at_end(self, text: str) -> str:
        """The control token that a text ends in; empty if it ends in something else."""
        found = [*self._any.finditer(text)]
        return found[-1].group() if found and found[-1].end() == len(text) else ""

    def words(self, text: str) -> str:
        """A text without its control tokens and the white space around it."""
        return self._any.sub("", text).strip()

    def is_stop(self, spelling: str) -> bool:
        """Whether this control token ends a turn."""
        return spelling in self._stops

    def places(self, text: str) -> Iterator[tuple[int, int]]:
        """Start and end of each control token in a text."""
        return (found.span() for found in self._any.finditer(text))

    def count(self, text: str) -> Counter[str]:
        """How often each control token is in a text."""
        return Counter(found.group() for found in self._any.finditer(text))

    def after_first_stop(self, text: str) -> int:
        """The position after the first stop token of a text and the white space after it; 0 if there is none."""
        stops = (found.end() for found in self._any.finditer(text) if found.group() in self._stops)
        return next((past_spaces(text, stop) for stop in stops), 0)

    def last_stop(self, text: str) -> int:
        """The end of the last stop token in a text; 0 if there is none."""
        return max((found.end() for found in self._any.finditer(text) if found.group() in self._stops), default=0)

    def before_split_token(self, text: str, end: int) -> int:
        """`end`, moved back to the start of a control token that it would cut in two."""
        return next((start for start, stop in self.places(text) if start < end < stop), end)

    def stop_after(self, text: str, start: int, *, at_once: bool) -> int | None:
        """The end of the first stop token after `start`; `None` if there is no control token at all.

        If no stop token follows, the turn ends with the first control token, or with the last one where more markup
        may come first (`at_once=False`): `<eos>` of `</a><eos>\\n<u>`, and `</a>` where none is a stop.
        """
        following = list(self._any.finditer(text, start))
        stop = next((found for found in following if found.group() in self._stops), None)
        if stop is None and following:
            stop = following[0] if at_once else following[-1]
        return None if stop is None else stop.end()


def texts_of(content: str | list[dict[str, Any]]) -> list[str]:
    """The texts of a message's content, which may be a list of parts."""
    parts = [content] if isinstance(content, str) else [part.get("text") for part in content]
    return [part.strip() for part in parts if isinstance(part, str)]
