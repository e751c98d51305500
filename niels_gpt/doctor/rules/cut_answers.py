"""How answers end: with a sentence, in the middle of one because of a token limit, or without a full stop by habit.

Informal writing often leaves out the last full stop, so an open end alone proves nothing. Two things show a token
limit from that habit, and `finish` needs one of them:

* Words. A limit cuts anywhere, and about every fifth place is before a word that must follow: after `the`, `and`, a
  comma, in an open bracket. No message ends there by intent.
* Lengths. A limit cuts the longest answers, all at about the same length, and no answer is longer::

    characters       400   800  1600  2000  4000
    end              120   310   140     2     0
    are open           0     0     1    37     0      the limit is at about 2,000
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Final

from niels_gpt.doctor.counters import Counters

_SENTENCE: Final = re.compile(r"[.!?。！？]['\"”’)\]]*(?:\s|$)")  # full stops of other scripts
_LIST_OR_CODE: Final = re.compile(r"\s*(?:[-*•#|>]|\d+[.)]|[A-Za-z][.)]\s|`)|.*(?:[{}$\\=;<>|`]|https?:)")
_ITEM: Final = re.compile(r"\s*(?:[-*•]|\d+[.)])\s+")
FEWEST_ITEMS, ITEMS = 2, 8  # of a list before its last one, all of which end with a sentence; at most the last ones
LAST_WORDS: Final = 8  # of a paragraph: a token limit leaves more than a few words
# How an answer ends; also the names under which these are counted.
ENDED: Final = "answer-cut: long answers that end with a sentence"
OPEN: Final = "answer-cut: long answers without a full stop"
MID_SENTENCE: Final = "answer-cut: long answers that end where a word must follow"
# Words after which no message ends, whatever the language in which they are read. Left out are those that end messages
# elsewhere: English "of" ("kind of") and "from", German "das", Spanish "dos", Dutch "het".
_WORDS_BY_LANGUAGE: Final = {
    "en": "the a an and or nor my your their our its than as because if whether while whose every between among upon",
    "de": "der dem des ein eine einen einem einer eines und oder aber wenn weil dass",
    "fr": "le la les un une et ou mais dans leur ses de",
    "es, pt": "el las del una unos unas con para sus por uma",
    "it, nl, sv": "il gli di della dei delle een voor ett och",
    "ru": "и в на с по для но или от",
}
UNFINISHED: Final = frozenset(word for words in _WORDS_BY_LANGUAGE.values() for word in words.split())
SHARE_OF_WORDS: Final = 0.10  # of the open ends; a limit makes about 0.2 such ends, habit hardly any
# Of all long answers: the smallest shares that are a remark, and a warning; single ones belong to ordinary data.
SHARES: Final = (0.01, 0.02)
FEWEST: Final = 2  # one of few answers is no share that could be judged
BINS: Final = 4  # of the lengths between n and 2 n characters
AT_LIMIT, WIDTH, FEWEST_OPEN = 0.8, 3, 8  # of the open answers in so many neighbouring bins, of at least so many
SHORTER, LONGER = 0.3, 0.02  # of all long answers: at least, and at most


def ending_of(text: str) -> str | None:
    """How the last paragraph of an answer ends; `None` if it is not prose, or if the ending shows nothing.

    A formula or a signature may end without a full stop, and so may a list whose other items do.
    """
    text = text.rstrip()
    before, _, last = text.rpartition("\n")
    if item := _ITEM.match(last):
        # An item may end without a full stop where the others do, too.
        items = [line for line in before.split("\n") if _ITEM.match(line)][-ITEMS:]
        last = last[item.end() :].lstrip("*_")  # `**Name**: text`
        if len(items) < FEWEST_ITEMS or not all(_SENTENCE.search(line.rstrip()[-3:]) for line in items):
            return None
    if not last or _LIST_OR_CODE.match(last) or len(last.split()) < LAST_WORDS:
        return None
    if last[-1] == "," or last.count("(") > last.count(")"):
        return MID_SENTENCE
    if last[-1].isalpha() and last[-1].islower():
        return MID_SENTENCE if last[last.rfind(" ") + 1 :] in UNFINISHED else OPEN
    return ENDED if _SENTENCE.search(last[-3:]) else None


def count(text: str, ending: str, counters: Counters) -> None:
    """Count how a long answer ends, and its length."""
    counters.sums[ending] += 1
    # Bins of lengths: 16, 20, 23, 27 and 32 characters are in the bins 16 to 20.
    length_bin = int(BINS * math.log2(max(1, len(text.rstrip()))))
    counters.sums[f"{ENDED if ending == ENDED else OPEN} {length_bin}"] += 1


def finish(counters: Counters) -> None:
    """Count the answers that were cut: all that are open where a limit is proven, else those cut where a word must
    follow.
    """
    sums = counters.sums
    proven, unclear = sums[MID_SENTENCE], sums[OPEN]
    if proven >= SHARE_OF_WORDS * (proven + unclear) or has_limit(sums):
        counters.move(OPEN, "answer-cut")
    counters.drop(OPEN)
    counters.move(MID_SENTENCE, "answer-cut")


def has_limit(sums: Counter[str]) -> bool:
    """Whether open answers have about the same length, are the longest, and many others are shorter."""
    opened, ended = _lengths(sums, OPEN), _lengths(sums, ENDED)
    total = opened.total() + ended.total()
    if opened.total() < FEWEST_OPEN:
        return False
    # The window of bins that holds most open answers, the lowest of equal ones.
    first = max(sorted(opened), key=lambda low: sum(opened[low + step] for step in range(WIDTH)))
    inside = sum(opened[first + step] for step in range(WIDTH))
    both = opened + ended
    shorter = sum(n for place, n in both.items() if place < first)
    longer = sum(n for place, n in both.items() if place >= first + WIDTH)
    return inside >= AT_LIMIT * opened.total() and shorter >= SHORTER * total and longer <= LONGER * total


def _lengths(sums: Counter[str], ending: str) -> Counter[int]:
    """How many answers that end so have a length of each bin."""
    prefix = f"{ending} "
    return Counter({int(name[len(prefix) :]): n for name, n in sums.items() if name.startswith(prefix)})
