"""Texts that were decoded with another code page than they were written in, where whole messages show it.

Three signs, in order of their cost. None is seen in sound text:

* All characters beyond ASCII are UTF-8 when they are encoded with some code page::

    "caf├⌐, na├»ve" encoded with code page 437 is the UTF-8 of "café, naïve"

* Many words of four or more accented letters, which no language has: Cyrillic, Greek or Chinese read as Latin-1.
* Cyrillic text, or signs of tables, with few of the letters that are frequent in Cyrillic languages, and with many of
  them when it is encoded with one Cyrillic code page and decoded with another::

    "оПХБЕР" (KOI8-R read as Windows-1251) is "Привет"

Windows-1250 read as Windows-1252 and the like, where single letters differ, are not found.
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
