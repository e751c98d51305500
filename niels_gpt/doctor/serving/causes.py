"""Where two prompts of one conversation part, and the likely cause.

::

    trained   <|im_start|> user \\n     Hi <|im_end|>
    served    <|im_start|> user \\n\\n  Hi <|im_end|>
                                ^ token 2, of the template, in message 0: white space alone, so "white-space"

The first token that differs decides. Each question of `_CAUSES` is asked of it (`Block`) in order; the first that says
yes names the cause.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from niels_gpt.messages import Message
from niels_gpt.renderers.kinds import CONTENT, Kind

_OF_CALLERS: Final = ("context", "reply", "reasoning", "label")  # kinds of the texts of messages
_AROUND: Final = 40  # characters of text that are shown on each side
_DATE = re.compile(r"\d{4}-\d\d-\d\d|\d{1,2} \w{3,9},? \d{4}|\w{3,9} \d{1,2},? \d{4}|\d{1,2}[/.]\d{1,2}[/.]\d{2,4}")


@dataclass(frozen=True)
class Difference:
    """The first difference of two prompts.

    Attributes:
        at: the place of the first token that differs.
        trained, served: the text before and after it, the differing token between two marks.
        message: the index of the message that it belongs to in what is trained; -1 for none.
        kind: what the token is in what is trained (`Kind`, in small letters); "end" after its last token.
        cause: one of `CAUSES`.
    """

    at: int
    trained: str
    served: str
    message: int
    kind: str
    cause: str


@dataclass(frozen=True)
class Block:
    """The first difference and where it is.

    Attributes:
        texts: what is trained, what is served.
        message, kind: see `Difference`.
        is_before, is_after: it is before the first content of a message; after the last.
    """

    texts: tuple[str, str]
    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None
    message: int
    kind: str
    bos: str
    is_before: bool
    is_after: bool


CAUSES: Final[Mapping[str, str]] = {
    "bos": "one side begins with a bos token that the other lacks or has twice: see add_bos_token of "
    "tokenizer_config.json and the server's options",
    "control-tokens": "a message spells a control token: training keeps it as text, and the server reads it as the "
    "token itself, so that whoever writes it there can end a turn",
    "tokenizer": "the texts are equal and the ids are not: another tokenizer, or another list of control tokens",
    "date": "both write a date, and not the same: give the renderer the day that the server writes (--date)",
    "reasoning": "one side keeps the reasoning of earlier answers and the other drops it: other options of the "
    "template, or reasoning under a name that the server does not read",
    "tools": "declarations of tools are spelled otherwise: order of keys, separators or escapes of JSON",
    "white-space": "white space around a header or a content: another version of the template, or contents that one "
    "side trims",
    "generation-prompt": "the prompts end differently: options of the template, such as enable_thinking, that only one "
    "side is given (--chat-template-kwarg), or another version",
    "default-system": "one side writes a system text that the conversation does not have: another version of the "
    "template, or the server's own default",
    "arguments": "arguments of a call are spelled otherwise: one side writes the caller's text, the other decodes it "
    "and writes it anew",
    "content": "a content is written otherwise: parts that are joined in another way, or texts that one side changes",
    "template": "another template: compare the server's with the one beside the tokenizer",
}


def first_difference(
    trained: tuple[Sequence[int], Sequence[int], Sequence[int]],
    served: tuple[Sequence[int], str | None],
    conversation: tuple[Sequence[Message], Any],
    spell: Callable[[Sequence[int]], str],
    bos: str = "",
) -> Difference | None:
    """The first difference of a prompt as it is trained and as it is served; `None` where there is none.

    Args:
        trained: ids, and the message and kind of each.
        served: ids, and the server's own text where it returns one.
        conversation: messages and tools.
        spell: ids -> text.
        bos: the tokenizer's bos token, if it has one.
    """
    ours, theirs = list(trained[0]), list(served[0])
    if ours == theirs:
        return None
    at = _shared(ours, theirs)
    inside = at < len(ours)
    message, kind = (trained[1][at], Kind(trained[2][at]).name.lower()) if inside else (-1, "end")
    contents = [place for place, found in enumerate(trained[2]) if found & CONTENT]
    texts = spell(ours), served[1] or spell(theirs)
    block = Block(
        texts,
        conversation[0],
        conversation[1],
        message,
        kind,
        bos,
        is_before=at <= (contents[0] if contents else len(ours)),
        is_after=at > (contents[-1] if contents else -1),
    )
    cause = next(name for name, holds in _CAUSES if holds(block))
    return Difference(at, _around(ours, at, spell), _around(theirs, at, spell), message, kind, cause)


def _shared(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """How many tokens both begin with: of 5 7 9 and 5 7 8 they are 2."""
    pairs = zip(ours, theirs, strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(ours), len(theirs)))


def _around(ids: Sequence[int], at: int, spell: Callable[[Sequence[int]], str]) -> str:
    before, after = spell(ids[max(0, at - _AROUND) : at]), spell(ids[at + 1 : at + 1 + _AROUND])
    token = spell(ids[at : at + 1]) if at < len(ids) else ""
    return f"{before[-_AROUND:]}»{token}«{after[:_AROUND]}"


# ---- the questions, in the order in which they are asked


def _bos(block: Block) -> bool:
    one, other = block.texts
    if not block.bos:
        return False
    return _leading(one, block.bos) != _leading(other, block.bos)


def _leading(text: str, bos: str) -> int:
    """How many times a text begins with bos."""
    count = 0
    while text.startswith(bos, count * len(bos)):
        count += 1
    return count


def _date(block: Block) -> bool:
    one, other = (_DATE.sub("DATE", text) for text in block.texts)
    return one != block.texts[0] and len(_common(one, other)) > len(_DATE.sub("DATE", _common(*block.texts)))


def _common(one: str, other: str) -> str:
    return one[: _shared([*map(ord, one)], [*map(ord, other)])]


def _white_space(block: Block) -> bool:
    """Both sides go on alike where white space is left out, and it is not that of JSON, after a bracket or comma."""
    place = len(_common(*block.texts))
    rest = [text[place:] for text in block.texts]
    bare = ["".join(text[: 4 * _AROUND].split())[:_AROUND] for text in rest]
    in_json = block.texts[0][:place].endswith(("{", "[", ",", ":"))
    return any(text[:1].isspace() for text in rest) and bare[0] == bare[1] and not in_json


def _default_system(block: Block) -> bool:
    """Before the first message one side has a text more, in a conversation without system message and tools."""
    has_system = any(message["role"] in ("system", "developer") for message in block.messages)
    place = len(_common(*block.texts))
    shorter, longer = sorted((text[place:] for text in block.texts), key=len)
    return block.is_before and not has_system and not block.tools and bool(shorter) and longer.endswith(shorter)


def _reasoning(block: Block) -> bool:
    """A reasoning is in one of the two only."""
    texts = [str(message["reasoning_content"]) for message in block.messages if message.get("reasoning_content")]
    return any((text.strip() in block.texts[0]) != (text.strip() in block.texts[1]) for text in texts)


def _tools(block: Block) -> bool:
    """The difference is within the declarations: from shortly before the first declared name to the last."""
    names = [str(tool["function"]["name"]) for tool in block.tools or ()]
    places = [block.texts[0].find(name) for name in names]
    place = len(_common(*block.texts))
    return bool(names) and (block.kind == "label" or min(places) - 2 * _AROUND <= place <= max(places))


def _arguments(block: Block) -> bool:
    return 0 <= block.message < len(block.messages) and bool(block.messages[block.message].get("tool_calls"))


_CAUSES: Final[tuple[tuple[str, Callable[[Block], bool]], ...]] = (
    ("bos", _bos),
    ("control-tokens", lambda block: block.texts[0] == block.texts[1] and block.kind in _OF_CALLERS),
    ("tokenizer", lambda block: block.texts[0] == block.texts[1]),
    ("date", _date),
    ("reasoning", _reasoning),
    ("tools", _tools),
    ("white-space", _white_space),
    ("generation-prompt", lambda block: block.is_after),
    ("default-system", _default_system),
    ("arguments", _arguments),
    ("content", lambda block: block.kind in _OF_CALLERS),
    ("template", lambda block: True),
)
