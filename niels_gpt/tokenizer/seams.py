r"""Texts that are encoded in one go, each as it would be alone, because nothing is ever merged over what is between.

A byte-level tokenizer splits a text by an expression, and merges bytes only within the parts. With the expressions that
models use, a part that has reached a line's end goes no further than the white space behind it, and no part goes from
what is not white space over a space into a line's end. So that texts with neither white space nor nothing at their ends
are split within themselves alone, be it behind a line's end or on both sides of `SEAM`::

    text       def f(): \n1,2        with the seam " \n" in the middle
    parts      def| f|():| \n|1|,|2  which are those of "def f():", of the seam, and of "1,2"

This is so if each alternative of the expression is one of those below: none has white space that ends in a line's end
before other characters, and none has a space and then a line's end behind others. How what stands before a text is
split depends on the text in two cases, so that it is known only where they are not: some expressions take slashes to a
line's end behind a sign ("...\n//"), and where none takes ends of lines together before all else, two of them are one
part or two, by whether an added token comes next ("\n\n<think>").
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

SEAM = " \n"

_LINES, _SPACES = r"\s*[\r\n]+", r"\s+"
_OTHERS = {r"\s+(?!\S)", _SPACES}  # that take ends of lines too
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
        _LINES,
        *_OTHERS,
    )
)
_ALTERNATIVE = re.compile(r"(?:\\.|\[(?:\\.|[^\\\]])*\]|\((?:\\.|[^\\)])*\)|[^\\\[(|])+")


@dataclass(frozen=True)
class Seams:
    """How a tokenizer splits, with which texts can be encoded with `SEAM` between them, each as it would be alone.

    Attributes:
        slashes: it takes them to the end of a line behind a sign.
        lines: it takes ends of lines together, whatever comes next.
    """

    slashes: bool
    lines: bool

    def parts(self, text: str, begin: int, end: int) -> bool:
        """Whether what is no white space is split from `text[begin:end]` before it, which stays as it is split.

        Args:
            begin: where the last control token ends.
        """
        line = end
        while line > begin and text[line - 1] in "\r\n":
            line -= 1
        if line == end:
            return begin == end
        last = text[line - 1 : line] if line > begin else ""
        if not self.lines and (end - line > 1 or last.isspace()):
            return False
        return not self.slashes or not last or (last.isascii() and last.isalnum())


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
    found = [_alternatives(step) for step in steps[:-1]]
    if not all(_ALTERNATIVES.issuperset(known) for known in found):
        return None
    order = list(chain.from_iterable(found))
    spaces = next((known for known in order if known in {_LINES, *_OTHERS}), None)
    # The last step may have an expression of its own, GPT-2's, whose alternatives are all like those above.
    if _SPACES not in order and not steps[-1].get("use_regex", True):
        return None
    return Seams(slashes=_SLASHES in order, lines=spaces == _LINES)


def _alternatives(step: Mapping[str, Any]) -> list[str]:
    """What a step's expression matches one of, in order."""
    regex = step.get("pattern", {}).get("Regex")
    way = step.get("behavior"), bool(step.get("invert"))
    if step["type"] != "Split" or regex is None or way not in (("Isolated", False), ("Removed", True)):
        return ["it splits in another way"]
    plain = regex.replace("\r", r"\r").replace("\n", r"\n")
    found: list[str] = _ALTERNATIVE.findall(plain)
    return found if "|".join(found) == plain else ["something else"]
