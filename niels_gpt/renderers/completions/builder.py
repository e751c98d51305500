"""`ResponseBuilder`: what a family and its dialect read from a completion becomes events and a `ParsedResponse`.

Readers say how far reasoning and content go, and where calls begin and end. The builder cuts away the white space that
belongs to the format, and so holds text back for as long as it may still be cut away::

    content of Qwen3, a newline before the first call      held back    events
    Here:\\n                                                \\n           ContentDelta("Here:")
    Here:\\nI call                                                       ContentDelta("\\nI call")
    Here:\\nI call\\n<tool_call>                                          CallOpened(0); the newline is the format's
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from niels_gpt.renderers.completions.parsed import (
    ArgumentDelta,
    CallClosed,
    CallName,
    CallOpened,
    ContentDelta,
    Event,
    ParsedResponse,
    ParsedToolCall,
    ReasoningDelta,
)
from niels_gpt.renderers.completions.partial_json import partial_json
from niels_gpt.renderers.completions.text import Completion, GrowingCompletion, replace_surrogates
from niels_gpt.renderers.conversation import to_json

_SURROGATES = "".join(map(chr, range(0xDC80, 0xDD00)))  # bytes that are not UTF-8; see `Completion`


@dataclass(frozen=True)
class Trim:
    """The characters that a format adds around a content, and that are removed when the content is read.

    Attributes:
        left, right: characters to remove at the two ends, as `str.lstrip` takes them: `None` for all white space.
        prefix: a text to remove once, before everything else.
    """

    left: str | None = ""
    right: str | None = ""
    prefix: str = ""


NOTHING, NEWLINES_BEFORE, BLANK_LINES, ALL_SPACE = Trim(), Trim(left="\n"), Trim("\n", "\n"), Trim(None, None)


class TrimmedText:
    """A text that is trimmed while it grows.

    Args:
        suffix: a text that may be cut from the end with `cut_suffix`, as if it had never been added.
        separator: what is between two parts that are not empty; see `begin_part`.
        emit: is called with every part that nothing can change any more.
    """

    def __init__(self, trim: Trim, emit: Callable[[str], object], suffix: str = "", separator: str = "") -> None:
        self._trim, self._emit, self._suffix, self._separator = trim, emit, suffix, separator
        self._before_part = ""
        self.parts: list[str] = []
        self._held: list[str] = []  # `_size` characters at the end that may still be removed or joined to one character
        self._size = self._space = self._broken = 0
        self._last = ""  # the last characters, as many as `suffix` has
        self._prefix = "" if trim.prefix else None  # the text so far, while it may be the beginning of the prefix

    def add(self, text: str) -> None:
        """Append a text; bytes that are not UTF-8 are lone surrogates in it."""
        if self._prefix is not None:
            # Prefix "ab", texts "a" "bc": "a" may be its beginning and waits; with "bc" it is the prefix, and "c" is
            # left.
            text, prefix = self._prefix + text, self._trim.prefix
            if len(text) < len(prefix) and prefix.startswith(text):
                self._prefix = text
                return
            self._prefix, text = None, text.removeprefix(prefix)
        if not text:
            return
        if self._before_part:
            text, self._before_part = self._before_part + text, ""
        self._held.append(text)
        self._size += len(text)
        if self._suffix:
            self._last = (self._last + text)[-len(self._suffix) :]
        self._space = _run(self._space, text, self._trim.right)
        self._broken = _run(self._broken, text, _SURROGATES)
        keep = max(self._space, self._broken)
        for size in range(len(self._suffix), keep, -1):  # the text may end in this much of the suffix
            if self._last.endswith(self._suffix[:size]):
                keep = size
                break
        self._release(keep)

    def begin_part(self) -> None:
        """Begin another part of the text; bytes of two parts are never joined to one character."""
        if self.parts or self._size:
            self._before_part = self._separator
        if self._broken:
            # Bytes that wait for the rest of a character: it will not come from another part, so they are U+FFFD now.
            whole = replace_surrogates("".join(self._held))
            self._held, self._size, self._broken = [whole], len(whole), 0

    def _release(self, keep: int) -> None:
        """Emit all but the last characters, `keep` of them."""
        if self._size <= keep:
            return
        text = "".join(self._held)
        text, held = text[: len(text) - keep], text[len(text) - keep :]
        if not self.parts and self._trim.left != "":  # nothing was emitted yet, so this is the text's left end
            text = text.lstrip(self._trim.left)
        if text:
            text = replace_surrogates(text)
            self.parts.append(text)
            self._emit(text)
        self._held, self._size = [held] if held else [], len(held)

    def cut_suffix(self) -> None:
        """Remove the suffix if the text ends with it; text that follows is not checked for it."""
        if self._suffix and self._last == self._suffix:
            rest = "".join(self._held).removesuffix(self._suffix)
            self._held, self._size = [rest] if rest else [], len(rest)
            # The suffix may be white space (Qwen writes a newline): then it must no longer be counted.
            self._space = max(0, self._space - len(self._suffix))
        self._suffix = ""

    def end(self) -> None:
        """Note that no more text will come, and emit what was held back."""
        if self._prefix:  # only the beginning of the prefix came, so it is ordinary text
            held, self._prefix = self._prefix, None
            self.add(held)
        # What is held is the right end of the text, so this is where it is trimmed.
        rest = "".join(self._held)
        trimmed = _rstrip(rest, self._trim.right)
        self._held, self._size = [trimmed], len(trimmed)
        self._release(0)

    def __str__(self) -> str:
        return "".join(self.parts)


def _rstrip(text: str, chars: str | None) -> str:
    return text if chars == "" else text.rstrip(chars)


def _run(before: int, text: str, chars: str | None) -> int:
    """How many of these characters a text ends with, after appending to one that ended with `before` of them."""
    # After 1 of them: "\n\n" makes 3, "a\n" makes 1.
    here = len(text) - len(_rstrip(text, chars))
    return before + here if here == len(text) else here


class CallInProgress:
    """A call as far as it has been read.

    Attributes:
        index: which of the calls of the completion it is.
        name: the function, `None` until it is known.
        call: the complete call, `None` until it is closed.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.name: str | None = None
        self.call: ParsedToolCall | None = None
        self._texts: dict[str | None, list[str]] = {}

    def add(self, delta: ArgumentDelta) -> None:
        """Take more of the arguments."""
        if delta.parameter is not None and not delta.text:  # its value begins, maybe for the second time
            self._texts[delta.parameter] = []
        self._texts.setdefault(delta.parameter, []).append(delta.text)

    @property
    def has_arguments(self) -> bool:
        """Whether some of the arguments have been read."""
        return bool(self._texts)

    @property
    def arguments_text(self) -> str:
        """The arguments as the model writes them, in formats in which they are JSON; else ""."""
        return "".join(self._texts.get(None, ()))

    @property
    def texts(self) -> dict[str, str]:
        """In formats with tags around each argument the text of each value so far, by name; else empty."""
        return {name: "".join(parts) for name, parts in self._texts.items() if name is not None}

    @property
    def partial_arguments(self) -> Any:
        """The arguments so far: those of `call` once it is there, before that what `partial_json` makes of their text.

        Values between tags of their own are texts until the call is closed. `None` as long as nothing is known. The
        work grows with the length of the text.
        """
        if self.call is not None:
            return self.call.arguments
        return partial_json(self.arguments_text) if None in self._texts else self.texts or None


