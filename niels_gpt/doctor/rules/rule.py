"""What a rule is: words for people and for machines. The checks that find it stand beside the words, file by file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from niels_gpt.doctor.report import Severity

NO_THREAD = "none known"
# What a rule may need beside the rows themselves.
Need = Literal[
    "tokenizer",  # any tokenizer
    "vocabulary",  # how many ids there are
    "renderer",  # a template or a family
    "ids",  # rows of ids, or a renderer that makes them of conversations
    "turns",  # where turns begin and end
    "controls",  # which tokens are control tokens, and where contents are
    "beginnings",  # which tokens a text begins with
    "stops",  # what ends an answer
    "mask",  # which tokens are trained
    "prompts",  # which tokens are a prompt's, or a mask of its own beside the ids
    "padding",  # which tokens are padding
    "everything",  # all rows, not a sample of them
]


@dataclass(frozen=True)
class Rule:
    """One thing that can be wrong.

    Attributes:
        id: stable; what `--silence` and `--explain` take.
        title: one line.
        meaning: what it does to a model, and why no loss curve shows it.
        cause, fix: the usual ones.
        threads: public threads in which people met it, as owner/repository#number.
        applies: kinds of input: chats, tokens, documents (of a cache of plain text), tokenizer, drift.
        needs: without these the rule is not judged, and the report says so.
    """

    id: str
    severity: Severity
    title: str
    meaning: str
    cause: str
    fix: str
    threads: tuple[str, ...] = ()
    applies: tuple[str, ...] = ("chats", "tokens")
    needs: tuple[Need, ...] = ()

    @property
    def thread(self) -> str:
        """The address of the first thread (GitHub leads an issue's number to a pull request where it is one)."""
        if not self.threads:
            return NO_THREAD
        return thread_url(self.threads[0])


def thread_url(thread: str) -> str:
    """owner/repository#12 as an address."""
    repository, _, number = thread.partition("#")
    return f"https://github.com/{repository}/issues/{number}"
