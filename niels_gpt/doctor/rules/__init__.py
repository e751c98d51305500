"""All rules, in the order in which they are reported.

::

    data.py        rows as such              chats.py       conversations
    masks.py       what is trained           calls.py       tool calls
    turns.py       how turns begin and end   tokenizers.py  a tokenizer and its template alone
    packing.py     several texts in a row    drift.py       two of them
    answers.py     answers and their stops   documents.py   caches of plain text
    untrained.py   turns that no row trains
"""

from __future__ import annotations

from typing import Final

from niels_gpt.doctor.rules import (
    answers,
    calls,
    chats,
    data,
    documents,
    drift,
    masks,
    packing,
    tokenizers,
    turns,
    untrained,
)
from niels_gpt.doctor.rules.rule import Rule
from niels_gpt.errors import UsageError, did_you_mean

RULES: Final[dict[str, Rule]] = {
    rule.id: rule
    for rules in (
        data.RULES,
        turns.RULES,
        masks.RULES,
        untrained.RULES,
        answers.RULES,
        packing.RULES,
        documents.RULES,
        chats.RULES,
        calls.RULES,
        tokenizers.RULES,
        drift.RULES,
    )
    for rule in rules
}


def rule_of(name: str) -> Rule:
    """The rule of an id.

    Raises:
        UsageError: there is none.
    """
    if name not in RULES:
        raise UsageError(f"no rule {name!r}; `niels-gpt doctor --rules` lists all{did_you_mean(name, RULES)}")
    return RULES[name]
