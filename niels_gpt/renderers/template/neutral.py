"""Refuses renderings in which a text of the caller decides which control tokens the template writes.

Only characters of the template's own constants become control tokens (`attribution.py`). But how often a template
writes a constant may depend on a content::

    {{ content.split('<|im_end|>') | join('<|im_end|>') }}       content  a<|im_end|>b     writes one <|im_end|> more
    {% if 'secret' in content %}<|im_end|>{% endif %}

So if the template has read texts (`reads.py`), the same conversation is rendered with neutral texts, in which it can
find nothing: repetitions of a letter that does not occur in the template. Both renderings must have the same control
tokens in the same order.

The neutral conversation depends only on the shape of the real one: which messages, parts, calls and arguments there
are, their roles, which texts are empty or white space, and types, ids and keys that are single words. So all
conversations of one shape are rendered with the same control tokens, or refused.

A system message may contain switches of its format (`/system_override` of SmolLM3): words that the template searches
for. The author of a system message is trusted with them, so they belong to the shape; in other messages they do not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import MessageError, shown
from niels_gpt.messages import Message
from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.kinds import CONTROL
from niels_gpt.renderers.template.attribution import CONTENT_FIELDS, UNKNOWN_ROLE, ControlTokens, Span
from niels_gpt.renderers.template.execution.provenance import LABEL
from niels_gpt.renderers.template.execution.reads import Reads
from niels_gpt.renderers.template.proofs.substitution import COMPARED_KEYS, free_letters

_RETAINED_FIELDS: Final = frozenset({"role", "train", "weight"})  # the roles are part of the shape
_SWITCHING_ROLES: Final = ("system", "developer")
_LENGTH: Final = 16  # of a neutral text, in characters
_NUMBER: Final = 7  # instead of a number
_WORD: Final = re.compile(r"[\w.:/-]{0,64}", re.ASCII)


def check_chosen_controls(
    out: Emitter,
    reads: Reads,
    neutral: Neutral,
    neutral_spans: Callable[[list[Message], Any], Sequence[Span]],
    inputs: tuple[Sequence[Message], Any],
) -> None:
    """Compare a rendering's control tokens with those of the neutral conversation, if there is a reason to.

    Args:
        out: the rendering.
        reads: what the template has read in it.
        neutral: makes the neutral conversation.
        neutral_spans: renders other messages and tools.
        inputs: the messages and the tools.

    Raises:
        MessageError: `content_chooses_control_tokens`.
    """
    (messages, tools), controls = inputs, neutral.controls
    # Labels that were compared with the template's words matter only if one of them spells a control token, and
    # repetitions only if the caller has numbers at all.
    spells = reads.words and _holds(
        [tools, *({key: value for key, value in m.items() if key not in _RETAINED_FIELDS} for m in messages)],
        lambda value: isinstance(value, str) and bool(controls.first(value)),
    )
    if not (reads.texts or spells or (reads.numbers and _holds([messages, tools], _is_number))):
        return
    try:
        spans = neutral_spans([neutral.message(message) for message in messages], neutral.label(tools))
    except MessageError as error:
        raise _refusal(f"it refuses the same conversation with other texts ({error})") from error
    # Here only the template's own constants become control tokens. The neutral contents spell none, so that everything
    # but labels counts there, also text whose origin was lost.
    found = _tokens_within(out.texts, [bool(facts & CONTROL) for facts in out.facts], controls)
    is_written = [span.origin not in (LABEL, UNKNOWN_ROLE) for span in spans]
    expected = _tokens_within([span.text for span in spans], is_written, controls)
    if expected == found:
        return
    at = next((at for at, (one, other) in enumerate(zip(expected, found, strict=False)) if one != other), None)
    at = min(len(expected), len(found)) if at is None else at
    one, other = (repr(tokens[at]) if at < len(tokens) else "none" for tokens in (found, expected))
    raise _refusal(f"with other texts in their place, control token {at + 1} is {other}, and here it is {one}")


def _refusal(what: str) -> MessageError:
    return MessageError(
        "content_chooses_control_tokens",
        f"a text of the conversation decides which control tokens the chat template writes: {shown(what, 300)}. Take "
        "out of the texts what the template searches for (such as a control token), or use another template",
    )


def _tokens_within(texts: list[str], is_written: list[bool], controls: ControlTokens) -> list[str]:
    """The control tokens in the joined texts that are made of text that the template writes, and of nothing else."""
    # One flag for each character, since a control token may begin in one text and end in the next: of texts of 2 and
    # 3 characters, of which the second is the template's, the flags are . . # # #.
    flags = np.repeat(np.array(is_written, np.bool_), [len(text) for text in texts])
    text = "".join(texts)
    return [text[start:stop] for start, stop in controls.places(text) if flags[start:stop].all()]


def _holds(value: Any, is_such: Callable[[Any], bool]) -> bool:
    """Whether there is such a value in a value, at any depth, keys included."""
    if isinstance(value, Mapping):
        return any(_holds(key, is_such) or _holds(item, is_such) for key, item in value.items())
    if isinstance(value, list | tuple):
        return any(_holds(item, is_such) for item in value)
    return is_such(value)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


class Neutral:
    """Makes the neutral conversation of a shape.

    It is the same for all texts, so that all renderings are compared with the same control tokens. Equal names have
    equal neutral names: templates look up results by the name of their call.

    Args:
        avoid: the template's text and the conversation, whose characters are not used.
        tested: words that the template looks for in texts, see `TemplateStrings`.
        controls: the control tokens; words that hold one are no switches.
    """

    def __init__(self, avoid: Sequence[object], tested: Sequence[str], controls: ControlTokens) -> None:
        self.controls = controls
        self._avoid, self._tested = avoid, tested
        self._count = 0
        self._names: dict[str, str] = {}

    @cached_property
    def _letters(self) -> npt.NDArray[np.uint32]:
        # Computed when it is needed: most conversations are never compared with a neutral one.
        return free_letters("".join(map(str, self._avoid)))

    def message(self, message: Message) -> Any:
        """The message with neutral contents and labels."""
        neutral = {key: value for key, value in message.items() if key in _RETAINED_FIELDS}
        neutral |= self.label(
            {key: value for key, value in message.items() if key not in _RETAINED_FIELDS | CONTENT_FIELDS}
        )
        neutral |= {key: self._content(value) for key, value in message.items() if key in CONTENT_FIELDS}
        content = message.get("content")
        if message["role"] in _SWITCHING_ROLES and isinstance(content, str):
            # The words in it that the template looks for are switches, and stay.
            switches = [word for word in self._tested if word in content and not self.controls.first(word)]
            neutral["content"] = " ".join([self._text(content), *switches])
        # In the order of the message's own fields: a template may write a whole message, as JSON.
        names = {key: key if key in neutral else self._label(key) for key in message}
        return {name: neutral[name] for name in names.values()}

    def label(self, value: Any) -> Any:
        """A value with its strings replaced that are not single words, and all names."""
        if isinstance(value, str):
            return self._label(value)
        if isinstance(value, Mapping):
            return {
                self._label(key): self._name(item) if _is_name(key, item) else self.label(item)
                for key, item in value.items()
            }
        return [self.label(item) for item in value] if isinstance(value, list | tuple) else value

    def _label(self, text: str) -> str:
        return text if _WORD.fullmatch(text) else self._name(text)

    def _content(self, value: Any) -> Any:
        """A content with its texts and numbers replaced, but for keys, kinds and ids that are single words."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            return {
                self._label(key): self.label(item)
                if key in COMPARED_KEYS
                else self._name(item)
                if _is_name(key, item)
                else self._content(item)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._content(item) for item in value]
        return type(value)(_NUMBER) if _is_number(value) else value

    def _name(self, text: str) -> str:
        # Templates compare names with each other, so equal names must stay equal.
        if text not in self._names:
            self._names[text] = self._text(text)
        return self._names[text]

    def _text(self, text: str) -> str:
        """A text that shows nothing of this one but whether it is empty or white space."""
        if not text.strip():
            return text and " "
        # Neighbouring texts get different letters: a template may compare two of them, and finds them different.
        self._count += 1
        return chr(int(self._letters[self._count % len(self._letters)])) * _LENGTH


def _is_name(key: str, value: Any) -> bool:
    return key == "name" and isinstance(value, str)
