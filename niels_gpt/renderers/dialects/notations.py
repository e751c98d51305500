"""Reads arguments in notations other than JSON, while they are sampled, and reports the equivalent JSON.

::

    notation     the model writes                             reported, and decoded to the arguments
    PythonKeywords   city='Oslo', at=(1, 2.), x=None)         {"city": "Oslo", "at": [1, 2.0], "x": null}
    GemmaObject      city:<|"|>Oslo<|"|>,days:[1,2]}          {"city": "Oslo", "days": [1, 2]}
"""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from niels_gpt.renderers.completions.builder import ResponseBuilder
from niels_gpt.renderers.completions.text import replace_surrogates
from niels_gpt.renderers.completions.windows import Steps, Window, match_end
from niels_gpt.renderers.dialects.json_values import strict_json

_NONE: Final = -1  # in place of a character: the text is not of the notation, or ends too early


def _in_string(text: str) -> str:
    """A text as it is written within a string of JSON."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


@dataclass
class _Level:
    """A bracket that is open.

    Attributes:
        closing: the character that closes it.
        end: the same in JSON.
        part: the index of the JSON's part with the opening bracket while it is not known whether the bracket belongs to
            the value: in Python `(1)` is a number and `(1,)` a tuple. Else -1.
        items: how many items have begun.
        needs_comma: an item has ended, and no comma has come since.
    """

    closing: str
    end: str
    part: int = -1
    items: int = 0
    needs_comma: bool = False


class _JSON:
    """The JSON so far; what is certain of it is reported as the argument that began last."""

    def __init__(self, out: ResponseBuilder) -> None:
        self._out, self._parts, self._reported = out, list[str](), 0
        self.levels: list[_Level] = []
        self._undecided = 0  # how many levels have a `part`

    def write(self, text: str) -> None:
        """Append a part."""
        self._parts.append(text)
        self._report()

    def _report(self) -> None:
        if self._out.is_observed and not self._undecided:
            # While a bracket is undecided nothing is reported, because it would have to be taken back.
            for part in self._parts[self._reported :]:
                self._out.write_argument(part)
            self._reported = len(self._parts)

    def open(self, opening: str, closing: str) -> None:
        """Write an opening bracket."""
        level = _Level(closing, "}" if closing == "}" else "]")
        self.levels.append(level)
        if opening == "(":
            level.part = len(self._parts)
            self._undecided += 1
        self.write("{" if level.end == "}" else "[")

    def separate(self) -> None:
        """Begin an item."""
        level = self.levels[-1]
        if level.items:
            self.write(", ")
        level.items, level.needs_comma = level.items + 1, True

    def comma(self) -> None:
        """End an item at a comma."""
        level = self.levels[-1]
        level.needs_comma = False
        self._decide(level, is_list=True)

    def close(self) -> None:
        """Write the bracket that closes the last open one."""
        # `()` is an empty tuple, and `(1)` without a comma the number 1.
        level = self.levels.pop()
        is_list = level.part < 0 or not level.items
        self._decide(level, is_list=is_list)
        if is_list:
            self.write(level.end)

    def _decide(self, level: _Level, *, is_list: bool) -> None:
        if level.part < 0:
            return
        if not is_list:
            self._parts[level.part] = ""
        level.part = -1
        self._undecided -= 1
        self._report()

    def value(self) -> Any:
        """The value of the JSON so far.

        Raises:
            ValueError: see `strict_json`.
        """
        return strict_json(replace_surrogates("".join(self._parts)))


class Notation(ABC):
    """The arguments of a call; subclasses know how keys, texts and all other values are spelled.

    Class attributes:
        closing: what closes the arguments.
        brackets: the brackets within them.
    """

    closing: ClassVar[str]
    brackets: ClassVar[Mapping[str, str]]

    def scan(self, rest: Window, at: int, out: ResponseBuilder) -> Steps[tuple[dict[str, Any], int] | None]:
        """Read and report the arguments that begin at a character, after their opening bracket.

        Returns the arguments, and the character after them; `None` if they are not of the notation, or have no end.
        There is one loop for all levels, so that any nesting can be read.
        """
        out.begin_argument(at)
        json_out = _JSON(out)
        # Keyword arguments are an object whose bracket closes with `)` in Python.
        json_out.open("{", "}")
        json_out.levels[0].closing = self.closing
        here = at
        while json_out.levels:
            here = yield from rest.skip_space(here)
            if not (yield from rest.has(here)):
                return None
            char, level = rest.completion.text[here], json_out.levels[-1]
            if char == level.closing:
                json_out.close()
                here += 1
            elif not level.needs_comma:
                here = yield from self._scan_item(rest, here, json_out)
                if here == _NONE:
                    return None
            elif char == ",":
                json_out.comma()
                here += 1
            else:
                return None
        out.end_argument(at)
        try:
            return json_out.value(), here
        except ValueError:
            return None

    def _scan_item(self, rest: Window, at: int, json_out: _JSON) -> Steps[int]:
        """The character after an item, or after the bracket that it opens with; `_NONE` if there is no item."""
        json_out.separate()
        if json_out.levels[-1].end == "}":
            at = yield from self.scan_key(rest, at, json_out)
            if at == _NONE:
                return _NONE
            at = yield from rest.skip_space(at)
            if not (yield from rest.has(at)):
                return _NONE
        char = rest.completion.text[at]
        if char in self.brackets:
            json_out.open(char, self.brackets[char])
            return at + 1
        return (yield from self.scan_value(rest, at, json_out))

    @abstractmethod
    def scan_key(self, rest: Window, at: int, json_out: _JSON) -> Steps[int]:
        """Write the key that begins at a character; the character after what separates it from its value."""

    @abstractmethod
    def scan_value(self, rest: Window, at: int, json_out: _JSON) -> Steps[int]:
        """Write the value that begins at a character, and with no bracket; the character after it."""


# ---- Python

_KEYWORD_END = re.compile(r"[=,)\n]")
# Not a line's end: it ends a string that has one quote on each side, and in a long string it is read separately.
_PLAIN = re.compile(r"""[^\\"'\n]*""")
_WORD = re.compile(r"[-+.\w]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|[0-7]{1,3}|[^uUxN0-7])", re.DOTALL)
_LONGEST_ESCAPE = {"u": 6, "U": 10, "x": 4, **dict.fromkeys("01234567", 4)}
# JSON's spelling of each escape. A backslash at a line's end joins the two lines, so it is nothing.
_ESCAPES = {"'": "'", "a": "\\u0007", "v": "\\u000b", "\n": "", **{char: f"\\{char}" for char in '\\"/bfnrt'}}


