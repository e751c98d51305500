"""All rules, in the order in which they are listed and reported.

::

    data.py       rows as such               chats.py        conversations
    turns.py      turns, their contents      contents.py     the text of messages
    turn_ends.py  how answers end            calls.py        tool calls
    masks.py      the mask of whole rows     preferences.py  chosen and rejected, labels, ranks
    answers.py    the mask inside rows       tokenizers.py   a tokenizer and its template
    untrained.py  turns that no row trains   drift.py        two of them
    packing.py    several texts in a row
    vocabulary.py ids of another tokenizer or format, by encoding their text again (encoded_again.py)

To add a rule, write a subclass of `Rule` with `check_rows` or `check_chat` in the file of its subject, put an instance
with its words into that file's `RULES`, and data with and without the fault into `tests/doctor/planted_*.py`::

    class OddLength(Rule):
        def check_rows(self, view: View) -> None:
            view.hit_rows(self.id, view.rows.lengths % 2 == 1, "an odd number of tokens")

    RULES = (..., OddLength("odd-length", "info", "rows have an odd number of tokens", "...", "...", "..."))
"""

from __future__ import annotations

from typing import Final

from niels_gpt.doctor.rules import (
    answers,
    calls,
    chats,
    contents,
    data,
    drift,
    masks,
    packing,
    preferences,
    tokenizers,
    turns,
    untrained,
    vocabulary,
)
from niels_gpt.doctor.rules.rule import Rule
from niels_gpt.errors import UsageError, did_you_mean

RULES: Final[dict[str, Rule]] = {
    rule.id: rule
    for rules in (
        data.RULES,
        vocabulary.RULES,
        turns.RULES,
        masks.RULES,
        untrained.RULES,
        answers.RULES,
        packing.RULES,
        chats.RULES,
        contents.RULES,
        calls.RULES,
        preferences.RULES,
        tokenizers.RULES,
        drift.RULES,
    )
    for rule in rules
}

# Rules with a check of their own, by the kind of input. The others are left out: a call that does nothing, for every
# rule and every conversation, would take a noticeable part of the time.
ROW_RULES: Final[dict[str, tuple[Rule, ...]]] = {
    kind: tuple(r for r in RULES.values() if kind in r.applies and type(r).check_rows is not Rule.check_rows)
    for kind in ("chats", "tokens")
}
CHAT_RULES: Final = tuple(
    r for r in RULES.values() if "chats" in r.applies and type(r).check_chat is not Rule.check_chat
)


def rule_of(name: str) -> Rule:
    """The rule of an id.

    Raises:
        UsageError: there is none.
    """
    if name not in RULES:
        raise UsageError(f"no rule {name!r}; `niels-gpt rules` lists all{did_you_mean(name, RULES)}")
    return RULES[name]
