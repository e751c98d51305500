"""What a build says of rows that it used with something changed, left out or not read: codes, and a line for each."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from niels_gpt.progress import Progress
from niels_gpt.sources.rejections import Rejections

NOT_WRITTEN: Final = "_not_written"  # suffix of a change's code: `reasoning_content_not_written`
MOST_UNREAD: Final = 8  # keys that a note lists
NO_TRAINED_STOP: Final = "no_trained_stop"
BY_ORACLE: Final = "attributed_by_oracle"
CHANGE_MESSAGES: Final = {
    NO_TRAINED_STOP: "none of the tokens at which serving stops is trained in their answers, so the model does not "
    "learn to stop there. GLM's families train them with --renderer-option sampled_openers=true --renderer-option "
    "final_stop=true; if answers end in another token, add it to eos_token_id in generation_config.json; where a chat "
    "template writes no stop after answers, --renderer-option final_stop=TOKEN writes one",
    "generation_prompt_differs": "the prompt ends otherwise than serving writes it before an answer",
    "identical_completions": "completions of different ranks have the same ids, which teaches nothing; drop such rows",
    "scores_contradict_ranks": "a completion has a lower score than a worse one, or the margin is below 0: are the "
    "columns exchanged? The ranks (chosen and rejected) count",
    "developer_as_system": "the format has no role developer, so those messages are written as system's, as servers do",
    "text_parts_joined": "text parts of a content are joined by newlines, as servers do for formats without parts",
    "call_ids_named": "ids of calls and results are written as functions.NAME:NUMBER, since the format names functions "
    "by them",
    "arrow_nulls_dropped": "nulls that Arrow invented were dropped from tool calls or tools",
    "arguments_decoded": "arguments of calls are JSON text; they are rendered as the objects they hold, as servers do",
    "tools_decoded": "tools, or schemas of tools, are JSON text; they are rendered as what they hold",
    "reasoning_renamed": "the reasoning has another name or is a part of the content; it is read as reasoning_content",
    "loss_flag_read": "whether a message is trained has another name or is a number; it is read as train or weight",
    "role_renamed": "a role has the name of another format; it is read as the one that it means",
    "round_trip_proven": "their renderings give them again",
    "round_trip_changed": "of these, a text, role or id is written otherwise, see the other counts",
    "round_trip_by_format": "of these, reasoning or another text is left out by the format",
    "partial_attribution": "the attribution of tokens is only partial (allow_partial): masks may train scaffold",
    BY_ORACLE: "attributed each by itself, because what is remembered of the template does not fit them: as certain, "
    "but slower",
}


def report_changes(out: Path, rejections: Rejections, progress: Progress) -> None:
    """Note how many rows of a finished build were used with something changed, left out or not read."""
    for code, rows in sorted(rejections.changed.items()):
        field = code.removesuffix(NOT_WRITTEN)
        # All other codes are names of fields, see `NOT_WRITTEN`.
        message = CHANGE_MESSAGES.get(code) or (
            f"{field} is not written, because the format has no place for it; refuse such rows with "
            "--on-unwritten error (on_unwritten='error')"
        )
        progress.note(f"{out}: {rows:,} rows: {message}")
    if rejections.unread:
        found = ", ".join(f"{key} ({rows:,} rows)" for key, rows in rejections.unread.most_common(MOST_UNREAD))
        more = f" and {len(rejections.unread) - MOST_UNREAD:,} others" if len(rejections.unread) > MOST_UNREAD else ""
        progress.note(f"{out}: keys that nothing reads (docs/messages.md): {found}{more}")
