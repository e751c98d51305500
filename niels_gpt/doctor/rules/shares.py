"""Rules on shares of all answers: refusals, answers that break off or have one word, answers in another language.

Every place is counted while rows are read. Single ones belong to ordinary data, so `finish` decides by their share::

    refusals     0.4 %  no finding      1.5 %  a remark (info)      6 %  a warning
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from niels_gpt.doctor.counters import Counters
from niels_gpt.doctor.rows import ChatRow, texts_of
from niels_gpt.doctor.rules.rule import Need, Rule
from niels_gpt.messages import Message

SHOWN: Final = 60  # characters of an answer
# Rule -> the smallest shares of all answers that are a remark, and a warning.
SHARES: Final[dict[str, tuple[float, float]]] = {
    "refusals": (0.01, 0.05),
    "answer-cut": (0.01, 0.02),
    "one-word-answers": (0.02, 0.05),
    "language-mismatch": (0.01, 0.02),
}
FEWEST: Final = 2  # one of few answers is no share that could be judged
ANSWERS: Final = "answers with a text"


def check(chats: Iterable[ChatRow], counters: Counters) -> None:
    """Count answers that refuse, break off, or have one word."""
    for chat in chats:
        for index, message in enumerate(chat.messages):
            text = "".join(texts_of(message))
            # A call follows a word or two, or none.
            if message["role"] != "assistant" or not text.strip() or message.get("tool_calls"):
                continue
            counters.sums[ANSWERS] += 1
            ending = ending_of(text)
            if ending is not None:
                counters.sums[ending] += 1
            for rule, note in _faults(text, ending):
                counters.add(rule, [chat.evidence(index, note)])


def _faults(text: str, ending: str | None) -> Iterator[tuple[str, str]]:
    if REFUSAL.match(text):
        yield "refusals", f"begins with {text.strip()[:SHOWN]!r}"
    if (text.count("\n```") + text.startswith("```")) % 2:
        yield "answer-cut", "the last code block is not closed"
    elif ending in (CUT, CUT_FIRST):
        yield ("answer-cut" if ending == CUT else CUT_FIRST), f"ends with {text.rstrip()[-SHOWN:]!r}"
    words = text[: 2 * SHOWN].split(maxsplit=1)
    # Scripts without spaces write a sentence as one word; a block of code or a formula is an answer.
    if (
        len(words) == 1
        and len(words[0]) <= SHOWN // 2
        and words[0].isascii()
        and not words[0].startswith(("`", "$", "http"))
    ):
        yield "one-word-answers", f"the answer is {words[0]!r}"


_SORRY: Final = r"(?:I['’]m|I am|We['’]re|My) (?:\w+ )?(?:sorry|apologies)|Sorry|Apologies|I apologi[sz]e|Unfortunately"
_NOT: Final = r" can['’]?t| cannot| can not| won['’]t| will not|(?:['’]m| am) (?:unable|not able) to"
REFUSAL: Final = re.compile(
    rf"\s*(?:(?:{_SORRY})[^.\n]{{0,40}}?\b)?I(?:{_NOT}) (?:\w+ )?"
    r"(?:assist|help|provide|comply|fulfill?|answer|discuss|create|generate|write|support|engage|do that|share)\b"
    r"|\s*As an AI(?: language)? (?:model|assistant)\b"
)

# ---- answers that break off

_SENTENCE: Final = re.compile(r"[.!?。！？]['\"”’)\]]*(?:\s|$)")  # full stops of other scripts
_LIST_OR_CODE: Final = re.compile(r"\s*(?:[-*•#|>]|\d+[.)]|[A-Za-z][.)]\s|`)|.*(?:[{}$\\=;<>|`]|https?:)")
LAST_WORDS, SHORT_WORDS = 8, 4
# How an answer ends; also the names under which these are counted.
ENDED, CUT = "answer-cut: long answers that end with a sentence", "answer-cut: long answers cut after a sentence"
CUT_FIRST: Final = "answer-cut: long answers cut in their first sentence"
SHORT_ENDED, SHORT_OPEN = "answer-cut: short answers with a full stop", "answer-cut: short answers without one"
MOST_OPEN: Final = 0.25  # of the long answers; where more have no full stop, their writers leave it out


def ending_of(text: str) -> str | None:
    """How the last paragraph of an answer ends; `None` if it is not prose, or if the ending shows nothing.

    A list, a formula or a signature may end without a full stop. A long paragraph that does was cut, if its writers do
    not leave out the last full stop anyway: those of `CUT` have written one before.
    """
    text = text.rstrip()
    last = text[text.rfind("\n") + 1 :]
    if not last or _LIST_OR_CODE.match(last):
        return None
    is_open = last[-1] == "," or (last[-1].isalpha() and last[-1].islower())
    words = len(last.split())
    if words < LAST_WORDS:
        # A token limit leaves more than a few words.
        is_short = len(text) == len(last) and 2 <= words <= SHORT_WORDS
        return None if not is_short else SHORT_OPEN if is_open else SHORT_ENDED
    if is_open:
        return CUT if _SENTENCE.search(text) else CUT_FIRST
    return ENDED if _SENTENCE.search(last[-3:]) else None


def _finish_cut(counters: Counters) -> None:
    """Count answers that break off in their first sentence, or drop the finding, by how the others end.

    ::

        long answers  190 ended, 6 cut, 4 cut in their first sentence: 10 were cut
        short ones    10 of 40 without a full stop: it is left out in a quarter of all, so 50 of the 200 long ones
                      may be whole
    """
    sums = counters.sums
    whole, first = sums[ENDED] + sums[CUT], sums[CUT_FIRST]
    if first <= MOST_OPEN * (whole + first):
        counters.move(CUT_FIRST, "answer-cut")
    counters.drop(CUT_FIRST)
    hits, short = counters.hits.get("answer-cut"), sums[SHORT_OPEN] + sums[SHORT_ENDED]
    usual = sums[SHORT_OPEN] / short * (whole + first) if short else 0.0
    if hits is not None and hits.count <= usual:
        counters.drop("answer-cut")


# ---- languages

LETTERS: Final = 40  # of a text; fewer do not tell its language reliably
READ: Final = 400  # characters of a text
# The first rows, and then each 20th: telling the language of a text takes as long as all other rules together.
FIRST_ROWS: Final = 500
EACH: Final = 20
COMPARED: Final = "questions and answers whose languages were told"
# Words of a task whose answer is in another language than its question.
OTHER_LANGUAGE: Final = re.compile(
    r"translat|transcri|übersetz|tradu|перев[её]д|перевод|翻译|翻譯|翻訳|번역|ترجم|अनुवाद|languages?\b|"
    r"\b(?:in|into|to|auf|en|in het|på) (?:english|german|french|spanish|italian|portuguese|dutch|russian|chinese"
    r"|mandarin|japanese|korean|arabic|hindi|turkish|polish|englisch|deutsch|anglais|fran[cç]ais|ingl[eé]s|espa[nñ]ol)",
    re.I,
)
_CODE: Final = re.compile(r"```.*?(?:```|$)|`[^`]*`|https?://\S+", re.S)


def check_languages(chats: Iterable[ChatRow], counters: Counters) -> None:
    """Count first and last answers in another language than their question."""
    for chat in chats:
        if chat.number >= FIRST_ROWS and chat.number % EACH:
            continue
        places = _answers_to_users(chat.messages)
        for index in sorted({*places[:1], *places[-1:]}):
            note = _other_language(chat.messages[: index + 1], counters)
            if note is not None:
                counters.add("language-mismatch", [chat.evidence(index, note)])


def _answers_to_users(messages: Sequence[Message]) -> list[int]:
    """The indexes of answers that directly follow a question."""
    return [
        index
        for index in range(1, len(messages))
        if (messages[index - 1]["role"], messages[index]["role"]) == ("user", "assistant")
        and not messages[index].get("tool_calls")
    ]


def _other_language(messages: Sequence[Message], counters: Counters) -> str | None:
    """The languages of the last message and of the question before it, if they differ and no message asks for that."""
    *before, last = (("\n".join(texts_of(message)), message["role"]) for message in messages)
    if any(OTHER_LANGUAGE.search(text[: 10 * READ]) for text, role in before if role != "assistant"):
        return None
    question, answer = _prose(before[-1][0]), _prose(last[0])
    if _letters(question) < LETTERS:  # with those before it
        question = _prose(" ".join(text for text, role in before[::-1] if role == "user"))
    if min(_letters(question), _letters(answer)) < LETTERS:
        return None
    counters.sums[COMPARED] += 1
    asked, answered = languages(question), languages(answer)
    # Close relatives are taken for each other; these are second or third.
    if asked[0] in answered or answered[0] in asked:
        return None
    return f"the question is in {asked[0]!r}, the answer in {answered[0]!r}: {answer[:SHOWN]!r}"


def _prose(text: str) -> str:
    return _CODE.sub(" ", text[: 10 * READ])[:READ]


def _letters(text: str) -> int:
    return sum(map(str.isalpha, text))


def languages(text: str) -> list[str]:
    """The three likeliest languages of a text, as ISO 639-1 codes, by the library py3langid."""
    import py3langid

    return [code for code, _ in py3langid.rank(text)[:3]]


# ---- the whole input


def finish(counters: Counters) -> None:
    """Keep what is frequent enough, as a remark where it is not frequent enough for a warning."""
    counters.sums["refusals"] = counters.hits["refusals"].count if "refusals" in counters.hits else 0
    _finish_cut(counters)
    for rule, (remark, warning) in SHARES.items():
        hits, total = counters.hits.get(rule), counters.sums[_all_of(rule)]
        if hits is None:
            continue
        if hits.count < max(FEWEST, remark * total):
            counters.drop(rule)
        elif hits.count < warning * total:
            counters.remarks.add(rule)


def _all_of(rule: str) -> str:
    return COMPARED if rule == "language-mismatch" else ANSWERS


def share_of(rule: str, count: int, counters: Counters) -> str | None:
    """The share of answers, for the summary of a rule on shares; `None` for other rules."""
    if rule not in SHARES:
        return None
    total = counters.sums[_all_of(rule)]
    return f"{count:,} of {total:,} answers ({count / total:.1%})"


def _rule(name: str, title: str, meaning: str, cause: str, fix: str, needs: tuple[Need, ...] = ()) -> Rule:
    return Rule(name, "warning", title, meaning, cause, fix, applies=("chats",), needs=needs)


RULES: Final = (
    _rule(
        "refusals",
        "many answers are refusals",
        "Few percent are enough for a model that refuses harmless questions.",
        "Answers were generated by a model with other limits than yours.",
        "Filter them (match and exclude in a recipe), or silence this rule where the data is meant to teach refusing.",
    ),
    _rule(
        "answer-cut",
        "answers break off",
        "The end-of-turn is trained after half a sentence, so the model learns to stop anywhere.",
        "Answers were generated with a token limit (finish_reason length), and not removed.",
        "Drop answers whose finish_reason is length, or train them without their end-of-turn.",
    ),
    _rule(
        "one-word-answers",
        "many answers are one word",
        "Each such answer trains its word and the end-of-turn: the model becomes terse everywhere.",
        "Labels of a classification set were used as answers.",
        "Write answers out, or mix them with others; silence this rule where one word is what you want.",
    ),
    _rule(
        "language-mismatch",
        "answers are in another language than their questions",
        "The model learns to change the language in the middle of a conversation.",
        "Questions were translated and answers were not, or a model answered in its own language.",
        "Drop the rows, or write the wanted language into the question or the system message.",
        needs=("language",),
    ),
)
