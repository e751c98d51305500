"""Renderings of the beginnings of one conversation, with letters, and which of their places correspond.

::

    all messages          <u>①②<e> <a>③④<e>
    messages[:1]          <u>①②<e>                 `aligned`: after ②, the last letter, both are at 5
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from niels_gpt.errors import MessageError
from niels_gpt.messages import Message
from niels_gpt.renderers.template.controls import ControlTokens
from niels_gpt.renderers.template.letters import Leaf, Lettered
from niels_gpt.renderers.template.proofs.proof import NONE, Ints
from niels_gpt.renderers.template.proofs.usual import Usual
from niels_gpt.renderers.template.stretches import Stretch, with_edges
from niels_gpt.renderers.template.strings import forms_of

Render = Callable[[Sequence[Message], bool], str]  # (messages, add_generation_prompt) -> the output


class Rendering:
    """The output on messages with letters.

    `letters` is the number of the letter at each character, -1 for none, int64 of shape (characters,); `known` are the
    positions that have one, ascending.
    """

    def __init__(self, text: str, lettered: Lettered) -> None:
        self.text, self.letters = text, lettered.find(text)
        self.known = np.flatnonzero(self.letters >= 0)


class Renderings:
    """The rendering of one conversation, and those of its beginnings, each made when it is first needed.

    Positions are in characters of the full rendering, which is as long with letters as without.

    Args:
        render: runs the template.
        messages, output: the conversation as it is, and its output.
        lettered: the same with letters in the contents, its output, and the stretches of the contents.
        gen: whether both outputs end in the generation prompt.

    Attributes:
        full: the rendering of all messages with letters.
        letter_message: for each character the message of its letter, -1 for none.
        content: for each character the message whose content it is, -1 for none.
        is_reasoning: whether it is of a message's reasoning.
        unlocated: messages with a text that is in the output, and nothing shows where.
    """

    def __init__(
        self,
        render: Render,
        controls: ControlTokens,
        messages: list[Message],
        output: str,
        lettered: tuple[Lettered, str, Sequence[Stretch]],
        *,
        gen: bool,
    ) -> None:
        self.controls, self.messages, self.output, self.gen = controls, messages, output, gen
        self.lettered, lettered_output, stretches = lettered
        # No method of `self`: in a cycle, all renderings of a long conversation would stay until a garbage collection.
        self._text = partial(_text_or_none, render, self.lettered)
        self.usual = Usual(self._text, controls)
        self.full = full = Rendering(lettered_output, self.lettered)
        self._renderings: dict[tuple[int, bool], Rendering | None] = {(len(messages), gen): full}
        self.letter_message = self.message_of(full.letters)
        self.content, self.is_reasoning = np.full(len(output), NONE, np.int64), np.zeros(len(output), np.bool_)
        for start, stop, leaf in self._with_spaces(with_edges(output, stretches)):
            self.content[start:stop] = leaf.message
            self.is_reasoning[start:stop] = leaf.field == "reasoning"
        # Texts without any letter (white space alone, a quote) are found by a letter in the place of each.
        self.unlocated: list[int] = []
        self._located: list[tuple[int, int]] = []  # those that are found: where each begins, and its message
        for index, (message, copy) in enumerate(zip(messages, self.lettered.messages, strict=True)):
            for key in ("content", "reasoning_content"):
                for text in {*_texts(message, key)} & {*_texts(cast(Message, copy), key)} - {""}:
                    if not self._locate_text(index, key, text):
                        self.unlocated.append(index)

    def message_of(self, letters: Ints) -> Ints:
        """The message of each letter, -1 where there is none."""
        return np.array([*(leaf.message for leaf, _, _ in self.lettered.marks.values()), NONE], np.int64)[letters]

    def rendering(self, count: int, gen: bool) -> Rendering | None:
        """The output on the first `count` messages with letters; `None` if the template refuses them."""
        if (count, gen) not in self._renderings:
            text = self.text(self.lettered.messages[:count], gen)
            self._renderings[count, gen] = None if text is None else Rendering(text, self.lettered)
        return self._renderings[count, gen]

    def text(self, messages: Sequence[Any], gen: bool = False) -> str | None:
        """The output on any messages, such as probes after a beginning; `None` if the template refuses them."""
        return self._text(messages, gen)

    def followed(self, index: int, *probes: Any) -> str | None:
        """The output on the messages with letters up to `index` and these after them; `None` if it is refused."""
        return self.text([*self.lettered.messages[: index + 1], *probes])

    def _with_spaces(self, stretches: Sequence[Stretch]) -> Iterator[Stretch]:
        """The stretches with white space at the ends of their texts, where the output differs without it.

        A template may strip users' texts and not results of tools, or join the parts of a content and strip the result:
        so end by end.
        """
        for start, stop, leaf in stretches:
            text, body = leaf.text, leaf.text.strip()
            lead, tail = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
            if lead and self.output[start] == body[0] and self._is_in_output(leaf, text.lstrip()):
                start -= max(len(form) for form in ("", *forms_of(lead)) if self.output.endswith(form, 0, start))
            if tail and self.output[stop - 1] == body[-1] and self._is_in_output(leaf, text.rstrip()):
                stop += max(len(form) for form in ("", *forms_of(tail)) if self.output.startswith(form, stop))
            yield Stretch(start, stop, leaf)

    def _is_in_output(self, leaf: Leaf, stripped: str) -> bool:
        """Whether the output differs with this text in the place of the leaf's; arguments are JSON, with all spaces."""
        key = "content" if leaf.field == "content" else "reasoning_content"
        other = _with_text(self.messages, leaf.message, key, leaf.text, stripped) if leaf.field != "call" else None
        return other is None or self.text(other, self.gen) != self.output

    def _locate_text(self, index: int, key: str, text: str) -> bool:
        """Find one such text, or one part of a content; false if it may be in the output and nothing shows where."""
        full, around = self.full.text, self._around(index, key, text)
        # A template writes a text as it is, or as JSON, whose escapes depend on the option of `tojson`.
        for form in forms_of(text):
            if len(around) > 1 and form.join(around) == full:
                start = 0
                for part in around[:-1]:
                    start += len(part)
                    self.content[start : start + len(form)] = index
                    self._located.append((start, index))
                    start += len(form)
                return True
        # Or the template strips it, or does as if it were empty.
        empty = _with_text(self.lettered.messages, index, key, text, "")
        return "".join(around) == full or self.text(empty, self.gen) == full

    def empty_content_position(self, index: int, begin: int, end: int) -> int | None:
        """Where a message without content would have it, by a letter in its place; `None` if that shows no position.

        Args:
            begin, end: the message's turn.
        """
        around = self._around(index, "content", next(iter(_texts(self.messages[index], "content")), ""))
        at = len(around[0])
        # Only if the letter changes nothing else: an empty content may be tested (`{% if content %}`).
        return at if "".join(around) == self.full.text and begin <= at <= end and len(around) == 2 else None

    def _around(self, index: int, key: str, text: str) -> list[str]:
        """The output around a letter in the place of a text; [""] if the template refuses."""
        spare = self.lettered.spare
        output = self.text(_with_text(self.lettered.messages, index, key, text, spare), self.gen)
        return (output or "").split(spare)

    def data_end(self, index: int) -> int:
        """The position after all content of the messages up to `index`."""
        letters = np.flatnonzero((self.letter_message <= index) & (self.letter_message >= 0))
        return self.after_content(int(letters[-1]) + 1) if len(letters) else 0

    def aligned(self, beginning: Rendering) -> tuple[int, int] | None:
        """Two positions that correspond, `(in beginning, in full)`: after the content of its last letter.

        `None` if the full rendering lacks it, because the template drops that text when messages follow.
        """
        if not len(beginning.known):
            return 0, 0
        # A template may write a text twice: with copies of the last letter at 3 7 in the beginning and 3 7 9 in the
        # full rendering, the second copy (7) corresponds to the second.
        last = int(beginning.known[-1])
        number = int(beginning.letters[last])
        count = int((beginning.letters == number).sum())
        copies = np.flatnonzero(self.full.letters == number)
        if not len(copies):
            return None
        at, full_at = last + 1, int(copies[min(count, len(copies)) - 1]) + 1
        rest = self.output[full_at : self.after_content(full_at)]  # signs without a letter, which both have
        return (at + len(rest), full_at + len(rest)) if beginning.text.startswith(rest, at) else (at, full_at)

    def next_data(self, position: int, *, after_message: int | None = None) -> int:
        """The start of the next content at or after `position`; the end of the output if there is none.

        Contents of messages after `after_message` count also if they have no letter (white space).
        """
        number = int(np.searchsorted(self.full.known, position))
        start = int(self.full.known[number]) if number < len(self.full.known) else len(self.output)
        if after_message is not None:
            start = min([start, *(at for at, message in self._located if at >= position and message > after_message)])
        if start == len(self.output):
            return start
        while start > position and self.content[start - 1] == self.content[start] >= 0:
            start -= 1
        return start

    def after_content(self, position: int) -> int:
        """The end of the content that the character before `position` belongs to; `position` if it belongs to none."""
        while 0 < position < len(self.content) and self.content[position] == self.content[position - 1] >= 0:
            position += 1
        return position

    def text_from(self, other: Rendering, position: int) -> str | None:
        """The text of another rendering from where it corresponds to `position` in the full one.

        `None` if the two differ between the last letter before `position` and `position`.
        """
        before = self.full.known[: int(np.searchsorted(self.full.known, position))]
        if not len(before):
            return other.text[position:] if other.text[:position] == self.full.text[:position] else None
        last = int(before[-1])
        copies = np.flatnonzero(other.letters == self.full.letters[last])
        if not len(copies):
            return None
        # The last letter is at 7 here and at 9 there, so position 10 here is 12 there.
        at = int(copies[-1]) - last + position
        is_same = other.text[at - (position - last) : at] == self.full.text[last:position]
        return other.text[at:] if is_same else None


def _text_or_none(render: Render, lettered: Lettered, messages: Sequence[Any], gen: bool) -> str | None:
    try:
        return lettered.unescaped(render(messages, gen))
    except MessageError:
        return None


def _texts(message: Message, key: str) -> list[str]:
    """The text of a message's content or reasoning, or those of its parts; "" for a part without text."""
    value: Any = cast(dict[str, Any], message).get(key) or ""
    return [value] if isinstance(value, str) else [part.get("text") or "" for part in value]


def _with_text(messages: Sequence[Any], index: int, key: str, old: str, new: str) -> list[Message]:
    """The messages with another text in the place of one in a message's content or reasoning, or in a part of it."""
    value: Any = cast(dict[str, Any], messages[index])[key]
    if isinstance(value, str):
        value = new
    else:
        value = [{**part, "text": new} if (part.get("text") or "") == old else part for part in value]
    return [*messages[:index], cast(Message, {**messages[index], key: value}), *messages[index + 1 :]]
