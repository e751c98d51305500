"""Whose each character of a rendering is, shown by rendering once more with a letter at both ends of every text.

Templates copy texts and do not read their letters. So the first and the last visible character of every content, and
of every label (names, ids, descriptions of tools), are replaced by letters that occur nowhere else. If the output with
the letters put back is the output as it is, and what lies between the two letters of a text is that text, then every
character of it is proven to come from there. What is in no such stretch was written by the template::

    messages     user "Hi you", assistant "Yo"        template   <u>{{ m.content }}<e>
    output       <u>Hi you<e><a>Yo<e>
    lettered     <u>①i yo②<e><a>③④<e>                  ①..④: private-use letters
    stretches       3....9      15.17                   of message 0, of message 1

Labels that are equal get equal letters, because templates compare names. Strings that a template searches for in texts
(`</think>`) stay, and the text is cut there: each part has two letters. Numbers in a call's arguments get one letter.
So no character of a stretch is the template's, and none outside is of a text that has letters; or it is `Unseen`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from niels_gpt.renderers.template.controls import REASONING_FIELDS, ControlTokens
from niels_gpt.renderers.template.strings import TAG, TemplateStrings, any_of, strings_in

# The private-use characters, of which the first 6,400 take two bytes.
_LETTERS: Final = (*map(chr, range(0xE000, 0xF900)), *map(chr, range(0xF0000, 0xFFFFE)))
_IS_LETTER: Final = re.compile("[\ue000-\uf8ff\U000f0000-\U000ffffd]")
_ESCAPED: Final = re.compile(r"\\u(?:[eE][0-9a-fA-F]{3}|[fF][0-8][0-9a-fA-F]{2})")  # as JSON or `repr` writes a letter
# Characters that JSON escapes or that decide about quotes, which are not replaced; white space is not, either.
_STAYING: Final = frozenset("\"'\\\x7f" + "".join(map(chr, range(33))))
_NO_LABELS: Final = frozenset({"train", "weight", *REASONING_FIELDS})
# The words of the chat format and of JSON schemas. Templates look them up, and none of them spells a control token.
STANDARD_WORDS: Final = frozenset(
    {"type", "function", "name", "description", "parameters", "properties", "required", "string", "integer", "object"}
    | {"number", "boolean", "array", "items", "enum", "default", "arguments", "id", "null", "title", "text", "content"}
)
WORD: Final = "\ue000"  # in a pattern: any text
PLAIN: Final = (WORD,)  # the patterns of a single text without anything special
_LONGEST_SPACE: Final = 32  # white space at the end of a text that stand-in texts copy
_LONGEST_PATTERN: Final = 160  # characters of a text's pattern


class Unseen(Exception):
    """The letters do not show where the texts are; the message says why. Callers of this package never get it."""


class Leaf(NamedTuple):
    """A text, or a part of one, that has letters.

    Attributes:
        message: the index of the message whose content it is; -1 for a label.
        field: "content", "reasoning", "call", or of labels "label", "tools", "role".
        text: the whole text.
        first, last: the characters of it that are letters; equal for a text of one character.
        before: where the part before it ends in the text, 0 without one.
        number: which part of the text it is, from 0 on.
        forms: how the value may be written, for one that is no text (3, true); () for a text.
    """

    message: int
    field: str
    text: str
    first: int = 0
    last: int = 0
    before: int = 0
    number: int = 0
    forms: tuple[str, ...] = ()


Ints = npt.NDArray[np.int64]
Mark = tuple[Leaf, bool, str]  # a letter's leaf, whether it is the leaf's last one, the character that it replaces


class Manner(NamedTuple):
    """What gets letters.

    Attributes:
        labels: also labels and numbers, and not texts alone; without them, the name of a call counts as a content.
        careful: only the words of texts: no signs at their ends (a template may look for a full stop), no numbers, no
            names of parameters that the template compares something with, such as "text".
    """

    labels: bool = True
    careful: bool = False


USUAL: Final = Manner()


@dataclass
class Lettered:
    """A conversation with letters.

    Attributes:
        messages, tools, variables: to be rendered.
        leaves: the texts, in order.
        marks: letter -> its leaf, whether it is the leaf's last letter, and the character that it replaces.
        patterns: for each message and field its texts' patterns, as `Lettering._parts` shows.
        has_scalars: whether values that are no texts got letters.
        has_tokens: whether a text has a control token that the template searches for (`disguise.py`).
        fits: false if some text has no pattern that stand-in texts can have.
        spare: one more letter, which is in none of the texts.
    """

    messages: list[dict[str, Any]] = field(default_factory=list)
    tools: Any = None
    variables: dict[str, Any] = field(default_factory=dict)
    leaves: list[Leaf] = field(default_factory=list)
    marks: dict[str, Mark] = field(default_factory=dict)
    patterns: dict[tuple[int, str], tuple[str, ...]] = field(default_factory=dict)
    has_scalars: bool = False
    has_tokens: bool = False
    fits: bool = True
    spare: str = ""

    def find(self, output: str) -> Ints:
        """The number of the letter at each character of an output, -1 for none: int64 of shape (characters,)."""
        codes, letters = _codes(output), _codes("".join(self.marks))
        if not len(letters):
            return np.full(len(codes), -1)
        # Of the letters 50 60 70 and characters 60 65 80 the places are 1 2 3, of which only 60 is equal: 1 -1 -1.
        at = np.minimum(np.searchsorted(letters, codes), len(letters) - 1)
        return np.where(letters[at] == codes, at, -1)

    def unescaped(self, output: str) -> str:
        """An output in which letters that JSON wrote as escapes (`\\ue000`) are letters again."""

        def letter(found: re.Match[str]) -> str:
            letter = chr(int(found[0][2:], 16))
            return letter if letter in self.marks else found[0]

        return _ESCAPED.sub(letter, output) if "\\u" in output else output


def letters_in(text: str) -> frozenset[str]:
    """The characters of a text that letters are made of: none in most texts."""
    return frozenset() if text.isascii() else frozenset(_IS_LETTER.findall(text))


def _codes(text: str) -> npt.NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")


def _keys_of(value: Any, is_name: bool = False) -> set[tuple[str, bool]]:
    """The keys of all dictionaries in a value, and whether each is the name of a parameter."""
    if isinstance(value, Mapping):
        below = (_keys_of(item, key == "properties" and not is_name) for key, item in value.items())
        return {(key, is_name) for key in value}.union(*below)
    return set[tuple[str, bool]]().union(*map(_keys_of, value)) if isinstance(value, list | tuple) else set()


@dataclass(frozen=True)
class Writer:
    """What is the same for all conversations of a template.

    Attributes:
        strings: what the template compares with texts.
        controls: the tokenizer's control tokens.
        roles: the roles that are the template's own text.
    """

    strings: TemplateStrings
    controls: ControlTokens
    roles: frozenset[str]

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The strings that the template searches for."""
        return self.strings.searched

    @cached_property
    def tokens(self) -> tuple[str, ...]:
        """Those with a control token."""
        return tuple(filter(self.controls.first, self.words))

    @cached_property
    def sought(self) -> re.Pattern[str]:
        """The others, which stay in every text."""
        return any_of({*self.words} - {*self.tokens})

    @cached_property
    def compared(self) -> frozenset[str]:
        """The strings that stay where a text or a label is nothing else: all that it compares, but control tokens."""
        return frozenset(text for text in self.strings.compared if not self.controls.first(text))


