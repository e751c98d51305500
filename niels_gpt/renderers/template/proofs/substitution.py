"""Finds which message every character of a rendering came from by substituting characters.

Templates copy contents and do not read their letters. So the characters of every content are replaced by substitutes:
letters that occur nowhere else, each for one character of one message. The template is run on both versions. If the
outputs are equal except for the substitutes, each substitute shows which character of which message is there::

    content      Hi, you                template   <u>{{ m.content }}<e>
    substituted  㐀㐁㐂 㐃㐄㐅
    output       <u>㐀㐁㐂 㐃㐄㐅<e>       with the characters put back it is <u>Hi, you<e>
    message         0 0 0 0 0 0 0        the space is between two substitutes that are neighbours in the content

White space, quotes and characters that HTML and JSON escape are not replaced, because templates strip and escape them,
nor are strings that the template compares with (`/no_think`, `</think>`), and in a second attempt, for templates that
depend on punctuation (`title`, `wordcount`), only letters.

What this guarantees: a character with a message came from that message, whatever the template did to it on the way.
What it does not: that there is such a proof; `Unproven` says why there is none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from niels_gpt.messages import Message
from niels_gpt.renderers.template.controls import CONTENT_FIELDS
from niels_gpt.renderers.template.proofs.shared_texts import common_prefix

NONE: Final = -1  # no substitute, no leaf
# Letters without case, of which no two become one when text is normalised: Han and Hangul.
_RANGES: Final = ((0x3400, 0x4DC0), (0x4E00, 0x9FFD), (0xAC00, 0xD7A4), (0x20000, 0x2A6DE), (0x2A700, 0x2EBE1))
# Keys in contents whose values templates compare or look up: the kind of a part or a call, and the ids of calls.
_COMPARED_KEYS: Final = frozenset({"type", "id"})
_ESCAPED: Final = re.compile(  # by JSON; `\\U000f0000` is of `repr`
    r"\\u(?:[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|[0-9a-fA-F]{4})"
)
_LETTERS: Final = re.compile(r"[^\W_]")
_VISIBLE: Final = re.compile(r"[^\s\"'\\<>&\x00-\x1f\x7f-\x9f]")


class Unproven(Exception):
    """The origin of the output cannot be proven; the message says why. Callers of this package never get it."""


class Leaf(NamedTuple):
    """One string in a content: the index of its message, the string itself, and the message's field that it is in."""

    message: int
    text: str
    field: str


class Edge(NamedTuple):
    """The start or the end of the leaves of one message that are this text."""

    message: int
    text: str
    at_end: bool


Edges = frozenset[Edge]


