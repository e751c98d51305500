"""Rules on what messages say, whatever the format: damaged text, repetition, tags of reasoning, secrets.

Those on shares of all answers are in `shares`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, Final

from niels_gpt.doctor.counters import Counters
from niels_gpt.doctor.layouts.probes import AnyRenderer, assistant, user
from niels_gpt.doctor.rows import ChatRow, texts_of
from niels_gpt.doctor.rules.code_pages import misread
from niels_gpt.doctor.rules.rule import Rule
from niels_gpt.doctor.rules.secrets import may_hold_secret, redacted, secret_in
from niels_gpt.errors import MessageError
from niels_gpt.messages import Message, normalise, reasoning_of

SHOWN: Final = 30  # characters of a message on each side of what was found
MESSAGES: Final = "texts of users and assistants"
# Of these texts: the share that is a remark, and a warning; one alone is neither.
FEWEST, REMARK, WARNING = 2, 0.001, 0.005
Fault = Callable[[Message, str], str | None]  # the first fault of a text of a message, in words
# Single texts do not prove these: their share of all texts of users and assistants decides.
FREQUENT: Final = ("html-entities", "html-tags", "template-text-in-content")


def _around(text: str, start: int, stop: int) -> str:
    before, found, after = text[:start], text[start:stop], text[stop:]
    return repr(redacted(before)[-SHOWN:] + found + redacted(after)[:SHOWN])


# ---- damaged text

# What the bytes 80 to BF of UTF-8 look like when they are read as Windows-1252 or Latin-1, without the quotation marks,
# dashes and spaces that may follow a capital letter in sound text («CAFÉ»).
_BEHIND: Final = "€‚ƒ„†‡ˆ‰Š‹ŒŽ•˜™š›œžŸ¡-ª¬-º¼-¿\x80-\x9f"
_ANY: Final = "€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ\xa0-¿\x80-\x9f"  # quotation marks are meant
# The same bytes read as Windows-1251. Texts have a capital Р or С in these places hardly ever, and never three.
_ANY_1251: Final = "ЂЃ‚ѓ„…†‡€‰Љ‹ЊЌЋЏђ‘’“”•–—™љ›њќћџ\xa0ЎўЈ¤Ґ¦§Ё©Є«¬\xad®Ї°±Ііґµ¶·ё№є»јЅѕї\x98"
# How damage begins: one set of characters is searched several times faster than the alternatives below. The last are
# common letters (о е н т) as Windows-1251, which sound Cyrillic text does not have.
_BEGINS: Final = re.compile("[\ufffd\x80-\x84\x86-\x9fÃÂâðÐÑà-íïѕµЅ‚Ђ]")
DAMAGED: Final = re.compile(
    "\ufffd"  # what decoders write in the place of bytes that they cannot read
    "|[\x80-\x84\x86-\x9f]"  # control characters, which no text has
    f"|Ã[{_BEHIND}]|Â[¡-º¼-¿]"  # é, ü and so on; degree and pound signs
    f"|â€[{_ANY}]|ðŸ[{_ANY}]"  # quotation marks and dashes; emoji
    f"|(?:[ÐÑ][{_ANY}]){{2}}"  # Cyrillic
    f"|(?:[РС][{_ANY_1251}]){{3}}|вЂ[{_ANY_1251}]"  # Cyrillic, quotation marks and dashes as Windows-1251
    # Chinese, Japanese, Korean, the scripts of India, Thai; but no letters in quotation marks (“é”“è”)
    f"|(?:[à-í](?!”“|“„|»«|«»)[{_ANY}]{{2}}){{2}}"
    "|ï»¿|ï¿½"  # a byte order mark; U+FFFD itself
)


# Where a conversation is about encodings, it shows what damage looks like, at a few places of a text.
EXAMPLES: Final = 5
_ABOUT_ENCODINGS: Final = re.compile(
    r"\butf-?(?:8|16)|unicode|mojibake|charset|character set|(?:character|text|file|wrong|same) encoding|code ?page"
    r"|latin-?1\b|\bcp-?125\d|windows-?125\d|iso.?8859|garbled|replacement character|кодировк|кракозябр|文字化け|乱码",
    re.I,
)


def about_encodings(chat: ChatRow, damaged: str) -> bool:
    """Whether a conversation is about encodings, and the text shows a few examples of damage only.

    Code that names an encoding (`encoding="utf-8"`) is not about them.
    """
    if len(DAMAGED.findall(damaged)) > EXAMPLES:
        return False
    texts = (text for message in chat.messages for text in texts_of(message))
    return any(_ABOUT_ENCODINGS.search(_CODE.sub(" ", text)) for text in texts)


def damage_in(text: str) -> str | None:
    """What shows that a text was decoded wrongly; `None` where nothing does."""
    if "\0" in text:
        return f"a character NUL in {_around(text, text.index(chr(0)), text.index(chr(0)) + 1)}"
    if text.isascii():  # most texts are, which is known without a search
        return None
    found = DAMAGED.search(text) if _BEGINS.search(text) else None
    return f"{found.group()!r} in {_around(text, *found.span())}" if found else misread(text)


# ---- HTML that was not decoded

_ENTITY: Final = re.compile(
    r"&(?:amp|lt|gt|quot|apos|nbsp|hellip|[mn]dash|[lr][sd]quo|[A-Za-z](?:acute|grave|circ|uml|tilde|cedil|ring)"
    r"|#x?[0-9A-Fa-f]{2,5});"
)
# Where a text is about markup or addresses, or holds markup or code, entities are a part of it.
_MARKUP: Final = re.compile(
    r"html|xml|svg|sgml|entit|escap|encod|markup|markdown|docbook|doxygen|javadoc|jsx|href|ampersand|wiki|\b(?:ur[il]|css"
    r"|rss)\b|</?[a-z]|/>|=[\"']|&&",
    re.I,
)
_CODE: Final = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.S)


def _in_prose(
    message: Message, text: str, *, pattern: re.Pattern[str], sign: str, unless: re.Pattern[str] | None = None
) -> str | None:
    """What a pattern finds outside of code; `None` in a text without `sign`, or in which `unless` finds something."""
    # Most texts hold no such sign, which is known without a search. Messages of tools may well be pages.
    if message["role"] not in ("user", "assistant") or sign not in text or (unless and unless.search(text)):
        return None
    prose = _CODE.sub(" ", text)
    found = pattern.search(prose)
    return f"{found.group()!r} in {_around(prose, *found.span())}" if found else None


# Tags of web pages around prose, found by their ends. Markdown has tags of its own (<br> in tables, <sub>, <details>),
# which are left out.
_TAG: Final = re.compile(
    r"</(?:p|div|span|ul|ol|li|h[1-6]|blockquote|strong|em|b|i|u|font|center|td|tr|table)>"
    r"|<a\s[^<>]{0,20}href=|<img\s[^<>]{0,200}src=|<br ?/?>\s?<br ?/?>",
    re.I,
)
# Where a conversation is about pages, markup or programs, tags are a part of it.
_ABOUT_MARKUP: Final = re.compile(
    r"html|xml|svg|\bcss\b|markup|markdown|jsx|react|\bvue\b|angular|web ?(?:page|site|dev|app|scrap)|browser|\btags?\b"
    r"|\bdom\b|element|javascript|typescript|\bphp\b|wordpress|scrap(?:e|ing)|beautifulsoup|pars(?:e|ing|er)|regex"
    r"|template|snippet|\bcode\b|format|render|newsletter|e-?mail|<(?:!doctype|html|script|style|body|head)\b|&&|=>",
    re.I,
)


def about_markup(chat: ChatRow, _: str = "") -> bool:
    """Whether a conversation is about web pages, markup or programs."""
    return any(_ABOUT_MARKUP.search(text) for message in chat.messages for text in texts_of(message))


# ---- templates

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


def _template_text(message: Message, text: str, controls: Collection[str] = ()) -> str | None:
    if not TEMPLATE_TEXT.search(text) or _ABOUT_TEMPLATES.search(TEMPLATE_TEXT.sub(" ", text)):
        return None
    prose = _CODE.sub(" ", text)
    found = next((one for one in TEMPLATE_TEXT.finditer(prose) if one.group().strip() not in controls), None)
    role = message["role"]
    return f"{found.group().strip()!r} in {_around(prose, *found.span())}, of the {role}" if found else None


# ---- repetition

REPEATS: Final = 10
# Of pieces as long as a paragraph: no prose says one four times in a row by intent, as it may repeat a line.
LONG: Final = 120
REPEATS_OF_LONG: Final = 4
REPEATED_CHARACTERS: Final = 240
_NEEDLE: Final = 24
EARLIER: Final = 3  # places of a needle that are tried: a paragraph may hold one sentence twice
NUMBERED: Final = 2_000  # characters at the end of an answer in which numbered lines are compared
LETTERS: Final = 20  # of a piece that is repeated with other numbers
DIGITS: Final = re.compile(r"\d+")
EMOJI: Final = "\U0001f300"  # the first of the blocks of pictographs
_SQUARES: Final = re.compile(
    "[\U0001f7e0-\U0001f7eb]"
)  # coloured circles and squares, of which boards of games are made
# Cards of a page, objects of an example, rows of an empty form and unrolled loops are the same several times.
_CODE_OR_TABLE: Final = re.compile(r"[{}\[\]\\=<>|`_]")


def repeated(text: str, repeats_of_long: int = REPEATS_OF_LONG) -> str | None:
    """A piece that is repeated at least `REPEATS` times, over `REPEATED_CHARACTERS` or more; `None` without one.

    Pieces of `LONG` characters or more need `repeats_of_long` repeats only. The text is tried at its end and at three
    other places::

        ... I am I am I am I am      needle `am I am`, the same again 5 earlier: the piece has 5 characters
    """
    n = len(text)
    if n < REPEATED_CHARACTERS:
        return None
    for start in (n - _NEEDLE, n // 4, n // 2, n * 3 // 4):
        needle, before = text[start : start + _NEEDLE], start
        for _ in range(EARLIER):
            before = text.rfind(needle, 0, before + _NEEDLE - 1)
            if before < 0 or start - before > n // repeats_of_long:
                break
            period, piece = start - before, text[before:start]
            # The place may be anywhere in a piece, so of four repeats only three are whole pieces from there on.
            is_long = period >= LONG and not _CODE_OR_TABLE.search(piece)
            times = repeats_of_long - 1 if is_long else max(REPEATS, -(-REPEATED_CHARACTERS // period))
            if _is_said(piece) and piece * times in text[max(0, start - times * period) : start + times * period]:
                return piece
    return None


def _is_said(piece: str) -> bool:
    """Whether a piece is no rule of a table and no number, which are repeated on purpose."""
    # Exclamation marks come from models whose numbers overflow, emoji and empty lines from others in a loop.
    if piece.isspace():
        return "\n" in piece
    return any(character.isalpha() or character == "!" or character >= EMOJI for character in _SQUARES.sub("", piece))


def _loops(message: Message, text: str) -> str | None:
    if message["role"] != "assistant":
        return None
    piece = repeated(text)
    # Lines that differ in their numbers only; tables and rows of figures have few letters.
    if piece is None and text.count("\n", -NUMBERED) >= REPEATS:
        # A plan of four days may have four long lines that differ in their numbers.
        piece = repeated(DIGITS.sub("0", text[-NUMBERED:]), REPEATS)
        piece = piece if piece and sum(map(str.isalpha, piece)) >= LETTERS else None
    times = REPEATS if piece is None or len(piece) < LONG or _CODE_OR_TABLE.search(piece) else REPEATS_OF_LONG
    return f"{piece[: 2 * SHOWN]!r} is repeated {times} times or more" if piece else None


# ---- reasoning written into contents

# Tags around reasoning, in any case. A whole block before the answer, as models write it; dialects and renderers that
# read it take it for the reasoning.
TAGS: Final = ("think", "thinking", "thought", "thoughts", "reasoning", "reflection", "scratchpad", "seed:think")
LEADING: Final = re.compile(rf"\s*<({'|'.join(TAGS)})>((?!</?\1>).)*</\1>", re.S | re.I)
THINK: Final = re.compile(
    rf"</?(?i:{'|'.join(TAGS)})>|\[/?THINK\]|<\|(?:begin|end)_of_thought\|>"
    r"|<\|channel\|>analysis|◁/?think▷|<\|(?:START|END)_THINKING\|>"
)
QUOTES: Final = ("`", "'", '"')
# Of these, names that elements of XML and pages have, too. No template looks for them.
WORDS: Final = ("thoughts", "reflection", "scratchpad")
# Characters between two tags that a prompt may have: `<think> reasoning process here </think>` explains the form.
EXPLAINED: Final = 40


def _tag(text: str) -> re.Match[str] | None:
    """The first tag of reasoning; one in quotation marks is only mentioned, and `WORDS` in code are other elements."""
    prose = _CODE.sub(lambda code: " " * len(code.group()), text)
    for found in THINK.finditer(text):
        place = found.start()
        in_code = prose[place] == " " and found.group().strip("</>").lower() in WORDS
        if not in_code and text[place - 1 : place] not in QUOTES:
            return found
    return None


def unread_tags(renderer: AnyRenderer | None) -> frozenset[str]:
    """The tags whose block before an answer the renderer writes as a part of the answer, although it writes reasoning.

    Empty where the format has no place for reasoning: there such blocks are how models are taught to reason.
    """
    question, thought, answer = user("What is it?"), "It stands in the north.", "A lighthouse."
    apart = _text_of(renderer, [question, assistant(answer, reasoning_content=thought)])
    if apart is None or thought not in apart:
        return frozenset()
    blocks = {tag: f"<{tag}>\n{thought}\n</{tag}>\n\n{answer}" for tag in TAGS}
    written = {tag: _text_of(renderer, [question, assistant(block)]) or "" for tag, block in blocks.items()}
    # Where the format itself writes reasoning so, both are the same text.
    return frozenset(tag for tag, text in written.items() if blocks[tag] in text and text != apart)


def _text_of(renderer: AnyRenderer | None, messages: list[dict[str, Any]]) -> str | None:
    try:
        return None if renderer is None else renderer.text(normalise(messages))
    except MessageError:  # what the format refuses is another finding
        return None


def _tag_fault(message: Message, text: str, unread: Collection[str] = ()) -> str | None:
    """A tag of reasoning anywhere but as one whole block before an answer, which the format reads."""
    # Reasoning of its own may mention them.
    if not _tag(text) or text == message.get("reasoning_content"):
        return None
    if message["role"] != "assistant":
        # A question about such tags is in order; a pair of them around a text is reasoning that was left in.
        blocks = (found for found in LEADING.finditer(text) if found[1].lower() not in WORDS)
        block = next((found for found in blocks if len(found.group()) - 2 * len(found[1]) >= EXPLAINED), None)
        return f"the {message['role']} message holds reasoning: {_around(text, *block.span())[:80]}" if block else None
    block = LEADING.match(text)
    rest = text[block.end() :] if block else text
    if block and reasoning_of(message):
        return "the content begins with a block of reasoning, and the message has reasoning of its own"
    if block and block[1].lower() in unread:
        return f"the format writes reasoning elsewhere, and <{block[1]}> as a part of the answer"
    found = _tag(rest)
    return f"{found.group()!r} in {_around(rest, found.start(), found.end())}" if found else None


# ---- system prompts

LEAKED: Final = 120  # characters of a system message, word for word
PROMPTS: Final = re.compile(
    r"You are (?:ChatGPT|GPT-\d\w*|Claude|Gemini|Grok|DeepSeek|Qwen|Copilot)\b[^.\n]{0,40}, (?:an?|created|made)\b"
    r"|The assistant is Claude, created by|Knowledge cutoff: \d{4}-\d{2}"
    r"|\b[Mm]y (?:system (?:prompt|message)|(?:initial |system )?instructions) (?:is|are|says?|reads?)"
    r"(?: as follows)?:\s*[\"“'`]?You "
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


def _faults(unread: Collection[str], controls: Collection[str]) -> Iterator[tuple[str, Callable[[str], object], Fault]]:
    """Rule, whether a text of many messages may hold such a fault, and the fault of one text.

    Searching some hundred conversations at once costs a small part of searching each of their messages, and most hold
    none of these.
    """
    yield "text-damaged", lambda texts: not texts.isascii() or "\0" in texts, lambda _, text: damage_in(text)
    yield "html-entities", _ENTITY.search, partial(_in_prose, pattern=_ENTITY, sign="&", unless=_MARKUP)
    # Whether a conversation is about markup, or about encodings, is judged over all its messages, see `SUBJECTS`.
    yield "html-tags", _TAG.search, partial(_in_prose, pattern=_TAG, sign="<")
    yield "template-text-in-content", TEMPLATE_TEXT.search, partial(_template_text, controls=controls)
    yield "endless-repetition", lambda _: True, _loops
    yield "think-tags-in-content", THINK.search, partial(_tag_fault, unread=unread)
    yield "secrets-in-content", may_hold_secret, lambda _, text: secret_in(text)
    yield "system-prompt-leaked", PROMPTS.search, _leaked_prompt


def _argument_texts(chat: ChatRow) -> Iterator[tuple[int, Message, str]]:
    """Message index, message and the arguments of each call, as JSON text."""
    for index, message in enumerate(chat.messages):
        for tool_call in message.get("tool_calls") or ():
            given = tool_call["function"]["arguments"]
            text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False, default=str)
            yield index, message, text


# Rules that leave out conversations about what they find.
SUBJECTS: Final[dict[str, Callable[[ChatRow, str], bool]]] = {
    "html-tags": about_markup,
    "text-damaged": about_encodings,
}


def check(
    chats: Sequence[ChatRow], counters: Counters, unread: Collection[str] = (), controls: Collection[str] = ()
) -> None:
    """Judge the contents of messages; the first fault of a message is enough.

    Args:
        controls: texts of the tokenizer's control tokens.
        unread: tags of reasoning that the renderer does not read; see `unread_tags`.
    """
    spoken = [
        (chat, index, message, text)
        for chat in chats
        for index, message in enumerate(chat.messages)
        for text in (*texts_of(message), *filter(None, [reasoning_of(message)]))
    ]
    # Arguments of calls are no prose, so they are searched for damage and keys only.
    called = [(chat, index, message, text) for chat in chats for index, message, text in _argument_texts(chat)]
    whole = "\n".join(text for *_, text in spoken)
    whole_called = "\n".join(text for *_, text in called)
    for rule, may_hold, fault in _faults(unread, controls):
        searched = spoken if may_hold(whole) else []
        if rule in ("text-damaged", "secrets-in-content") and called and may_hold(whole_called):
            searched = searched + called
        found = [
            (chat, index, note)
            for chat, index, message, text in searched
            if (note := fault(message, text)) and not (rule in SUBJECTS and SUBJECTS[rule](chat, text))
        ]
        places = {(chat.number, index): chat.evidence(index, note) for chat, index, note in reversed(found)}
        counters.add(rule, [places[place] for place in sorted(places)])
    counters.sums[MESSAGES] += sum(message["role"] in ("user", "assistant") for _, _, message, _ in spoken)
    for chat in chats:
        leak = _own_prompt(chat)
        if leak is not None:
            evidence = chat.evidence(leak, "the answer repeats the system message word for word")
            counters.add("system-prompt-leaked", [evidence])


def finish(counters: Counters) -> None:
    """Keep what is frequent: a few entities, tags or words of a template may be meant. Called after the last row."""
    total = counters.sums[MESSAGES]
    for rule in FREQUENT:
        counters.keep_frequent(rule, max(FEWEST, REMARK * total), WARNING * total)


def _rule(name: str, title: str, meaning: str, cause: str, fix: str) -> Rule:
    return Rule(name, "warning", title, meaning, cause, fix, applies=("chats",))


RULES: Final = (
    _rule(
        "text-damaged",
        "texts were decoded wrongly",
        "The model learns to write character salad (Ã©, â€™) or U+FFFD; both cost several tokens for each letter.",
        "Text in one encoding that was read in another (UTF-8 as Windows-1252, KOI8-R as Windows-1251), or bytes that "
        "were cut in the middle of a character.",
        "Read the source again in its own encoding, usually UTF-8; the library ftfy repairs most UTF-8 whose bytes are "
        "all there.",
    ),
    _rule(
        "html-entities",
        "texts hold HTML entities",
        "The model learns to write &amp; and &#39; instead of & and '.",
        "Texts were taken from web pages or feeds without decoding them, or were escaped before they were stored.",
        "Decode them: html.unescape(text), twice where &amp;amp; is left.",
    ),
    _rule(
        "html-tags",
        "texts hold tags of web pages",
        "The model learns to write <p> and <a href> in ordinary answers.",
        "Texts were taken from web pages or forums (Stack Exchange, feeds) without converting them.",
        "Convert them to Markdown or plain text before training (markdownify, html2text).",
    ),
    _rule(
        "template-text-in-content",
        "contents hold the markup of another chat template",
        "The model learns to write turns of another format inside its answers; such markup also hides several turns in "
        "one message.",
        "Conversations were stored as rendered text, or collected from a model whose stop was not recognised.",
        "Parse the text into messages, or remove the markup.",
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
