r"""Texts that are encoded in one go, each as it would be alone, because nothing is ever merged over what is between.

A byte-level tokenizer splits a text by an expression, and merges bytes only within the parts. With the expressions that
models use, a part that has reached a line's end goes no further than the white space behind it, and no part goes from
what is not white space over a space into a line's end. So that texts with neither white space nor nothing at their ends
are split within themselves alone, be it behind a line's end or on both sides of `SEAM`::

    text       def f(): \n1,2        with the seam " \n" in the middle
    parts      def| f|():| \n|1|,|2  which are those of "def f():", of the seam, and of "1,2"

This is so if each alternative of the expression is one of those below, as can be seen from each for itself: none has
white space that ends in a line's end before other characters, none has a space and then a line's end behind others, and
none looks ahead or back over anything but the white space that it is in. But some take slashes to the line's end behind
a sign ("...\n//"), so that with those only a line that ends in a letter or a digit, or is empty, parts what comes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SEAM = " \n"

_SLASHES = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_ALTERNATIVES = frozenset(
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+""",
        r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
        r"[一-龥぀-ゟ゠-ヿ]+",
        r"\p{N}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        _SLASHES,
        r" ?[\p{P}\p{S}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
_SPACES = r"\s+"  # an expression with it leaves no white space to others
_ALTERNATIVE = re.compile(r"(?:\\.|\[(?:\\.|[^\\\]])*\]|\((?:\\.|[^\\)])*\)|[^\\\[(|])+")


@dataclass(frozen=True)
class Seams:
    """How a tokenizer splits, with which texts can be encoded with `SEAM` between them, each as it would be alone.

    Attributes:
        slashes: it takes them to the end of a line behind a sign.
    """

    slashes: bool

    def parts_behind(self, text: str) -> bool:
        """Whether what comes behind this text, no white space, is split from it, whatever it is.

        Args:
            text: all that stands there since the last control token.
        """
        line = text.rstrip("\r\n")
        if not text or len(line) == len(text):
            return not text
        return not self.slashes or not line or (line[-1].isascii() and line[-1].isalnum())


def seams_of(steps: Sequence[Mapping[str, Any]], added: Sequence[Mapping[str, Any]]) -> Seams | None:
    """How a tokenizer splits texts, if that is known well enough.

    Args:
        steps: of a byte-level pre-tokenizer, in order.
        added: the added tokens that are recognised in texts.
    """
    if any(token.get(flag) for token in added for flag in ("lstrip", "rstrip", "single_word")):
        return None  # it depends on what is beside it
    if any(letter.isspace() for token in added for letter in token["content"]):
        return None  # it might be spelled over a seam
    if not steps or steps[-1]["type"] != "ByteLevel":
        return None
    splits, alphabet = steps[:-1], steps[-1]
    found = [_alternatives(step) for step in splits]
    if not all(known <= _ALTERNATIVES for known in found):
        return None
    # The last step may have an expression of its own, GPT-2's, whose alternatives are all like those above.
    if not alphabet.get("use_regex", True) and not any(_SPACES in known for known in found):
        return None
    return Seams(slashes=any(_SLASHES in known for known in found))


def _alternatives(step: Mapping[str, Any]) -> set[str]:
    """What a step's expression matches one of."""
    regex = step.get("pattern", {}).get("Regex")
    way = step.get("behavior"), bool(step.get("invert"))
    if step["type"] != "Split" or regex is None or way not in (("Isolated", False), ("Removed", True)):
        return {"it splits in another way"}
    return set(_ALTERNATIVE.findall(regex.replace("\r", r"\r").replace("\n", r"\n")))
