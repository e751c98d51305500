"""Texts that were decoded with another code page than they were written in, where whole messages show it.

Four signs, in order of their cost. None is seen in sound text:

* All characters beyond ASCII are UTF-8 when they are encoded with some code page::

    "caf├⌐, na├»ve" encoded with code page 437 is the UTF-8 of "café, naïve"

* Many words of four or more accented letters, which no language has: Cyrillic, Greek or Chinese read as Latin-1.
* Central European text read as Western: signs inside of words ("mo¿na" is "można"), or letters that no language has
  together (Hungarian õ without Portuguese ã, Czech ø beside ì).
* Cyrillic text, or signs of tables, with few of the letters that are frequent in Cyrillic languages, and with many of
  them when it is encoded with one Cyrillic code page and decoded with another::

    "оПХБЕР" (KOI8-R read as Windows-1251) is "Привет"

Texts of a few words may show none of these.
"""

from __future__ import annotations

import re
from typing import Final

# Code pages in which UTF-8 is read by mistake; Windows-1252 and 1251 are in `contents.DAMAGED` as well.
_READ_AS: Final = ("latin-1", "cp1250", "cp1253", "cp1254", "mac_roman", "cp437", "cp850", "koi8-r", "cp866")
FEWEST_CHARACTERS: Final = 2  # characters that were read so, at least
WRONG_BYTES: Final = 0.1  # of them: programs leave out bytes that a code page does not have

_WORD: Final = re.compile("[\xa0-\xff€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ]{4,}")
FEWEST_WORDS: Final = 6  # different ones

# Central European letters in ISO 8859-2 and Windows-1250, as Latin-1 and Windows-1252 read them: ą ł ś ź ż š ž ş.
_LETTER: Final = "A-Za-zÀ-ÖØ-öø-ÿŠšŽžŒœŸ"
# š and ž may be the first letter; other signs before a word are meant (¿qué?).
_SIGN_IN_WORD: Final = re.compile(f"(?<![{_LETTER}])(?:[{_LETTER}]+[±¶¹³¼¾¿º]+|[¹¾])[{_LETTER}]+")
SHORTEST_WORD: Final = 4  # letters: a formula such as x³y has fewer
FEWEST_SIGNS: Final = 3  # different words
# Letters that no language has together, so that they were others before, and how many of the second there are for one
# of the first, at least.
_NOT_TOGETHER: Final = (
    # Hungarian ő beside á é í. Portuguese has õ before e, and Estonian has no á é í.
    (re.compile("õ(?!e)", re.I), re.compile("[áéí]", re.I), 1),
    # Czech ř beside ě ů. Danish and Norwegian have neither ì nor ù.
    (re.compile("ø", re.I), re.compile("[ìù]", re.I), 1),
    # Czech and Croatian č ě ć in Windows-1250, where š and ž have the same bytes as in Windows-1252.
    (re.compile("[èìæ]", re.I), re.compile("[šž]", re.I), 0.2),
    # Romanian ţ beside ă. Icelandic has no ã.
    (re.compile("þ", re.I), re.compile("ã", re.I), 0.5),
)
FEWEST_TOGETHER: Final = 3

# What a Cyrillic code page has beside ASCII: letters, signs of tables and blocks.
_CYRILLIC: Final = re.compile("[\u0400-\u04ff\u2500-\u25ff]")
_PAGES: Final = ("cp1251", "koi8-r", "koi8-u", "cp866", "iso8859-5", "mac_cyrillic")
FREQUENT: Final = "оеаинтсрвлкдмпу"  # three quarters of a Cyrillic text and more
FEWEST_LETTERS: Final = 30
READ: Final = 2_000  # characters of a text
# Shares of frequent letters: at least so many in a sound text, in a repaired one, and more than before the repair.
SOUND, REPAIRED, BETTER = 0.5, 0.65, 0.05
DIFFERENT: Final = 10  # of the frequent letters: signs of tables may look like one of them
_BEYOND_ASCII: Final = re.compile("[^\x00-\x7f]+")


def misread(text: str) -> str | None:
    """What shows that a text was decoded wrongly; `None` where nothing does."""
    runs = _BEYOND_ASCII.findall(text[:READ])
    # Every character beyond ASCII takes two bytes or more in UTF-8, so that a single one was read correctly.
    if runs and all(len(run) > 1 for run in runs) and (page := _page_of_utf8(" ".join(runs))):
        return f"{runs[0][:8]!r} is UTF-8 that was read as {page}"
    words = {word for word in runs if len(word) > 3 and _WORD.fullmatch(word) and list(word) != sorted(word)}
    if len(words) >= FEWEST_WORDS:
        return f"{max(words, key=len)[:16]!r} and {len(words) - 1} other words of accented letters"
    if runs and (found := _central_european(text[:READ])):
        return found
    return _misread_cyrillic(text[:READ])


def _page_of_utf8(text: str) -> str | None:
    """The code page in which these characters are UTF-8; `None` without one."""
    for page in _READ_AS:
        try:
            read = text.encode(page).decode("utf-8", "replace")
        except UnicodeEncodeError:
            continue
        wrong = read.count("\ufffd")
        right = sum(character > "\x7f" for character in read) - wrong
        if right >= FEWEST_CHARACTERS and wrong <= WRONG_BYTES * right:
            return page
    return None


def _central_european(text: str) -> str | None:
    """The words for Central European text that was read in a Western code page."""
    words = [word for word in dict.fromkeys(_SIGN_IN_WORD.findall(text)) if len(word) >= SHORTEST_WORD]
    if len(words) >= FEWEST_SIGNS:
        return f"{words[0]!r} and {len(words) - 1} other words with signs in them; perhaps ISO 8859-2 read as Latin-1"
    try:
        text.encode("cp1252")
    except UnicodeEncodeError:  # letters that the Western code pages do not have were read correctly
        return None
    for one, other, ratio in _NOT_TOGETHER:
        first, second = one.findall(text), other.findall(text)
        if len(first) >= FEWEST_TOGETHER and len(second) >= max(FEWEST_TOGETHER, ratio * len(first)):
            return f"{first[0]!r} and {second[0]!r} in one text; perhaps ISO 8859-2 or Windows-1250 read as Latin-1"
    return None


def _misread_cyrillic(text: str) -> str | None:
    """The words for Cyrillic text in which frequent letters are rare until it is decoded again."""
    n = len(_CYRILLIC.findall(text))
    if n < FEWEST_LETTERS or _share(text, n) >= SOUND:
        return None
    best = _share(text.lower(), n)  # headings are sound, too
    for read_as in _PAGES:
        found = text.encode(read_as, "ignore")
        for written_in in _PAGES:
            repaired = found.decode(written_in, "ignore")
            different = sum(letter in repaired for letter in FREQUENT)
            if different >= DIFFERENT and _share(repaired, n) >= max(REPAIRED, best + BETTER):
                return f"{written_in} that was read as {read_as}"
    return None


def _share(text: str, n: int) -> float:
    return sum(map(text.count, FREQUENT)) / n
