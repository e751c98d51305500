"""Where the texts of a conversation are in its output, found by the letters that `letters.py` puts into them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from markupsafe import escape

from niels_gpt.renderers.template.controls import ControlTokens
from niels_gpt.renderers.template.letters import Leaf, Lettered, Mark, Unseen
from niels_gpt.renderers.template.strings import forms_of, strings_in

_IS_LETTER: Final = re.compile("([\ue000-\uf8ff\U000f0000-\U000ffffd])")
_LONGEST_QUOTE: Final = 8
_OTHER_TEXT: Final = "with letters in its texts the template writes another text"


class Stretch(NamedTuple):
    """The characters `start` to `stop` of an output, which are those of a text."""

    start: int
    stop: int
    leaf: Leaf


def stretches_of(
    output: str, other: str, lettered: Lettered, controls: ControlTokens
) -> tuple[list[Stretch], list[Leaf]]:
    """The stretches of the parts of texts in an output, ascending, and the parts that are not in it.

    Args:
        output: the output of the template on the conversation as it is.
        other: that on the lettered conversation.

    Raises:
        Unseen: the letters do not show where the texts are.
    """
    in_order = _in_order(output, other, lettered)
    if in_order is not None:
        return in_order, []
    other = lettered.unescaped(other)
    found = _anywhere(output, other, lettered.marks, controls)
    seen = {id(stretch.leaf) for stretch in found}
    unwritten = [leaf for leaf in lettered.leaves if id(leaf) not in seen] if len(seen) < len(lettered.leaves) else []
    return found, unwritten


def _in_order(output: str, other: str, lettered: Lettered) -> list[Stretch] | None:
    """The stretches if each text is in the output once, in order and unchanged; `None` if not. Most outputs are so."""
    if lettered.has_scalars or len(other) != len(output):
        return None
    found, parts, at = list[Stretch](), list[str](), 0
    letters = iter(lettered.marks)
    for leaf in lettered.leaves:
        text, first, last = leaf.text, leaf.first, leaf.last
        start = other.find(next(letters), at)
        if start < 0:
            return None
        parts += other[at:start], text[first : last + 1]
        at = start + 1
        if last > first:
            stop = other.find(next(letters), at)
            if stop - start != last - first or not other.startswith(text[first + 1 : last], at):
                return None
            at = stop + 1
        found.append(Stretch(start, at, leaf))
    parts.append(other[at:])
    return found if "".join(parts) == output else None


def _anywhere(output: str, other: str, marks: Mapping[str, Mark], controls: ControlTokens) -> list[Stretch]:
    """The stretches wherever the texts are, as they are or as JSON writes them.

    A description may be changed, such as with `//` before each of its lines, if it has no control token then.

    A letter in the place of a number may be written with quotes around it, where the number has none::

        other    {"near": "①", "place": "②③"}
        output   {"near": true, "place": "Weir"}
    """
    found, at, number, quote = list[Stretch](), 0, 0, ""
    parts = _IS_LETTER.split(other)  # text, letter, text, letter, text
    if not {*parts[1::2]} <= marks.keys():  # a text has letters of its own
        parts = re.split(f"([{''.join(marks)}])", other) if marks else [other]
    most = len(parts) - 1
    while number < most:
        text = parts[number].removeprefix(quote) if quote else parts[number]
        leaf, is_last, first = marks[parts[number + 1]]
        _, _, whole, begin, end, _, _, forms = leaf
        quote, number = "", number + 2
        if forms and not output.startswith(text, at):
            quote = _quote(output, at, text, parts[number])
            text = text[: len(text) - len(quote)]
        if not output.startswith(text, at):
            raise Unseen(_OTHER_TEXT)
        at += len(text)
        if forms or begin == end:
            form = next((form for form in forms or _forms_of_end(first) if output.startswith(form, at)), None)
            if form is None:
                raise Unseen(_OTHER_TEXT)
            size = len(form)
        else:
            # The other letter comes next, after the rest of the text.
            if is_last or number >= most or marks[parts[number + 1]][0] is not leaf:
                raise Unseen("the template writes a part of a text")
            inner, text = parts[number], whole[begin : end + 1]
            if inner != text[1:-1]:
                is_written = _is_written(inner, text[1:-1])
                text = f"{first}{inner}{text[-1]}"
                if not is_written and (leaf.field != "tools" or controls.first(text)):
                    raise Unseen("the template changes a text")
            if not output.startswith(text, at):
                ends = zip(_forms_of_end(first), _forms_of_end(text[-1]), strict=True)
                text = next((one for one in map(inner.join, ends) if output.startswith(one, at)), "")
                if not text:
                    raise Unseen(_OTHER_TEXT)
            size = len(text)
            number += 2
        found.append(Stretch(at, at + size, leaf))
        at += size
    if output[at:] != parts[-1].removeprefix(quote):
        raise Unseen(_OTHER_TEXT)
    return found


def _quote(output: str, at: int, text: str, following: str) -> str:
    """The quote around a letter, `"` or `<|"|>`, which the output has not around a number; "" for none."""
    for size in range(1, min(_LONGEST_QUOTE, len(text), len(following)) + 1):
        if text[-size:] == following[:size] and output.startswith(text[:-size], at):
            return text[-size:]
    return ""


def _forms_of_end(character: str) -> tuple[str, str, str]:
    """The first or last character of a text in HTML, in JSON of ASCII alone, and as it is."""
    return str(escape(character)), json.dumps(character)[1:-1], character


def _is_written(written: str, text: str) -> bool:
    return written == text or written in forms_of(text)


def with_edges(output: str, found: Sequence[Stretch]) -> list[Stretch]:
    """The stretches with the signs around them that have no letters, and with strings that stay between two parts."""
    joined: list[Stretch] = []
    for number, one in enumerate(found):
        start, stop, leaf = one
        if leaf.field == "content" and (leaf.first > 0 or output[start - 1 : start] == '"'):
            quoted = _in_quotes(output, one)
            if quoted is not None:
                joined.append(quoted)
                continue
        if leaf.first == 0 and leaf.last + 1 == len(leaf.text):  # letters at both ends, as most texts have
            joined.append(one)
            continue
        text, least = leaf.text, joined[-1].stop if joined else 0
        if leaf.first > 0 and not leaf.forms:
            before = text[leaf.before : leaf.first]
            if leaf.number and joined and _is_part_before(joined[-1].leaf, leaf):
                if before.strip() and _is_written(output[least:start], before):
                    start = joined.pop().start
            elif before.strip():
                start -= _shared(output[least:start].endswith, before.lstrip())
        if leaf.last + 1 < len(text) and not leaf.forms:
            most = found[number + 1].start if number + 1 < len(found) else len(output)
            after = text[leaf.last + 1 :]
            is_followed = number + 1 < len(found) and _is_part_before(leaf, found[number + 1].leaf)
            if after.strip() and not is_followed:
                stop += _shared(output[stop:most].startswith, after.rstrip())
        joined.append(one if (start, stop) == one[:2] else Stretch(start, stop, leaf))
    return joined


def _in_quotes(output: str, stretch: Stretch) -> Stretch | None:
    """A text with the quotes around it, if the output has it as JSON writes a whole text; else `None`."""
    start, _, leaf = stretch
    if leaf.number:
        return None
    # The first letter of ` a` is at 2 in `" a"`.
    begin = start - len(json.dumps(leaf.text[: leaf.first], ensure_ascii=False)) + 1
    whole = json.dumps(leaf.text, ensure_ascii=False)
    is_there = begin >= 0 and output.startswith(whole, begin)
    return Stretch(begin, begin + len(whole), leaf) if is_there else None


def with_declarations(output: str, stretches: list[Stretch], controls: ControlTokens, tools: Any) -> list[Stretch]:
    """The stretches with the declarations of tools as one label, unless the template writes control tokens in them."""
    if not tools:
        return stretches
    found, declared = list[Stretch](), set[str]()
    for stretch in stretches:
        fields = {stretch.leaf.field, found[-1].leaf.field} if found else set[str]()
        if fields == {"tools", "label"}:  # a name that a call also has
            declared = declared or {*strings_in(tools)}
            is_declared = stretch.leaf.text in declared and found[-1].leaf.text in declared
        else:
            is_declared = fields == {"tools"}
        if is_declared:
            last = found[-1]
            leaf = last.leaf if last.leaf.field == "tools" else stretch.leaf
            found[-1] = Stretch(last.start, stretch.stop, leaf)
        else:
            found.append(stretch)
    if len(found) == len(stretches):
        return stretches
    written = [output[one.start : one.stop] for one in found if one.leaf.field == "tools"]
    return stretches if any(map(controls.first, written)) else found


def _is_part_before(one: Leaf, other: Leaf) -> bool:
    return one.message == other.message and one.text is other.text and one.number + 1 == other.number


def _shared(is_there: Callable[[str], bool], text: str) -> int:
    """How many characters beside a stretch are this text, in any of its forms."""
    return max((len(form) for form in forms_of(text) if is_there(form)), default=0)