@dataclass(frozen=True)
class Substituted:
    """Messages with substitutes, and what each substitute is for.

    Attributes:
        messages: the messages to render.
        leaves: the strings that were changed.
        codes: the code points of the substitutes, ascending, uint32.
        leaf: the index of each substitute's leaf, int32.
        position: the index of the character in the leaf's text that it replaces, int32.
        spare: one more such letter, which is in none of the messages.
    """

    messages: list[Message]
    leaves: list[Leaf]
    codes: npt.NDArray[np.uint32]
    leaf: npt.NDArray[np.int32]
    position: npt.NDArray[np.int32]
    spare: str

    def find(self, output: str) -> npt.NDArray[np.int64]:
        """The substitute at each character of an output, -1 for none."""
        codes = _code_points(output)
        if not len(self.codes):
            return np.full(len(codes), NONE, np.int64)
        # Substitutes 50 60 70 and characters 60 65 80 are at 1 2 3, of which only 60 is equal: 1 -1 -1.
        at = np.searchsorted(self.codes, codes)
        # A character above all substitutes gets an index outside of the array. Any other index will do, because the
        # next line compares the codes.
        at[at == len(self.codes)] = 0
        return np.where(self.codes[at] == codes, at, NONE)

    def unescaped(self, output: str) -> str:
        """An output in which substitutes that JSON wrote as escapes (`\\ue000`) are letters again."""

        def letter(found: re.Match[str]) -> str:
            character: str = json.loads(f'"{found[0]}"')
            return character if self.find(character)[0] >= 0 else found[0]

        return _ESCAPED.sub(letter, output) if "\\u" in output else output

    def message_of(self, substitutes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The message of each substitute, -1 where there is none."""
        messages = np.array([*(leaf.message for leaf in self.leaves), NONE], np.int64)
        return messages[np.append(self.leaf, np.int32(NONE))[substitutes]]  # index -1 is the appended NONE

    def restored(self, output: str, substitutes: npt.NDArray[np.int64]) -> str:
        """An output in which each substitute is replaced by the character that it was substituted for."""
        codes = _code_points(output).copy()
        known = np.flatnonzero(substitutes >= 0)
        originals = [self.leaves[self.leaf[number]].text[self.position[number]] for number in substitutes[known]]
        codes[known] = _code_points("".join(originals))
        return _text_of(codes)


def substitute(
    messages: Sequence[Message], retained: re.Pattern[str], avoid: str, *, letters_only: bool
) -> Substituted:
    """The messages with substitutes in their contents.

    Args:
        retained: matches the strings that are not replaced.
        avoid: the template's text, whose characters may not become substitutes.
        letters_only: replace letters and digits only. Else a text in which nothing would be replaced (`<`, or a string
            that stays) is replaced as a whole.

    Raises:
        Unproven: there are more characters than substitutes.
    """
    maker = _Substitution(retained, _free_letters(avoid + str(messages)), letters_only)
    substituted: list[Any] = []
    for index, message in enumerate(messages):
        copied: dict[str, Any] = {**message}
        for key in (key for key in message if key in CONTENT_FIELDS):
            maker.message, maker.field = index, key
            copied[key] = maker.value(copied[key])
        substituted.append(copied)
    codes = maker.letters[: len(maker.leaf)]
    leaf, position = np.array(maker.leaf, np.int32), np.array(maker.position, np.int32)
    return Substituted(substituted, maker.leaves, codes, leaf, position, chr(maker.letters[-1]))


class _Substitution:
    """Replaces strings and records the substitutes; `message` and `field` say where the next strings are."""

    def __init__(self, retained: re.Pattern[str], letters: npt.NDArray[np.uint32], letters_only: bool) -> None:
        self.retained, self.letters, self.letters_only = retained, letters, letters_only
        self.leaves: list[Leaf] = []
        self.leaf: list[int] = []
        self.position: list[int] = []
        self.message, self.field = 0, ""

    def value(self, value: Any, *, keys: bool = False) -> Any:
        """A copy of a value with substitutes at any depth; `keys`: also in the keys, as in a call's arguments."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            # Substitutes ascend in the order in which Jinja's `dictsort` writes the keys.
            names = {key: self._text(key) for key in sorted(value, key=str.lower)} if keys else {}
            return {
                names.get(key, key): item
                if key in _COMPARED_KEYS and not keys
                else self.value(item, keys=keys or key == "arguments")
                for key, item in value.items()
            }
        return [self.value(item, keys=keys) for item in value] if isinstance(value, list | tuple) else value

    def _text(self, text: str) -> str:
        if not text:
            return text  # unchanged, since it may be the object `NO_CONTENT`, which is recognised by its type
        # "Hi /no_think" with the retained "/no_think": 0 and 1 are replaced, and the space and 3..12 stay.
        stays = {at for found in self.retained.finditer(text) for at in range(*found.span())}
        signs = (_LETTERS if self.letters_only else _VISIBLE).finditer(text)
        positions = [found.start() for found in signs if found.start() not in stays]
        if not positions and not self.letters_only:  # else nothing would show where a content such as "<" is
            positions = [at for at, one in enumerate(text) if not one.isspace()]
        first = len(self.leaf)
        if first + len(positions) >= len(self.letters):
            raise Unproven(f"the messages have {len(self.letters):,} characters or more")
        codes = _code_points(text).copy()
        codes[positions] = self.letters[first : first + len(positions)]
        self.leaf += [len(self.leaves)] * len(positions)
        self.leaves.append(Leaf(self.message, text, self.field))
        self.position += positions
        return _text_of(codes)


def leaves_of(
    substituted: Substituted,
    substitutes: npt.NDArray[np.int64],
    output: str,
    is_control: npt.NDArray[np.bool_],
    *,
    edges: Edges,
) -> npt.NDArray[np.int64]:
    """The leaf of each character of an output, -1 for the template's own.

    A character between two substitutes that are neighbours in their leaf belongs to it, and so do the characters around
    substitutes that equal those around them in the leaf's text::

        leaf 0   a,  b.       output   < a  ,     b  .  >       the comma is between, the point follows b in the leaf
                              substitute . 0  .  .  1  .  .
                              leaf    -1 0  0  0  0  0 -1

    Args:
        output: the output on the messages as they are.
        is_control: the characters that are the template's for certain: its control tokens.
        edges: the ends of leaves whose white space may be in the output.
    """
    leaf = substituted.leaf
    found = np.append(leaf, np.int32(NONE))[substitutes].astype(np.int64)
    known = np.flatnonzero(substitutes >= 0)
    # Substitutes at 0 1 5 6 9 make runs from 0 to 2, 5 to 7 and 9 to 10. Only the gaps between runs are examined.
    borders = np.flatnonzero(np.diff(known, prepend=-2) > 1)  # known characters that do not follow a known one
    starts, stops = known[borders], known[np.append(borders[1:] - 1, len(known) - 1)] + 1 if len(known) else known
    for index, (start, stop) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True)):
        first, last = int(substitutes[start]), int(substitutes[stop - 1])
        before = int(stops[index - 1]) if index else 0
        after = int(starts[index + 1]) if index + 1 < len(starts) else len(output)
        preceding, following = _text_before(substituted, first, edges), _text_after(substituted, last, edges)
        same = _until(is_control[before:start][::-1], _shared(preceding, output[before:start][::-1], backwards=True))
        found[start - same : start] = leaf[first]
        # The next run goes on with the next character of the same leaf. What is between them is the leaf's, also where
        # the template writes signs otherwise (as an escape).
        goes_on = after < len(output) and int(substitutes[after]) == last + 1 and leaf[last] == leaf[last + 1]
        if goes_on and (output[stop:after] == following or not any(map(str.isalnum, following))):
            found[stop:after] = leaf[last]
            continue
        same = _until(is_control[stop:after], _shared(following, output[stop:after]))
        found[stop : stop + same] = leaf[last]
    return found


