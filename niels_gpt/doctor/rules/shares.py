"""Rules on shares of all answers: refusals, answers that break off or have one word, answers in another language.

Every place is counted while rows are read. Single ones belong to ordinary data, so `finish` decides by their share::

    refusals     0.4 %  no finding      1.5 %  a remark (info)      6 %  a warning
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from niels_gpt.doctor.counters import Counters
from niels_gpt.doctor.rows import ChatRow, is_blank, texts_of
from niels_gpt.doctor.rules import cut_answers
from niels_gpt.doctor.rules.rule import Need, Rule
from niels_gpt.doctor.rules.secrets import redacted
from niels_gpt.messages import Message

SHOWN: Final = 60  # characters of an answer
# Rule -> the smallest shares of all answers that are a remark, and a warning.
SHARES: Final[dict[str, tuple[float, float]]] = {
    "refusals": (0.01, 0.05),
    "answer-cut": cut_answers.SHARES,
    "one-word-answers": (0.02, 0.05),
    "language-mismatch": (0.01, 0.02),
}
ANSWERS: Final = "answers with a text"


def check(chats: Iterable[ChatRow], counters: Counters) -> None:
    """Count answers that refuse, break off, or have one word."""
    for chat in chats:
        for index, message in enumerate(chat.messages):
            text = "".join(texts_of(message))
            # A call follows a word or two, or none.
            if message["role"] != "assistant" or is_blank(text) or message.get("tool_calls"):
                continue
            counters.sums[ANSWERS] += 1
            ending = cut_answers.ending_of(text)
            if ending is not None:
                cut_answers.count(text, ending, counters)
            for rule, note in _faults(text, ending):
                counters.add(rule, [chat.evidence(index, note)])


def _faults(text: str, ending: str | None) -> Iterator[tuple[str, str]]:
    before = _BEFORE.match(text)
    if REFUSAL.match(text, before.end() if before else 0):
        yield "refusals", f"begins with {redacted(text).strip()[:SHOWN]!r}"
    if (text.count("\n```") + text.startswith("```")) % 2:
        yield "answer-cut", "the last code block is not closed"
    elif ending in (cut_answers.OPEN, cut_answers.MID_SENTENCE):
        yield ending, f"ends with {redacted(text).rstrip()[-SHOWN:]!r}"
    words = text[: 2 * SHOWN].split(maxsplit=1)
    if len(words) == 1:
        # Without a space a text may still be a sentence: scripts without spaces write it so.
        longest = 2 if UNSPACED.search(words[0]) else SHOWN // 2
        # A block of code or a formula is an answer.
        is_code = words[0].startswith(("`", "$", "http"))
        # An emoji is the answer to a question for one, or a reaction; So is Unicode's category of such signs.
        is_emoji = unicodedata.category(words[0][0]) == "So"
        if len(words[0]) <= longest and not is_code and not is_emoji:
            yield "one-word-answers", f"the answer is {words[0]!r}"


_SORRY: Final = r"(?:I['’]m|I am|We['’]re|My) (?:\w+ )?(?:sorry|apologies)|Sorry|Apologies|I apologi[sz]e|Unfortunately"
_WONT: Final = r" won['’]t(?: be able to)?| will not(?: be able to)?"
_NOT: Final = (
    rf" can['’]?t| cannot| can not|{_WONT}"
    r"|(?:['’]m| am) (?:unable to|not able to|not going to|afraid (?:that )?I can['’]?t)"
)
# The same in other languages: an apology, and that something is not possible, before the end of the first sentence.
_ELSEWHERE: Final = (
    r"(?:Es tut mir (?:sehr )?leid|Tut mir leid|Leider|Entschuldigung)\b[^.!?\n]{0,60}\bnicht\b[^.!?\n]{0,40}"
    r"\b(?:helfen|weiterhelfen|beantworten|unterstützen|bereitstellen|erfüllen)\b"
    r"|Ich kann (?:Ihnen|dir|euch)\b[^,.!?\n]{0,60}\bnicht (?:\w+ )?"
    r"(?:helfen|weiterhelfen|(?:be)?antworten|bereitstellen)\b"
    r"|(?:Lo siento|Lo lamento|Desculpe|Sinto muito|Lamento)\b[^.!?\n]{0,40}\b(?:no puedo|não posso)\b"
    r"|No puedo (?:ayudar|cumplir|proporcionar|responder)|Não posso (?:ajudar|responder|fornecer)"
    r"|(?:Je suis (?:vraiment )?désolée?|Désolée?)\b[^.!?\n]{0,40}\bje ne (?:peux|suis)\b"
    r"|Je ne peux pas (?:vous aider|t['’]aider|répondre|fournir|satisfaire)"
    r"|(?:Mi dispiace|Sono spiacente)\b[^.!?\n]{0,40}\bnon posso\b|Non posso (?:aiutar|rispondere|fornire)"
    r"|(?:Het spijt me|Sorry)\b[^.!?\n]{0,40}\bkan ik\b[^.!?\n]{0,40}\bniet\b[^.!?\n]{0,20}\bhelpen\b"
    r"|(?:Przykro mi|Przepraszam)\b[^.!?\n]{0,40}\bnie mogę\b"
    r"|Üzgünüm\b[^.!?\n]{0,60}(?:yardımcı olama|yapamam|veremem)"
    r"|(?:Извините|Простите|К сожалению|Мне жаль)\b[^.!?\n]{0,40}\bне (?:могу|смогу)\b"
    r"|Я не могу (?:помочь|ответить|выполнить)"
    r"|(?:很?抱歉|对不起|對不起)[,，\s]*(?:但|但是)?我?(?:无法|無法|不能|没有办法)|我(?:无法|不能)(?:帮|协助|提供|回答|满足)"
    r"|(?:申し訳(?:ありません|ございません)|すみません)[^。\n]{0,30}(?:できません|お答えできません|応えできません|できかねます)"
    r"|(?:죄송하지만|죄송합니다|미안하지만)[^.\n]{0,60}(?:수 없습니다|수 없어요|어렵습니다)"
    r"|(?:عذر[اً]+|آسف|أعتذر|للأسف)[^.\n]{0,40}(?:لا يمكنني|لا أستطيع)"
)
_VERBS: Final = (
    r"(?:assist|help(?! but\b)|provide|comply|fulfill?|answer|discuss|create|generate|write|support|engage"
    r"|do (?:that|this)|share)\b"
)
REFUSAL: Final = re.compile(
    rf"\s*(?:(?:{_SORRY})[^.\n]{{0,40}}?\b)?I(?:{_NOT}) (?:\w+ )?{_VERBS}"
    rf"|\s*(?:(?:{_SORRY})[^.\n]{{0,40}}?\b)?I (?:must|have to|need to) (?:\w+ )?(?:decline|refuse)\b"
    rf"|\s*(?:No|Regrettably|Sadly|As an? \w+ AI(?: \w+)?), (?:but )?I(?:{_NOT}) (?:\w+ )?{_VERBS}"
    rf"|\s*I['’]m (?:just|only|designed|programmed)\b[^.\n]{{0,60}}\b(?:can['’]?t|cannot|not able to|unable to)"
    rf" (?:\w+ )?{_VERBS}"
    r"|\s*It (?:would not|wouldn['’]t|would be in|is not|isn['’]t) ?(?:be )?(?:appropriate for me|ethical) to\b"
    r"|\s*I(?:['’]m| am) not comfortable (?:with )?\w+ing\b"
    r"|\s*As an AI(?: language)? (?:model|assistant)\b"
    rf"|\s*(?:{_ELSEWHERE})"
)
# What may be before the first word of an answer: markup, and a block of reasoning.
_BEFORE: Final = re.compile(r"\s*(?:<(think|thinking|reasoning)>.*?</\1>\s*)?[*_#>\s]*", re.S)

# ---- languages

# Chinese, Japanese, Thai, Lao, Khmer and Burmese write no spaces between words.
UNSPACED: Final = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
LETTERS: Final = 40  # of a text; of fewer the language is not detected reliably
READ: Final = 400  # characters of a text
# The first rows, and then each 20th: detecting the language of a text takes as long as all other rules together.
FIRST_ROWS: Final = 500
EACH: Final = 20
COMPARED: Final = "questions and answers whose languages were detected"
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
        messages = chat.messages
        # Answers that directly follow a question; the text of a message with calls is none.
        places = [
            index
            for index in range(1, len(messages))
            if (messages[index - 1]["role"], messages[index]["role"]) == ("user", "assistant")
            and not messages[index].get("tool_calls")
        ]
        for index in sorted({*places[:1], *places[-1:]}):
            note = _other_language(messages[: index + 1], counters)
            if note is not None:
                counters.add("language-mismatch", [chat.evidence(index, note)])


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
    return f"the question is in {asked[0]!r}, the answer in {answered[0]!r}: {redacted(answer)[:SHOWN]!r}"


def _prose(text: str) -> str:
    return _CODE.sub(" ", text[: 10 * READ])[:READ]


def _letters(text: str) -> int:
    """The letters of a text. Those of scripts that write words without spaces show as much as three others each."""
    return sum(map(str.isalpha, text)) + 2 * len(UNSPACED.findall(text))


def languages(text: str) -> list[str]:
    """The three likeliest languages of a text, as ISO 639-1 codes, by the library py3langid."""
    import py3langid

    return [code for code, _ in py3langid.rank(text)[:3]]


# ---- the whole input


def finish(counters: Counters) -> None:
    """Keep what is frequent enough, as a remark where it is not frequent enough for a warning."""
    counters.sums["refusals"] = counters.hits["refusals"].count if "refusals" in counters.hits else 0
    cut_answers.finish(counters)
    for rule, (remark, warning) in SHARES.items():
        total = counters.sums[_all_of(rule)]
        counters.keep_frequent(rule, max(cut_answers.FEWEST, remark * total), warning * total)


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
