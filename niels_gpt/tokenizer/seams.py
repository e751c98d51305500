r"""Texts that are encoded in one go, each as it would be alone, because nothing is ever merged over what is between.

A byte-level tokenizer splits a text by an expression, and merges bytes only within the parts. With the expressions that
models use, a part that has reached a line's end goes no further than the white space behind it, and no part goes from
what is not white space over a space into a line's end. So that texts with neither white space nor nothing at their ends
are split within themselves alone, be it behind a line's end or on both sides of `SEAM`::

    text       def f(): \n1,2        with the seam " \n" in the middle
    parts      def| f|():| \n|1|,|2  which are those of "def f():", of the seam, and of "1,2"

This is so if each alternative of the expression is one of those below, as can be seen from each for itself: none has
white space that ends in a line's end before other characters, none has a space and then a line's end behind others, and
none looks ahead or back over anything but the white space that it is in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

SEAM = " \n"

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
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r" ?[\p{P}\p{S}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
_SPACES = r"\s+"  # an expression with it leaves no white space to others
_ALTERNATIVE = re.compile(r"(?:\\.|\[(?:\\.|[^\\\]])*\]|\((?:\\.|[^\\)])*\)|[^\\\[(|])+")


def has_seams(steps: Sequence[Mapping[str, Any]], added: Sequence[Mapping[str, Any]]) -> bool:
    """Whether texts can be encoded with `SEAM` between them, each as it would be alone.

    Args:
        steps: of a byte-level pre-tokenizer, in order.
        added: the added tokens that are recognised in texts.
    """
    if any(token.get(flag) for token in added for flag in ("lstrip", "rstrip", "single_word")):
        return False  # it depends on what is beside it
    if any(letter.isspace() for token in added for letter in token["content"]):
        return False  # it might be spelled over a seam
    if not steps or steps[-1]["type"] != "ByteLevel":
        return False
    splits, alphabet = steps[:-1], steps[-1]
    found = [_alternatives(step) for step in splits]
    if not all(known is not None and known <= _ALTERNATIVES for known in found):
        return False
    # Without an expression of its own the last step has GPT-2's, whose alternatives are all like those above.
    return bool(alphabet.get("use_regex", True)) or any(known is not None and _SPACES in known for known in found)


def _alternatives(step: Mapping[str, Any]) -> set[str] | None:
    """What a step's expression matches one of; `None`: it splits in another way."""
    regex = step.get("pattern", {}).get("Regex")
    way = step.get("behavior"), bool(step.get("invert"))
    if step["type"] != "Split" or regex is None or way not in (("Isolated", False), ("Removed", True)):
        return None
    return set(_ALTERNATIVE.findall(regex.replace("\r", r"\r").replace("\n", r"\n")))
