"""Rules on what messages say that no format means: damaged text, markup of other templates, tags of reasoning."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

from niels_gpt.doctor.counters import Counters
from niels_gpt.doctor.rows import ChatRow, texts_of
from niels_gpt.messages import Message, reasoning_of

SHOWN: Final = 30  # characters of a message on each side of what was found
MESSAGES: Final = "texts of users and assistants"
# Of these texts: the share that is a remark, and a warning; one alone is neither.
FEWEST, REMARK, WARNING = 2, 0.001, 0.005
Fault = Callable[[ChatRow, Message, str], str | None]  # the first fault of a text of a message, in words


def _around(text: str, start: int, stop: int) -> str:
    return repr(text[max(0, start - SHOWN) : stop + SHOWN])


# ---- damaged text

# What the bytes 80 to BF of UTF-8 look like when they are read as Windows-1252 or Latin-1: all of them, and those that
# may not follow a capital letter in sound text, as quotation marks and dashes may («CAFÉ»).
_ANY: Final = "€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ\xa0-¿\x80-\x9f"
_BEHIND: Final = "€‚ƒ„†‡ˆ‰Š‹ŒŽ•˜™š›œžŸ¡-ª¬-º¼-¿\x80-\x9f"
# How damage begins: one set of characters is searched several times faster than the alternatives below.
_BEGINS: Final = re.compile("[\0\ufffd\x80-\x84\x86-\x9fÃÂâðÐÑà-íï├]")
DAMAGED: Final = re.compile(
    "[\0\ufffd\x80-\x84\x86-\x9f]"  # what decoders write for bytes that they cannot read; controls, which no text has
    f"|Ã[{_BEHIND}]|Â[¡-º¼-¿]|(?:[ÐÑ][{_ANY}]){{2}}"  # é, ü and so on; degree and pound signs; Cyrillic
    f"|â€[{_ANY}]|ðŸ[{_ANY}]"  # quotation marks and dashes; emoji
    # Chinese, Japanese, Korean, the scripts of India, Thai; but no letters in quotation marks (“é”“è”)
    f"|(?:[à-í](?!”“|“„|»«|«»)[{_ANY}]{{2}}){{2}}"
    "|ï»¿|ï¿½|├[áíóúñÑªº¿⌐¬½¼¡«»]"  # a byte order mark; U+FFFD itself; é, ü and so on in a console (code page 437)
)
# Where a conversation is about encodings, it shows what damage looks like, at a few places of a text.
EXAMPLES: Final = 5
_ABOUT_ENCODINGS: Final = re.compile(
    r"\butf-?(?:8|16)|unicode|mojibake|charset|character set|encoding|code ?page|latin-?1\b|windows-?125\d|iso.?8859",
    re.I,
)


def _damage(chat: ChatRow, text: str) -> str | None:
    """What shows that a text was decoded wrongly; `None` also for a few examples in a conversation about encodings."""
    found = DAMAGED.search(text) if _BEGINS.search(text) else None
    if found is None or (len(DAMAGED.findall(text)) <= EXAMPLES and _about_encodings(chat)):
        return None
    return f"{found.group()!r} in {_around(text, *found.span())}"


def _about_encodings(chat: ChatRow) -> bool:
    """Whether a conversation is about encodings; code that names one (`encoding="utf-8"`) is not."""
    texts = (text for message in chat.messages for text in texts_of(message))
    return any(_ABOUT_ENCODINGS.search(_CODE.sub(" ", text)) for text in texts)


# ---- templates

_CODE: Final = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.S)
# What other templates write around messages. Control tokens of the tokenizer itself are `special-tokens-in-content`.
TEMPLATE_TEXT: Final = re.compile(
    r"<\|im_(?:start|end|sep)\|>|\[/?INST\]|<</?SYS>>|<\|(?:start|end)_header_id\|>|<\|(?:eot_id|eom_id|begin_of_text)\|>"
    r"|<(?:start|end)_of_turn>|<\|(?:user|assistant|system|end)\|>|<\|start\|>(?:user|assistant|system)"
    r"|<｜(?:User|Assistant|(?:begin|end)▁of▁sentence)｜>|<\|(?:endoftext|end_of_text)\|>|\[(?:gMASK|AVAILABLE_TOOLS)\]"
    r"|<\|(?:START|END)_OF_TURN_TOKEN\|>|</s>[ \t]*$"
    r"|^#{2,3} ?(?:Instruction|Response|Human|Assistant|User|Input) ?: *\n",
    re.M,
)
# Where a text is about templates, it quotes them.
_ABOUT_TEMPLATES: Final = re.compile(
    r"templat|token|chatml|prompt format|special|llama|mistral|alpaca|fine-?tun|<s>", re.I
)


def _template_text(message: Message, text: str, controls: Collection[str]) -> str | None:
    if not TEMPLATE_TEXT.search(text) or _ABOUT_TEMPLATES.search(TEMPLATE_TEXT.sub(" ", text)):
        return None
    prose = _CODE.sub(" ", text)
    found = next((one for one in TEMPLATE_TEXT.finditer(prose) if one.group().strip() not in controls), None)
    role = message["role"]
    return f"{found.group().strip()!r} in {_around(prose, *found.span())}, of the {role}" if found else None


# ---- reasoning written into contents

# Tags around reasoning, in any case. A whole block before the answer, as models write it; dialects and renderers that
# read it take it for the reasoning.
TAGS: Final = "think|thinking|thought|reasoning|seed:think"
BLOCK: Final = re.compile(rf"\s*<({TAGS})>((?!</?\1>).)*</\1>", re.S | re.I)
THINK: Final = re.compile(
    rf"</?(?i:{TAGS})>|\[/?THINK\]|<\|(?:begin|end)_of_thought\|>"
    r"|<\|channel\|>analysis|◁/?think▷|<\|(?:START|END)_THINKING\|>"
)
QUOTES: Final = ("`", "'", '"')  # a tag in quotation marks is only mentioned
# Characters between two tags that a prompt may have: `<think> reasoning process here </think>` explains the form.
EXPLAINED: Final = 40


def _tag_fault(message: Message, text: str) -> str | None:
    """A tag of reasoning anywhere but as one whole block before an answer, which formats read."""
    if text == message.get("reasoning_content"):  # which may mention them
        return None
    if message["role"] != "assistant":
        # A question about such tags is in order; a pair of them around a text is reasoning that was left in.
        long = (found for found in BLOCK.finditer(text) if len(found.group()) - 2 * len(found[1]) >= EXPLAINED)
        block = next(long, None)
        return f"the {message['role']} message holds reasoning: {_around(text, *block.span())[:80]}" if block else None
    block = BLOCK.match(text)
    if block and reasoning_of(message):
        return "the content begins with a block of reasoning, and the message has reasoning of its own"
    rest = text[block.end() :] if block else text
    found = next((one for one in THINK.finditer(rest) if rest[one.start() - 1 : one.start()] not in QUOTES), None)
    return f"{found.group()!r} in {_around(rest, *found.span())}" if found else None


# ---- all of them


def _faults(controls: Collection[str]) -> tuple[tuple[str, re.Pattern[str], Fault], ...]:
    """Rule, what a text with such a fault holds, and the fault of one text.

    Searching some hundred conversations at once costs a small part of searching each of their messages, and most hold
    none of these.
    """
    return (
        ("text-damaged", _BEGINS, lambda chat, _, text: _damage(chat, text)),
        ("template-text-in-content", TEMPLATE_TEXT, lambda _, message, text: _template_text(message, text, controls)),
        ("think-tags-in-content", THINK, lambda _, message, text: _tag_fault(message, text)),
    )


def _argument_texts(chat: ChatRow) -> Iterator[tuple[int, Message, str]]:
    """Message index, message and the arguments of each call, as JSON text."""
    for index, message in enumerate(chat.messages):
        for tool_call in message.get("tool_calls") or ():
            yield index, message, json.dumps(tool_call["function"]["arguments"], ensure_ascii=False, default=str)


def check(chats: Sequence[ChatRow], counters: Counters, controls: Collection[str] = ()) -> None:
    """Judge the contents of messages; the first fault of a message is enough.

    Args:
        controls: texts of the tokenizer's control tokens.
    """
    spoken = [
        (chat, index, message, text)
        for chat in chats
        for index, message in enumerate(chat.messages)
        for text in (*texts_of(message), *filter(None, [reasoning_of(message)]))
    ]
    # Arguments of calls are no prose, so they are searched for damage only.
    called = [(chat, index, message, text) for chat in chats for index, message, text in _argument_texts(chat)]
    for rule, may_hold, fault in _faults(controls):
        searched = spoken + called if rule == "text-damaged" else spoken
        if not may_hold.search("\n".join(text for *_, text in searched)):
            continue
        found = [(chat, index, note) for chat, index, message, text in searched if (note := fault(chat, message, text))]
        places = {(chat.number, index): chat.evidence(index, note) for chat, index, note in reversed(found)}
        counters.add(rule, [places[place] for place in sorted(places)])
    counters.sums[MESSAGES] += sum(message["role"] in ("user", "assistant") for _, _, message, _ in spoken)


def finish(counters: Counters) -> None:
    """Drop or soften rare markup of templates: one word of it may be meant. Called after the last row."""
    total = counters.sums[MESSAGES]
    counters.keep_frequent("template-text-in-content", max(FEWEST, REMARK * total), WARNING * total)