class ResponseBuilder:
    """Collects what is read from one completion.

    Args:
        trim, reasoning_trim: what is removed around content and reasoning.
        before_first_call: the text between a content and the first call.
        separator: the text between several parts of the reasoning, and of the content.

    Attributes:
        completion: what is read.
        is_observed: whether events are recorded: the completion may still grow. Otherwise only `result` is needed.
        events: those that were not taken yet; see `take`.
        calls: the calls so far.
    """

    def __init__(
        self,
        completion: Completion,
        trim: Trim = NOTHING,
        before_first_call: str = "",
        *,
        reasoning_trim: Trim = BLANK_LINES,
        separator: str = "",
    ) -> None:
        self.completion = completion
        self.is_observed = isinstance(completion, GrowingCompletion)
        self.events: list[Event] = []
        self.calls: list[CallInProgress] = []
        self._reasoning = TrimmedText(
            reasoning_trim, lambda text: self.events.append(ReasoningDelta(text)), separator=separator
        )
        self._content = TrimmedText(
            trim, lambda text: self.events.append(ContentDelta(text)), before_first_call, separator
        )
        self._reasoning_end = self._content_end = 0  # the characters up to which reasoning and content have been taken
        self._after_block, self._gap = False, list[str]()
        self._argument, self._argument_end = TrimmedText(NOTHING, lambda text: None), 0
        self._last_token = 0  # one past the last token of the calls so far

    # ---- reasoning and content

    def begin_reasoning(self, at: int) -> None:
        """Begin reasoning, or another part of it, at this character."""
        self._reasoning_end = at
        self._reasoning.begin_part()

    def reasoning_to(self, stop: int) -> None:
        """Take everything up to this character as reasoning."""
        if stop > self._reasoning_end:
            self._reasoning.add(self.completion.text[self._reasoning_end : stop])
            self._reasoning_end = stop

    def begin_content(self, at: int) -> None:
        """End reasoning and begin content and calls at this character."""
        self._reasoning.end()
        self._content_end = at

    def content_to(self, stop: int) -> None:
        """Take everything up to this character as content, except what is in a block."""
        if stop <= self._content_end:
            return
        text, self._content_end = self.completion.text[self._content_end : stop], stop
        if self._after_block:
            if not text.strip():  # white space between and after blocks belongs to the format
                self._gap.append(text)
                return
            text = "".join([*self._gap, text])
            self._after_block, self._gap = False, []
        self._content.add(text)

    def skip_to(self, at: int) -> None:
        """Skip what is before this character and not taken yet; another part of the content begins here."""
        self._content_end, self._after_block, self._gap = at, False, []
        self._content.begin_part()

    def begin_block(self, at: int) -> None:
        """Begin a block at this character, which is not content: a call, or markup around calls."""
        self.content_to(at)
        # What is before the first call belongs to the format; white space between two blocks goes with the second.
        self._content.cut_suffix()
        self._gap = []

    def end_block(self, at: int) -> None:
        """End the block that began last, before this character."""
        self._content_end, self._after_block = at, True
        self._content.begin_part()

    # ---- calls

    def open_call(self, at: int) -> None:
        """Begin a call at this character."""
        self.begin_block(at)
        self.events.append(CallOpened(len(self.calls)))
        self.calls.append(CallInProgress(len(self.calls)))

    def name(self, name: str | None) -> None:
        """Set the name of the open call; `None` for none."""
        call = self.calls[-1]
        if name and call.name is None:
            call.name = name
            self.events.append(CallName(call.index, name))

    def begin_argument(self, at: int, parameter: str | None = None, *, trim: Trim = NOTHING, suffix: str = "") -> None:
        """Begin the open call's arguments, or the value of one of them, at this character; see `ArgumentDelta`.

        Arguments are only reported as events, so nothing is done unless `is_observed`.

        Args:
            trim, suffix: what is removed around it.
        """
        if not self.is_observed:
            return
        index = len(self.calls) - 1
        self._argument = TrimmedText(trim, lambda text: self._report(ArgumentDelta(index, text, parameter)), suffix)
        self._argument_end = at
        if parameter is not None:
            self._report(ArgumentDelta(index, "", parameter))

    def argument_to(self, stop: int) -> None:
        """Take everything up to this character as part of the argument that began last."""
        if self.is_observed and stop > self._argument_end:
            self._argument.add(self.completion.text[self._argument_end : stop])
            self._argument_end = stop

    def write_argument(self, json_text: str) -> None:
        """Append to the argument that began last, as JSON, if the model writes it in another notation."""
        if self.is_observed:
            self._argument.add(json_text)

    def end_argument(self, stop: int) -> None:
        """End the argument that began last, before this character."""
        if self.is_observed:
            self.argument_to(stop)
            self._argument.cut_suffix()
            self._argument.end()

    def _report(self, delta: ArgumentDelta) -> None:
        if self.is_observed:
            self.calls[-1].add(delta)
            self.events.append(delta)

    def close_call(self, call: ParsedToolCall, stop: int) -> None:
        """End the open call before a character, as this call; report what was not reported of it yet.

        A token that two calls share belongs to the first::

            tokens  ... 9 `}` 10 `},{"` 11 `name` ...    spans  (3, 11) (10, 20)  ->  (3, 11) (11, 20)
        """
        open_call = self.calls[-1]
        end = self._last_token
        first, last = call.token_span or (end, end)
        call = replace(call, token_span=(end, max(end, last))) if first < end else call
        self._last_token = max(end, last)
        self.name(call.name)
        # Nothing was reported where the arguments are known with the whole block only, as those of a malformed call.
        if call.arguments and not open_call.has_arguments:
            text = call.arguments if isinstance(call.arguments, str) else to_json(call.arguments)
            self._report(ArgumentDelta(open_call.index, text))
        open_call.call = call
        self.events.append(CallClosed(open_call.index, call))
        self.end_block(stop)

    # ---- the result

    def end(self) -> None:
        """Note that everything has been read."""
        self._reasoning.end()
        self._content.end()

    def take(self) -> list[Event]:
        """The events since the last call of this method."""
        events, self.events = self.events, []
        return events

    def result(self) -> ParsedResponse:
        """The completion that was read; to be called after `end`."""
        calls = [each.call for each in self.calls if each.call is not None]
        return ParsedResponse(str(self._content), str(self._reasoning) or None, calls)
