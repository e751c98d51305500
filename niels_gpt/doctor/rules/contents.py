"""Rules on what messages say, whatever the format: damaged text, repetition, tags of reasoning, secrets.

Those on shares of all answers are in `shares`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from niels_gpt.doctor.counters import Counters
from niels_gpt.doctor.rows import ChatRow, texts_of
from niels_gpt.doctor.rules.rule import Rule
from niels_gpt.messages import Message, reasoning_of

SHOWN: Final = 30  # characters of a message on each side of what was found


def _texts(message: Message) -> Iterator[str]:
    """The texts of a message's content, and its reasoning."""
    yield from texts_of(message)
    reasoning = reasoning_of(message)
    if reasoning:
        yield reasoning


def _around(text: str, start: int, stop: int) -> str:
    return repr(text[max(0, start - SHOWN) : stop + SHOWN])


# ---- damaged text

# What the bytes 80 to BF of UTF-8 look like when they are read as Windows-1252 or Latin-1, without the quotation marks,
# dashes and spaces that may follow a capital letter in sound text («CAFÉ»).
_BEHIND: Final = "€‚ƒ„†‡ˆ‰Š‹ŒŽ•˜™š›œžŸ¡-ª¬-º¼-¿\x80-\x9f"
_ANY: Final = "€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ\xa0-¿\x80-\x9f"  # quotation marks are meant
# How damage begins: one set of characters is searched several times faster than the alternatives below.
_BEGINS: Final = re.compile("[\ufffd\x80-\x84\x86-\x9fÃÂâðÐÑã-éï]")
DAMAGED: Final = re.compile(
    "\ufffd"  # what decoders write in the place of bytes that they cannot read
    "|[\x80-\x84\x86-\x9f]"  # control characters, which no text has
    f"|Ã[{_BEHIND}]|Â[¡-º¼-¿]"  # é, ü and so on; degree and pound signs
    f"|â€[{_ANY}]|ðŸ[{_ANY}]"  # quotation marks and dashes; emoji
    f"|(?:[ÐÑ][{_ANY}]){{2}}"  # Cyrillic
    f"|(?:[ã-é][{_ANY}]{{2}}){{2}}"  # Chinese, Japanese, Korean
    "|ï»¿|ï¿½"  # a byte order mark; U+FFFD itself
)


def _damaged(_: Message, text: str) -> str | None:
    # Most texts are ASCII, which is known without a search.
    sound = text.isascii() or not _BEGINS.search(text)
    found = None if sound else DAMAGED.search(text)
    return f"{found.group()!r} in {_around(text, *found.span())}" if found else None


# ---- repetition

REPEATS: Final = 10
REPEATED_CHARACTERS: Final = 240
_NEEDLE: Final = 24