class PythonKeywords(Notation):
    """The keyword arguments of a call in Python: strings, numbers, lists, tuples, dicts, `None`; those of JSON too.

    Tuples are lists. Keys of a dict that are no strings become strings, as `json.dumps` does it.
    """

    closing = ")"
    brackets = {"[": "]", "{": "}", "(": ")"}  # noqa: RUF012 (a constant)

    def scan_key(self, rest: Window, at: int, json_out: _JSON) -> Steps[int]:
        """See `Notation`: `key=`, or within a dict `"key":`."""
        text_of, is_keyword = rest.completion, len(json_out.levels) == 1
        if is_keyword:
            is_value = text_of.text[at] in "\"'([{"
            end = _NONE if is_value else (yield from rest.search(_KEYWORD_END, at))
            if end >= 0:
                json_out.write(f'"{_in_string(text_of.decoded(at, end).strip())}"')
        elif text_of.text[at] in "\"'":
            end = yield from self._scan_string(rest, at, json_out)
        else:
            end = yield from self._scan_word(rest, at, json_out, quote='"')
        if end == _NONE:
            return _NONE
        end = yield from rest.skip_space(end)
        json_out.write(": ")
        return end + 1 if (yield from rest.starts_with("=" if is_keyword else ":", end)) else _NONE

    def scan_value(self, rest: Window, at: int, json_out: _JSON) -> Steps[int]:
        """See `Notation`."""
        is_string = rest.completion.text[at] in "\"'"
        return (yield from (self._scan_string if is_string else self._scan_word)(rest, at, json_out))

    @staticmethod
    def _scan_word(rest: Window, at: int, json_out: _JSON, quote: str = "") -> Steps[int]:
        """Write a number or a constant; `quote` is written around it."""
        end = yield from rest.skip(_WORD, at)
        word = _json_word(rest.completion.text[at:end])
        if word is None:
            return _NONE
        json_out.write(quote + word + quote)
        return end

    def _scan_string(self, rest: Window, at: int, json_out: _JSON) -> Steps[int]:
        """Write a string, and those that follow it without a comma, as one."""
        text_of = rest.completion
        json_out.write('"')
        # 'a' "b" is the string "ab" in Python; `end` is after the last of them, `at` after white space that follows.
        while at != _NONE and (yield from rest.has(at)) and text_of.text[at] in "\"'":
            quote = text_of.text[at]
            is_long = yield from rest.starts_with(3 * quote, at)
            quote = 3 * quote if is_long else quote
            at = yield from self._scan_in_string(rest, at + len(quote), quote, json_out)
            if at != _NONE:
                end, at = at, (yield from rest.skip_space(at))
        if at == _NONE:
            return _NONE
        json_out.write('"')
        return end

    @staticmethod
    def _scan_in_string(rest: Window, at: int, quote: str, json_out: _JSON) -> Steps[int]:
        """Write what is in a string; the character after its closing quote."""
        text_of = rest.completion
        while (yield from rest.has(at)):
            plain = match_end(_PLAIN, text_of.text, at, rest.stop)
            if plain > at:
                json_out.write(_in_string(text_of.text[at:plain]))
                at = plain
            elif text_of.text[at] == "\\":
                at = yield from _scan_escape(rest, at, json_out)
                if at == _NONE:
                    return _NONE
            elif (yield from rest.starts_with(quote, at)):
                return at + len(quote)
            elif text_of.text[at] == "\n" and len(quote) == 1:
                return _NONE
            else:
                json_out.write(_in_string(text_of.text[at]))
                at += 1
        return _NONE


