"""All rules, in the order in which they are listed and reported: their words, and what each needs, are `rules.toml`.

The modules beside it judge, a subject each, and report hits under the ids of the table::

    data.py      rows as such                chats.py        conversations
    turns.py     turns, their contents       contents.py     the text of messages
    turn_ends.py how answers end             calls.py        tool calls
    masks.py     which tokens are trained    preferences.py  chosen and rejected, labels, ranks
    packing.py   several texts in a row      tokenizers.py   a tokenizer and its template
    vocabulary.py ids of another tokenizer   ../comparing.py two of them

To add a rule: docs/add_a_rule.md.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final, Literal

from niels_gpt.doctor.evidence import Severity
from niels_gpt.errors import UsageError, did_you_mean

NO_THREAD: Final = "none known"
# What a rule may need besides the rows themselves. Where it is missing the report lists the rule as not judged.
Need = Literal[
    "tokenizer",  # any tokenizer
    "vocabulary",  # how many ids there are
    "renderer",  # a chat template or a family
    "ids",  # rows of ids, or a renderer that makes them from conversations
    "turns",  # where turns begin and end
    "controls",  # which tokens are control tokens, and where contents are
    "beginnings",  # which tokens a text begins with
    "stops",  # what ends an answer
    "mask",  # which tokens are trained
    "prompts",  # which tokens belong to a prompt, or a mask other than labels
    "padding",  # which tokens are padding
    "validation",  # validation data whose rows can be compared
]


@dataclass(frozen=True)
class Rule:
    """One thing that can be wrong with data, a mask, a tokenizer or a template.

    Attributes:
        id: the name that `--silence`, `niels-gpt rules`, JSON and SARIF use; it never changes.
        title: what was found, in one line.
        meaning: what it does to a model, and why the loss curve does not show it.
        cause, fix: the usual cause, and what to do.
        threads: public threads in which people met it, as owner/repository#number.
        applies: kinds of input: chats, tokens, preferences, tokenizer, drift (two of them).
        needs: without these the rule is not judged, and the report says so.
    """

    id: str
    severity: Severity
    title: str
    meaning: str
    cause: str
    fix: str
    applies: tuple[str, ...]
    threads: tuple[str, ...] = ()
    needs: tuple[Need, ...] = ()

    @property
    def thread(self) -> str:
        """The address of the first thread (GitHub forwards the number of a pull request)."""
        return thread_url(self.threads[0]) if self.threads else NO_THREAD


def thread_url(thread: str) -> str:
    """owner/repository#12 as an address."""
    repository, _, number = thread.partition("#")
    return f"https://github.com/{repository}/issues/{number}"


def _table() -> dict[str, Rule]:
    table: dict[str, dict[str, Any]] = tomllib.loads((files(__name__) / "rules.toml").read_text(encoding="utf-8"))
    lists = ("applies", "threads", "needs")
    return {
        name: Rule(name, **row | {field: tuple(row.get(field, ())) for field in lists}) for name, row in table.items()
    }


RULES: Final = _table()


def rule_of(name: str) -> Rule:
    """The rule of an id.

    Raises:
        UsageError: there is none.
    """
    if name not in RULES:
        raise UsageError(f"no rule {name!r}; `niels-gpt rules` lists all{did_you_mean(name, RULES)}")
    return RULES[name]