def repeated(text: str) -> str | None:
    """A piece that is repeated at least `REPEATS` times, over `REPEATED_CHARACTERS` or more; `None` without one.

    The text is tried at its end and at three other places::

        ... I am I am I am I am      needle `am I am`, the same again 5 earlier: the piece has 5 characters
    """
    n = len(text)
    if n < REPEATED_CHARACTERS:
        return None
    for start in (n - _NEEDLE, n // 4, n // 2, n * 3 // 4):
        needle = text[start : start + _NEEDLE]
        before = text.rfind(needle, 0, start + _NEEDLE - 1)
        if before < 0 or start - before > n // REPEATS:
            continue
        period = start - before
        piece = text[before:start]
        times = max(REPEATS, -(-REPEATED_CHARACTERS // period))
        # Rules of tables and rows of digits are repeated on purpose.
        if (
            any(map(str.isalpha, piece))
            and piece * times in text[max(0, start - times * period) : start + times * period]
        ):
            return piece
    return None


def _loops(message: Message, text: str) -> str | None:
    piece = repeated(text) if message["role"] == "assistant" else None
    return f"{piece[: 2 * SHOWN]!r} is repeated {REPEATS} times or more" if piece else None


# ---- reasoning written into contents

THINK: Final = re.compile(
    r"</?(?:[Tt]hink|[Tt]hinking|[Tt]hought|[Rr]easoning)>|\[/?THINK\]|<\|(?:begin|end)_of_thought\|>"
)
# A whole block before the answer, as models write it; dialects and renderers that read it take it for the reasoning.
LEADING: Final = re.compile(r"\s*<(think|thinking|thought|reasoning)>((?!</?\1>).)*</\1>", re.S)


QUOTES: Final = ("`", "'", '"')


def _tag(text: str) -> re.Match[str] | None:
    """The first tag of reasoning; one in quotation marks is only mentioned."""
    return next(
        (found for found in THINK.finditer(text) if text[found.start() - 1 : found.start()] not in QUOTES), None
    )


def _tag_fault(message: Message, text: str) -> str | None:
    """A tag of reasoning anywhere but as one whole block before an answer."""
    # Reasoning of its own may mention them.
    if not _tag(text) or text == message.get("reasoning_content"):
        return None
    if message["role"] != "assistant":
        # A question about such tags is in order; a pair of them around a text is reasoning that was left in.
        block = LEADING.search(text)
        return f"the {message['role']} message holds reasoning: {_around(text, *block.span())[:80]}" if block else None
    block = LEADING.match(text)
    rest = text[block.end() :] if block else text
    if block and reasoning_of(message):
        return "the content begins with a block of reasoning, and the message has reasoning of its own"
    found = _tag(rest)
    return f"{found.group()!r} in {_around(rest, found.start(), found.end())}" if found else None


# ---- secrets and system prompts

# Kind -> what its pattern needs, which is faster to look for than the pattern itself; and the pattern.
SECRETS: Final[dict[str, tuple[tuple[str, ...], re.Pattern[str]]]] = {
    kind: (hints, re.compile(pattern))
    for kind, hints, pattern in (
        ("a private key", ("PRIVATE KEY",), r"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY(?: BLOCK)?-----\s*[A-Za-z0-9+/=]{16}"),
        ("an AWS access key", ("AKIA", "ASIA"), r"\b(?:AKIA|ASIA)(?!\w*EXAMPLE)[0-9A-Z]{16}\b"),
        (
            "a GitHub token",
            ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
            r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{60,})\b",
        ),
        ("a GitLab token", ("glpat-",), r"\bglpat-[A-Za-z0-9_-]{20}\b"),
        ("an Anthropic key", ("sk-ant-",), r"\bsk-ant-[A-Za-z0-9_-]{24,}"),
        (
            "an OpenAI key",
            ("sk-",),
            r"\bsk-(?:proj-|svcacct-)?(?=[A-Za-z_-]*\d)(?=[a-z0-9_-]*[A-Z])[A-Za-z0-9_-]{32,}",
        ),
        ("a Hugging Face token", ("hf_",), r"\bhf_(?=[A-Za-z]*[A-Z])[A-Za-z]{34}\b"),
        ("a Google key", ("AIza",), r"\bAIza[0-9A-Za-z_-]{35}(?![0-9A-Za-z_-])"),
        ("a Slack token", ("xox",), r"\bxox[abeoprs]-[0-9A-Za-z-]{20,}"),
        ("a Stripe key", ("k_live_",), r"\b[rs]k_live_[0-9A-Za-z]{20,}"),
        ("a JSON web token", ("eyJ",), r"\beyJ[A-Za-z0-9_-]{15,}\.eyJ[A-Za-z0-9_-]{15,}\.[A-Za-z0-9_-]{20,}"),
    )
}


def _secret(_: Message, text: str) -> str | None:
    """The kind of the first secret in a text, with no more than four characters of it; `None` without one."""
    for kind, (hints, pattern) in SECRETS.items():
        if any(hint in text for hint in hints) and (found := pattern.search(text)):
            size = found.end() - found.start()
            return f"{kind}: {found.group()[:4]}… ({size} characters, from character {found.start()} on)"
    return None


LEAKED: Final = 120  # characters of a system message, word for word
PROMPTS: Final = re.compile(
    r"You are (?:ChatGPT|GPT-\d\w*|Claude|Gemini|Grok|DeepSeek|Qwen|Copilot)\b[^.\n]{0,40}, (?:an?|created|made)\b"
    r"|The assistant is Claude, created by|Knowledge cutoff: \d{4}-\d{2}"
)


def _leaked_prompt(message: Message, text: str) -> str | None:
    found = PROMPTS.search(text) if message["role"] == "assistant" else None
    return f"the answer holds a system prompt: {_around(text, *found.span())}" if found else None


def _own_prompt(chat: ChatRow) -> int | None:
    """The first answer that repeats the beginning of its conversation's system message."""
    instructions = [
        text.strip()[:LEAKED]
        for message in chat.messages
        if message["role"] in ("system", "developer")
        for text in texts_of(message)
    ]
    # Short instructions ("You are brief.") are words that an answer may well contain.
    instructions = [text for text in instructions if len(text) >= LEAKED // 2]
    for index, message in enumerate(chat.messages) if instructions else ():
        if message["role"] == "assistant" and any(own in text for text in texts_of(message) for own in instructions):
            return index
    return None


# Rule, whether a text of many messages may hold such a fault, and the fault of one text. Searching some hundred
# conversations at once costs a small part of searching each of their messages, and most hold none of these.
FAULTS: Final[tuple[tuple[str, Callable[[str], object], Callable[[Message, str], str | None]], ...]] = (
    ("text-damaged", lambda texts: not texts.isascii() and _BEGINS.search(texts), _damaged),
    ("endless-repetition", lambda _: True, _loops),
    ("think-tags-in-content", THINK.search, _tag_fault),
    (
        "secrets-in-content",
        lambda texts: any(hint in texts for hints, _ in SECRETS.values() for hint in hints),
        _secret,
    ),
    ("system-prompt-leaked", PROMPTS.search, _leaked_prompt),
)


def check(chats: Sequence[ChatRow], counters: Counters) -> None:
    """Judge the contents of messages; the first fault of a message is enough."""
    spoken = [
        (chat, index, message, text)
        for chat in chats
        for index, message in enumerate(chat.messages)
        for text in _texts(message)
    ]
    whole = "\n".join(text for *_, text in spoken)
    for rule, may_hold, fault in FAULTS:
        found = [
            (chat, index, note)
            for chat, index, message, text in (spoken if may_hold(whole) else ())
            if (note := fault(message, text))
        ]
        places = {(chat.number, index): chat.evidence(index, note) for chat, index, note in reversed(found)}
        counters.add(rule, [places[place] for place in sorted(places)])
    for chat in chats:
        leak = _own_prompt(chat)
        if leak is not None:
            evidence = chat.evidence(leak, "the answer repeats the system message word for word")
            counters.add("system-prompt-leaked", [evidence])


def _rule(name: str, title: str, meaning: str, cause: str, fix: str) -> Rule:
    return Rule(name, "warning", title, meaning, cause, fix, applies=("chats",))


RULES: Final = (
    _rule(
        "text-damaged",
        "texts were decoded wrongly",
        "The model learns to write character salad (Ã©, â€™) or U+FFFD; both cost several tokens for each letter.",
        "UTF-8 that was read as Latin-1 or Windows-1252, or bytes that were cut in the middle of a character.",
        "Read the source again as UTF-8; the library ftfy repairs most texts whose bytes are all there.",
    ),
    _rule(
        "endless-repetition",
        "an answer repeats the same words over and over",
        "Such answers are long, so they weigh much in the loss, and the model learns to loop.",
        "They were generated by a model that fell into a loop until its token limit.",
        "Drop the rows, or generate them again.",
    ),
    _rule(
        "think-tags-in-content",
        "contents hold tags of reasoning",
        "Templates take the first tags for the borders of reasoning: the answer is cut there or trained twice.",
        "Outputs of a reasoning model were stored without separating the reasoning, or were cut inside it.",
        "Put reasoning into reasoning_content, and drop rows whose reasoning has no end.",
    ),
    _rule(
        "secrets-in-content",
        "contents hold keys or tokens",
        "The model can repeat them to anybody.",
        "Conversations were collected from people who pasted them.",
        "Replace them, and inform their owners. Test keys are recognised as if they were real.",
    ),
    _rule(
        "system-prompt-leaked",
        "answers repeat a system prompt",
        "The model learns to reveal its instructions, or to present itself as another model.",
        "Answers were collected from a served model, whose instructions it repeated.",
        "Drop the rows.",
    ),
)
