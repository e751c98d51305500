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
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import MessageError, shown
from niels_gpt.forks import cached_property
from niels_gpt.messages import REASONING_FIELDS, Message
from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.template.attribution import UNKNOWN_ROLE, ControlTokens, Span
from niels_gpt.renderers.template.execution.provenance import LABEL
from niels_gpt.renderers.template.execution.reads import Reads
from niels_gpt.renderers.template.proofs.substitution import COMPARED_KEYS, free_letters
from niels_gpt.renderers.types import SCAFFOLD

_CONTENT_FIELDS: Final = frozenset({"content", "tool_calls", *REASONING_FIELDS})
_KEPT_FIELDS: Final = frozenset({"role", "train", "weight"})
_SWITCHING_ROLES: Final = ("system", "developer")
_LENGTH: Final = 16  # of a neutral text
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
    spelled = reads.words and _holds(_labels(messages, tools), lambda value: _spells(value, controls))
    if not (reads.texts or spelled or (reads.numbers and _holds([messages, tools], _is_number))):
        return
    try:
        spans = neutral_spans([neutral.message(message) for message in messages], neutral.label(tools))
    except MessageError as error:
        raise _refusal(f"it refuses the same conversation with other texts ({error})") from error
    expected, found = _spelled(spans, controls), _written(out, controls)
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


def _written(out: Emitter, controls: ControlTokens) -> list[str]:
    """The control tokens of a rendering that become ids."""
    # One flag for each character, since a control token may begin in one piece and end in the next: of pieces of 2 and
    # 3 characters, of which the second is scaffold, the flags are . . # # #.
    own = np.repeat(np.array([bool(facts & SCAFFOLD) for facts in out.facts], np.bool_), list(map(len, out.texts)))
    text = "".join(out.texts)
    return [text[start:stop] for start, stop in controls.places(text) if own[start:stop].all()]


def _spelled(spans: Sequence[Span], controls: ControlTokens) -> list[str]:
    """The control tokens of the neutral rendering that are no label. Its contents spell none."""
    own = np.repeat(
        np.array([span.origin not in (LABEL, UNKNOWN_ROLE) for span in spans], np.bool_),
        [len(span.text) for span in spans],
    )
    text = "".join(span.text for span in spans)
    return [text[start:stop] for start, stop in controls.places(text) if own[start:stop].all()]


def _labels(messages: Sequence[Message], tools: Any) -> list[Any]:
    return [tools, *({k: v for k, v in message.items() if k not in _KEPT_FIELDS} for message in messages)]


def _holds(value: Any, is_such: Callable[[Any], bool]) -> bool:
    """Whether there is such a value in a value, at any depth, keys included."""
    if isinstance(value, Mapping):
        return any(_holds(key, is_such) or _holds(item, is_such) for key, item in value.items())
    if isinstance(value, list | tuple):
        return any(_holds(item, is_such) for item in value)
    return is_such(value)


def _spells(value: Any, controls: ControlTokens) -> bool:
    return isinstance(value, str) and bool(controls.first(value))


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
        self._made = 0
        self._names: dict[str, str] = {}

    @cached_property
    def _letters(self) -> npt.NDArray[np.uint32]:
        # Computed when it is needed: most conversations are never compared with a neutral one.
        return free_letters("".join(map(str, self._avoid)))

    def message(self, message: Message) -> Any:
        """The message with neutral contents and labels."""
        made = {key: value for key, value in message.items() if key in _KEPT_FIELDS}
        made |= self.label({key: value for key, value in message.items() if key not in _KEPT_FIELDS | _CONTENT_FIELDS})
        made |= {key: self._content(value) for key, value in message.items() if key in _CONTENT_FIELDS}
        content = message.get("content")
        if message["role"] in _SWITCHING_ROLES and isinstance(content, str):
            made["content"] = " ".join([self._text(content), *self._switches(content)])
        names = {key: key if key in made else self._label(key) for key in message}
        return {name: made[name] for name in names.values()}

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

    def _switches(self, text: str) -> list[str]:
        """The words in a system message that the template looks for."""
        return [word for word in self._tested if word in text and not self.controls.first(word)]

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
        self._made += 1
        return chr(int(self._letters[self._made % len(self._letters)])) * _LENGTH


def _is_name(key: str, value: Any) -> bool:
    return key == "name" and isinstance(value, str)