def _shared(text: str, output: str, *, backwards: bool = False) -> int:
    """How many characters the output shares with this text, as it is or as JSON writes it."""
    written = (text, json.dumps(text, ensure_ascii=False)[1:-1])
    return max(common_prefix(form[::-1] if backwards else form, output) for form in written)


def _until(is_control: npt.NDArray[np.bool_], count: int) -> int:
    """`count`, or the index of the first character of the template's own if that is smaller."""
    return int(np.argmax(is_control[:count])) if is_control[:count].any() else count


def _text_after(substituted: Substituted, number: int, edges: Edges) -> str:
    """The characters of a leaf from a substitute to the next one, or to the leaf's end."""
    leaf: Leaf = substituted.leaves[substituted.leaf[number]]
    text, next_one = leaf.text[int(substituted.position[number]) + 1 :], number + 1
    if next_one < len(substituted.leaf) and substituted.leaf[next_one] == substituted.leaf[number]:
        return text[: int(substituted.position[next_one] - substituted.position[number]) - 1]
    return text if Edge(leaf.message, leaf.text, True) in edges else text.rstrip()


def _text_before(substituted: Substituted, number: int, edges: Edges) -> str:
    """The characters of a leaf from the substitute before, or from the leaf's start, to a substitute."""
    leaf: Leaf = substituted.leaves[substituted.leaf[number]]
    text = leaf.text[: int(substituted.position[number])]
    if number and substituted.leaf[number - 1] == substituted.leaf[number]:
        return text[int(substituted.position[number - 1]) + 1 :]
    return text if Edge(leaf.message, leaf.text, False) in edges else text.lstrip()


# ---- characters that become substitutes


def _code_points(text: str) -> npt.NDArray[np.uint32]:
    """The characters of a text as numbers."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")


def _text_of(codes: npt.NDArray[Any]) -> str:
    encoded: bytes = codes.tobytes()
    return encoded.decode("utf-32-le", "surrogatepass")


@cache
def _letters() -> npt.NDArray[np.uint32]:
    return np.concatenate([np.arange(*bounds, dtype=np.uint32) for bounds in _RANGES])


def _free_letters(avoid: str) -> npt.NDArray[np.uint32]:
    """The code points that can be substitutes, ascending: letters that do not occur in `avoid`."""
    letters, codes = _letters(), _code_points(avoid)
    taken = codes[codes >= letters[0]]  # none in most languages, and then there is nothing to search for
    return letters[~np.isin(letters, np.unique(taken))] if len(taken) else letters