class Lettering:
    """Puts letters into the texts of one conversation.

    Args:
        taken: letters that texts have already.
    """

    def __init__(self, writer: Writer, manner: Manner, taken: frozenset[str]) -> None:
        self.writer, self.manner, self.out = writer, manner, Lettered()
        self.letters = filter(lambda letter: letter not in taken, _LETTERS) if taken else iter(_LETTERS)
        self.labels: dict[str, str] = {}
        self.names: dict[str, str] = {}  # of parameters that are named as words of the schema

    def conversation(self, messages: Sequence[Mapping[str, Any]], tools: Any, variables: Mapping[str, Any]) -> Lettered:
        """A conversation, of messages as `Reads.given` returns them, with letters.

        Raises:
            Unseen: it has more texts than there are letters.
        """
        out, controls = self.out, self.writer.controls
        try:
            out.messages = [
                self._plain(message, index) or self._message(message, index) for index, message in enumerate(messages)
            ]
            # In the order in which Jinja's `dictsort` writes them.
            for key, is_name in sorted(_keys_of(tools), key=lambda one: one[0].lower()):
                self._name(key, "tools") if is_name else self._label(key, "tools")
            out.tools = self._label(tools, "tools")
            out.variables = {
                # A variable is not part of the data. It gets letters where it spells a control token.
                name: self._label(value, "label")
                if not name.endswith("_token") and any(map(controls.first, strings_in(value)))
                else value
                for name, value in variables.items()
            }
            out.spare = next(self.letters)
        except StopIteration:
            raise Unseen(f"the conversation has more than {len(_LETTERS):,} texts") from None
        return out

    def _plain(self, message: Mapping[str, Any], index: int) -> dict[str, Any] | None:
        """A message of a role and a text without anything special, as most are; `None` for another one."""
        writer, text = self.writer, message.get("content")
        if len(message) > 2 or type(text) is not str or not text or message["role"] not in writer.roles:
            return None
        if text[0] == "<" or not self._is_plain(text):
            return None
        return {"role": message["role"], "content": self._whole(text, index, "content")}

    def _message(self, message: Mapping[str, Any], index: int) -> dict[str, Any]:
        lettered = dict(message)
        for key, value in message.items():
            if key == "content":
                lettered[key] = self._content(value, index, "content")
            elif key == "tool_calls":
                lettered[key] = [self._call(call, index) for call in value]
            elif key == "role":
                known = value in self.writer.roles or value in self.writer.compared
                lettered[key] = value if known else self._label(value, "role")
            elif key not in _NO_LABELS:
                lettered[key] = self._label(value, "label")
        if "reasoning_content" in message:  # `Reads.given` has the same text under every name
            reasoning = self._content(message["reasoning_content"], index, "reasoning")
            lettered |= {key: reasoning for key in REASONING_FIELDS if key in message}
        return self._with_keys(lettered)

    def _with_keys(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The fields; keys that are no names, so that no template looks them up, also have letters."""
        if all(map(str.isidentifier, fields)):
            return fields
        return {key if key.isidentifier() else self._label(key, "label"): item for key, item in fields.items()}

    def _content(self, value: Any, index: int, name: str) -> Any:
        if isinstance(value, str):
            return self._text(value, index, name)
        if isinstance(value, Mapping):
            return self._with_keys(
                {
                    key: self._label(item, "label") if key == "type" else self._content(item, index, name)
                    for key, item in value.items()
                }
            )
        return [self._content(part, index, name) for part in value] if isinstance(value, list | tuple) else value

    def _call(self, call: Mapping[str, Any], index: int) -> dict[str, Any]:
        lettered = {key: value if key == "function" else self._label(value, "label") for key, value in call.items()}
        function, contents = call["function"], ("arguments",) if self.manner.labels else ("arguments", "name")
        lettered["function"] = self._with_keys(
            {
                key: self._arguments(value, index) if key in contents else self._label(value, "label")
                for key, value in function.items()
            }
        )
        return self._with_keys(lettered)

    def _arguments(self, value: Any, index: int) -> Any:
        """The arguments of a call: its texts at any depth, keys included, and its numbers."""
        if isinstance(value, str):
            fits = self.out.fits  # stand-in calls have arguments of their own
            text = self._text(value, index, "call")
            self.out.fits = fits
            return text
        if type(value) is dict or isinstance(value, Mapping):
            # Letters ascend in the order in which Jinja's `dictsort` writes the keys.
            names = {key: self._key(key, index) for key in sorted(value, key=str.lower)}
            return {names[key]: self._arguments(item, index) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._arguments(item, index) for item in value]
        if self.manner == USUAL:
            self.out.has_scalars = True
            letter = next(self.letters)
            forms = tuple(dict.fromkeys((json.dumps(value), str(value), repr(value))))
            self.out.marks[letter] = Leaf(index, "call", forms[0], 0, 0, 0, 0, forms), False, ""
            self.out.leaves.append(self.out.marks[letter][0])
            return letter
        return value

    def _key(self, key: str, index: int) -> str:
        """The name of an argument, which has letters even if the template compares something with it."""
        if self.manner.careful or not self._is_open(key):
            return self._text(key, index, "call")
        self._add_pattern(WORD, index, "call")
        return self._whole(key, index, "call")

    def _label(self, value: Any, name: str) -> Any:
        if not self.manner.labels:
            return value
        if type(value) is str:
            known = self.labels.get(value)
            return self._new_label(value, name) if known is None else known
        if type(value) is dict or isinstance(value, Mapping):  # the first is quicker
            return {self._label(key, name): self._below(key, item, name) for key, item in value.items()}
        return [self._label(item, name) for item in value] if isinstance(value, list | tuple) else value

    def _below(self, key: str, value: Any, name: str) -> Any:
        """What is below a key of a label. Names of parameters are names, also those that are words of the schema."""
        if key == "properties" and isinstance(value, Mapping):
            return {self._name(one, name): self._label(item, name) for one, item in value.items()}
        if key == "required" and isinstance(value, list | tuple):
            return [self._name(one, name) if type(one) is str else self._label(one, name) for one in value]
        return self._label(value, name)

    def _name(self, text: str, name: str) -> str:
        if not self._stays(text) or self.manner.careful or not self._is_open(text):
            return cast(str, self._label(text, name))
        if text not in self.names:
            self.names[text] = self._whole(text, -1, name)
        return self.names[text]

    def _stays(self, label: str) -> bool:
        return label in STANDARD_WORDS or label in self.writer.compared

    def _new_label(self, text: str, name: str) -> str:
        lettered = text
        if not self._stays(text):
            if self._is_open(text):
                lettered = self._whole(text, -1, name)
            elif self._ends(text, 0, len(text))[0] >= 0:  # within the signs at its ends
                lettered = self._with_letters(text, -1, name, [(0, len(text))])
        self.labels[text] = lettered
        return lettered

    def _text(self, text: str, index: int, name: str) -> str:
        """A content with letters; its pattern is recorded."""
        out = self.out
        if text[:1] == "<" and name == "content":
            tag, writer = TAG.match(text), self.writer
            # The generation prompt may end in the tag that an answer begins with.
            out.fits &= tag is None or tag[0] not in writer.strings.tags or tag[0] in writer.words
        if self._is_plain(text):
            self._add_pattern(WORD, index, name)
            return self._whole(text, index, name)
        parts, pattern = self._parts(text)
        self._add_pattern(pattern, index, name)
        if not parts:
            return text  # which may be the object `NO_CONTENT`, recognised by its type
        return self._with_letters(text, index, name, parts)

    def _add_pattern(self, pattern: str, index: int, name: str) -> None:
        patterns, key = self.out.patterns, (index, name)
        patterns[key] = (*patterns[key], pattern) if key in patterns else (pattern,)

    def _is_plain(self, text: str) -> bool:
        """Whether a text is in no way special: letters at its ends, and nothing that the template searches for."""
        if not self._is_open(text) or text in self.writer.compared:
            return False
        for word in self.writer.words:  # noqa: SIM110 (faster than `all`, and runs for every text)
            if word in text:
                return False
        return True

    def _whole(self, text: str, index: int, name: str) -> str:
        """A text with a letter in the place of its first and its last character."""
        marks, last = self.out.marks, len(text) - 1
        leaf = Leaf(index, name, text, 0, last)
        self.out.leaves.append(leaf)
        begin = next(self.letters)
        marks[begin] = leaf, last == 0, text[0]
        if not last:
            return begin
        end = next(self.letters)
        marks[end] = leaf, True, text[-1]
        return f"{begin}{text[1:-1]}{end}"

    def _parts(self, text: str) -> tuple[list[tuple[int, int]], str]:
        """The parts of a text between the strings that stay, and its pattern.

        ::

            text       " <think>Hm.</think>4"     of which the tags stay
            parts      8..11 and 19..20
            pattern    " <think>①</think>①"       ①: WORD
        """
        writer, out = self.writer, self.out
        if text.strip() in writer.compared or not text.strip():
            out.fits &= len(text) <= _LONGEST_PATTERN
            return [], text
        out.has_tokens = out.has_tokens or any(word in text for word in writer.tokens)
        stays = [found.span() for found in writer.sought.finditer(text)]
        parts, pattern, at = list[tuple[int, int]](), list[str](), 0
        for start, stop in [*stays, (len(text), len(text))]:
            part = text[at:start]
            if self._ends(text, at, start)[0] >= 0:
                parts.append((at, start))
                body = part.strip()
                out.fits &= len(part) - len(body) <= 2 * _LONGEST_SPACE
                pattern.append(part.replace(body, WORD) if len(body) > 1 else part.replace(body, WORD, 1))
            else:
                pattern.append(part)
            pattern.append(text[start:stop])
            at = stop
        found = "".join(pattern)
        out.fits &= len(found) <= _LONGEST_PATTERN
        return parts, found

    def _with_letters(self, text: str, index: int, name: str, parts: list[tuple[int, int]]) -> str:
        """The text with a letter at both ends of each of these parts."""
        out, written, at = self.out, list[str](), 0
        for number, (start, stop) in enumerate(parts):
            first, last = self._ends(text, start, stop)
            leaf = Leaf(index, name, text, first, last, at, number)
            out.leaves.append(leaf)
            letter = next(self.letters)
            out.marks[letter] = leaf, first == last, text[first]
            written += text[at:first], letter
            if last > first:
                end = next(self.letters)
                out.marks[end] = leaf, True, text[last]
                written += text[first + 1 : last], end
            at = last + 1
        written.append(text[at:])
        return "".join(written)

    def _is_open(self, text: str) -> bool:
        """Whether both ends of a text can be letters."""
        if not text or text[0] in _STAYING or text[-1] in _STAYING:
            return False
        if self.manner.careful and not (text[0].isalnum() and text[-1].isalnum()):
            return False
        return not (text[0].isspace() or text[-1].isspace())

    def _ends(self, text: str, start: int, stop: int) -> tuple[int, int]:
        """The first and the last character of a part that can be letters; -1 and -1 without any."""
        while start < stop and not self._is_open(text[start]):
            start += 1
        while stop > start and not self._is_open(text[stop - 1]):
            stop -= 1
        return (start, stop - 1) if start < stop else (-1, -1)
