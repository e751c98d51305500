"""Rows of preferences: the conversation that each completion makes with its prompt, and how the page lists them."""

from __future__ import annotations

from niels_gpt.errors import UsageError
from niels_gpt.explorer.dataset import CompletionSummary
from niels_gpt.explorer.row_columns import texts_of
from niels_gpt.messages import Conversation
from niels_gpt.sources.rows.preference_rows import Completion, Preference

SHOWN_CHARACTERS = 2000  # of a completion in the list; its tokens are shown whole


def conversation_of(row: Preference, completion: int) -> Conversation:
    """The prompt with one of its completions.

    Args:
        completion: 0 is the best, or the first where they have no order.

    Raises:
        UsageError: there is no such completion.
    """
    last = len(row.completions) - 1
    if not 0 <= completion <= last:
        raise UsageError(f"{row.where}: completion is {completion}; the row has completions 0 to {last}")
    return Conversation([*row.prompt, *row.completions[completion].messages], row.where, tools=row.tools)


def with_all_completions(row: Preference) -> Conversation:
    """The prompt with all its completions one after another: what is searched, counted and filtered."""
    answers = [message for one in row.completions for message in one.messages]
    return Conversation([*row.prompt, *answers], row.where, tools=row.tools)


def summaries_of(row: Preference) -> list[CompletionSummary]:
    """The completions as the page lists them, the best first."""
    texts = ["\n\n".join(text for message in one.messages for text in texts_of(message)) for one in row.completions]
    return [
        CompletionSummary(one.name, _facts_of(one, row), text[:SHOWN_CHARACTERS], len(text))
        for one, text in zip(row.completions, texts, strict=True)
    ]


def _facts_of(one: Completion, row: Preference) -> str:
    """What the row says of a completion: `rank 0 (best), score 0.9`."""
    facts = []
    # The names of a pair, chosen and rejected, say its order.
    if one.rank is not None and row.form != "preference":
        facts.append(f"rank {one.rank}{' (best)' if one.rank == 0 else ''}")
    if one.label is not None:
        facts.append("desirable" if one.label else "undesirable")
    if one.score is not None:
        facts.append(f"score {one.score:g}")
    if row.margin is not None and one is row.completions[0]:
        facts.append(f"margin {row.margin:g}")
    return ", ".join(facts)