def _scan_escape(rest: Window, at: int, json_out: _JSON) -> Steps[int]:
    """Write the character that an escape in a Python string means; returns the position after the escape.

    Escapes of JSON are unchanged, `\\/` and pairs of surrogates too. In an unknown escape the backslash is a character,
    as in Python.
    """
    text_of = rest.completion
    if not (yield from rest.has(at + 1)):
        return _NONE
    # Wait for as much as the longest escape of this kind has; at the end of the text the shorter one counts.
    yield from rest.has(at + _LONGEST_ESCAPE.get(text_of.text[at + 1], 2) - 1)
    found = _ESCAPE.match(text_of.text, at, rest.stop)
    if found is None:
        return _NONE
    kind, digits = found.group()[1], found.group()[2:]
    if kind == "u":
        json_out.write(found.group())
    elif kind in "01234567xU":
        code = int(digits, 16) if kind in "xU" else int(kind + digits, 8)
        if code > 0x10FFFF:
            return _NONE
        json_out.write(json.dumps(chr(code))[1:-1])
    else:
        json_out.write(_ESCAPES.get(kind, "\\\\" + _in_string(kind)))
    return found.end()


def _json_word(word: str) -> str | None:
    """A number or a constant of Python or JSON, as JSON; `None` if it is none."""
    if word in _WORDS or _NUMBER.fullmatch(word):
        return _WORDS.get(word, word)
    if not word.isascii():
        return None
    try:
        return str(int(word, 0))  # 0x1f, 0b1, 1_000, +1
    except ValueError:
        pass
    try:
        value = float(word)
    except ValueError:
        return None
    # 1., .5, +1e5. `float` also takes "nan" and "inf", which are names in Python.
    return json.dumps(value) if math.isfinite(value) else None


# ---- Gemma 4

_QUOTE = '<|"|>'
_KEY_END = re.compile(r"[:{}\[\],]")
_BARE = re.compile(r"[^{}\[\],<]*")


class GemmaObject(Notation):
    """Gemma 4's objects: keys without quotes, texts between `<|"|>`, all else as in JSON, and `None`."""

    closing = "}"
    brackets = {"[": "]", "{": "}"}  # noqa: RUF012 (a constant)

    def scan_key(self, rest: Window, at: int, json_out: _JSON) -> Steps[int]:
        """See `Notation`."""
        end = yield from rest.search(_KEY_END, at)
        if end < 0 or rest.completion.text[end] != ":" or end == at:
            return _NONE
        key = rest.completion.decoded(at, end).strip().removeprefix(_QUOTE).removesuffix(_QUOTE)
        json_out.write(f'"{_in_string(key)}": ')
        return end + 1

    def scan_value(self, rest: Window, at: int, json_out: _JSON) -> Steps[int]:
        """See `Notation`."""
        completion = rest.completion
        is_spelled = yield from rest.starts_with(_QUOTE, at)
        if is_spelled and (not completion.is_control(_QUOTE) or completion.find_id(_QUOTE, at) == at):
            return (yield from self._scan_text(rest, at + len(_QUOTE), json_out))
        end = yield from rest.skip(_BARE, at)
        word = completion.decoded(at, end).strip()
        try:
            json_out.write("null" if word == "None" else json.dumps(strict_json(word), ensure_ascii=False))
        except ValueError:
            return _NONE
        return end

    @staticmethod
    def _scan_text(rest: Window, at: int, json_out: _JSON) -> Steps[int]:
        """Write what is up to the next quote; the character after that."""
        window, taken = Window(rest.completion, at, (_QUOTE,)), at
        json_out.write('"')
        while True:
            if window.stop > taken:
                json_out.write(_in_string(rest.completion.text[taken : window.stop]))
                taken = window.stop
            if window.closed:
                break
            yield from window.grow()
        json_out.write('"' if window.marker else "")
        return window.stop + len(_QUOTE) if window.marker else _NONE
