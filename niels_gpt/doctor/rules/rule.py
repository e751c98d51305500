"""What a rule is: the words that reports show, what it needs to be judged, and its check."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from niels_gpt.doctor.evidence import Severity
from niels_gpt.doctor.rows import ChatRow
from niels_gpt.doctor.view import View

NO_THREAD = "none known"
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

    A rule that needs no other rule overrides `check_rows` or `check_chat`. Rules that share work, depend on each
    other or need the whole input are instances of this class, judged by the functions of their module.

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
    threads: tuple[str, ...] = ()
    applies: tuple[str, ...] = ("chats", "tokens")
    needs: tuple[Need, ...] = ()

    def check_rows(self, view: View) -> None:
        """Judge rows of ids and report with `view.hit(self.id, ...)`.

        Called for every slice: with rows of the input if `applies` names tokens, with conversations as they were just
        rendered if it names chats.
        """

    def check_chat(self, chat: ChatRow) -> Iterable[tuple[int | None, str]]:
        """The faults of one conversation of the input.

        Returns:
            For each fault the index of the message (`None`: the conversation as a whole) and what is wrong there.
        """
        return ()

    @property
    def thread(self) -> str:
        """The address of the first thread (GitHub forwards the number of a pull request)."""
        return thread_url(self.threads[0]) if self.threads else NO_THREAD


def thread_url(thread: str) -> str:
    """owner/repository#12 as an address."""
    repository, _, number = thread.partition("#")
    return f"https://github.com/{repository}/issues/{number}"
