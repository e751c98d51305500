"""Rules on what is trained inside a row: prompts, headers, answers and their stops."""

from __future__ import annotations

from typing import Final

import numpy as np

from niels_gpt.doctor.graded import Graded
from niels_gpt.doctor.layout import Layout
from niels_gpt.doctor.rows import ASSISTANT, TOOL, Bools, covered
from niels_gpt.doctor.rules.rule import Rule
from niels_gpt.doctor.tally import Tally
from niels_gpt.doctor.view import View

RULES: Final = (
    Rule(
        "eot-not-trained",
        "error",
        "the end-of-turn is not in the loss",
        "The never-ending response: the model writes well and does not stop, because it was never graded on stopping.",
        "The mask covers the assistant's text without the token that closes the turn.",
        "Put the assistant's end-of-turn into the loss.",
        ("huggingface/trl#1623", "unslothai/unsloth#416", "modelscope/ms-swift#3113"),
        needs=("mask", "turns"),
    ),
    Rule(
        "eot-masked-as-padding",
        "error",
        "the real end-of-turn is masked because it is also the padding token",
        "As eot-not-trained: the model does not learn to stop. The mask looks right wherever one does not look at the "
        "last token.",
        "pad_token is eos_token, and labels were set to -100 wherever the id is the padding's.",
        "Mask padding by position (attention_mask), never by value; or give padding a token of its own.",
        ("mlabonne/llm-course#33", "deepseek-ai/DeepSeek-Coder#163", "unslothai/unsloth#416"),
        needs=("mask", "turns"),
    ),
    Rule(
        "open-turns",
        "warning",
        "no token that ends a turn is trained",
        "In this format the next turn's opener ends the assistant's turn. If it is not trained, nothing teaches the "
        "model to stop.",
        "The renderer does not count the opener as sampled, which is its default.",
        "Train it: sampled_openers=True, and ensure_final_stop=True for the last turn.",
        ("huggingface/trl#1623",),
        needs=("mask", "turns"),
    ),
    Rule(
        "user-tokens-trained",
        "error",
        "text that the model never writes is in the loss",
        "The model becomes a good simulator of users and a worse assistant. Loss looks fine: it is language like any.",
        "The mask is inverted, comes from lying character offsets, or a span was not closed.",
        "Train assistant spans only, from attribution by message.",
        ("huggingface/transformers#47325", "huggingface/tokenizers#1517"),
        needs=("mask", "turns"),
    ),
    Rule(
        "tool-results-trained",
        "warning",
        "what tools returned is in the loss",
        "The model learns to make up tool results. Some recipes do this on purpose.",
        "The mask covers everything behind the first assistant turn.",
        "Leave tool messages out of the loss, or silence this rule with the reason.",
        needs=("mask", "turns"),
    ),
    Rule(
        "header-trained",
        "warning",
        "the assistant's header is in the loss",
        "Serving writes the header; the model never does. The easy tokens lower the loss and teach nothing.",
        "The mask covers the whole turn instead of what follows the generation prompt.",
        "Begin the mask behind the generation prompt.",
        ("NVIDIA-NeMo/Automodel#3739",),
        needs=("mask", "turns"),
    ),
    Rule(
        "supplied-trained",
        "warning",
        "text that the generation prompt supplies is in the loss",
        "A prefilled <think> is there before the model writes its first token.",
        "The mask begins behind the header, and the prompt supplies more than the header.",
        "Begin the mask behind everything that add_generation_prompt=True adds.",
        ("NVIDIA-NeMo/Automodel#3739",),
        needs=("mask", "turns"),
    ),
    Rule(
        "empty-think-trained",
        "warning",
        "an empty think block is in the loss",
        "The model learns to skip its reasoning wherever reasoning is on.",
        "The data has no reasoning, and the template writes an empty block that no generation prompt supplies.",
        "Render with enable_thinking=False, where the prompt supplies the empty block; or add reasoning to the data.",
        ("NVIDIA-NeMo/Automodel#3739",),
        needs=("mask", "turns"),
    ),
    Rule(
        "mask-holes",
        "warning",
        "parts of an assistant's turn are in the loss and parts are not",
        "The model learns to continue text that it was never graded on, or half of a word.",
        "Character offsets that do not fit tokens, or a mask cut and glued.",
        "Derive masks from ids; where parts are left out on purpose, silence this rule with the reason.",
        ("huggingface/tokenizers#1517", "huggingface/transformers#47325"),
        needs=("mask", "turns"),
    ),
    Rule(
        "tail-trained",
        "info",
        "tokens behind the assistant's stop are in the loss",
        "Serving stops before them. Harmless as far as known; TRL's training templates do the same.",
        "The mask covers the turn up to the next one.",
        "End the mask with the stop.",
        needs=("mask", "turns"),
    ),
)


def check(view: View, layout: Layout, graded: Graded, rows: Bools) -> None:
    """Judge these rows, whose masks are neither nothing nor everything nor moved.

    Args:
        rows: bool of shape (rows,), the ones to judge.
    """
    _prompts(view, layout, rows[view.rows.row_of])
    _stops(view, layout, graded, rows)
    _inside(view, layout, graded, rows)


def _prompts(view: View, layout: Layout, judged: Bools) -> None:
    """What the model never writes."""
    rows, turns = view.rows, view.turns
    assert turns is not None
    wrong = view.trained & judged & ~view.padding & ~rows.first_of_document
    foreign = wrong & (view.role_of != ASSISTANT) & ~covered(*view.cut_heads, len(rows.ids))  # those: begins-mid-turn
    if not layout.closes:  # the opener behind the assistant's turn ends it
        ends = turns.assistants.stop
        foreign[ends[ends >= 0]] = False
    view.hit_tokens("tool-results-trained", foreign & (view.role_of == TOOL), "a tool's result is trained from here on")
    view.hit_tokens("user-tokens-trained", foreign & (view.role_of != TOOL), "prompt text is trained from here on")
    own = turns.assistants
    header = wrong & covered(own.start, own.body, len(rows.ids))
    if layout.joins:  # the model may write these itself
        header &= ~covered(own.start[own.resumed], own.body[own.resumed], len(rows.ids))
    tags = np.isin(rows.ids, layout.think or ())
    view.hit_tokens("header-trained", header & ~tags, "the assistant's header is trained from here on")
    view.hit_tokens("supplied-trained", header & tags, "the generation prompt supplies this token")
    tail = wrong & covered(np.where(own.stop >= 0, own.stop + 1, own.end), own.end, len(rows.ids))
    view.hit_tokens("tail-trained", tail, "trained, and behind the stop")


def _stops(view: View, layout: Layout, graded: Graded, rows: Bools) -> None:
    """Answers that are trained and whose stop is not."""
    turns = graded.turns
    taught = (graded.count > 0) & rows[turns.row]
    if not layout.closes:
        told = np.bincount(turns.row[taught & graded.stop], minlength=len(rows)) > 0
        spoke = np.bincount(turns.row[taught], minlength=len(rows)) > 0
        view.hit_rows("open-turns", spoke & ~told, "no token that ends a turn is trained in this row")
        return
    wrong = taught & (turns.stop >= 0) & ~graded.stop
    padding = {layout.pad, *np.unique(view.rows.ids[view.padding]).tolist()}
    by_value = wrong & np.isin(view.rows.ids[turns.stop], [token for token in padding if token is not None])
    view.hit("eot-masked-as-padding", turns.row[by_value], turns.stop[by_value], "this end-of-turn is not trained")
    alone = wrong & ~by_value
    view.hit("eot-not-trained", turns.row[alone], turns.stop[alone], "this end-of-turn is not trained")


def _inside(view: View, layout: Layout, graded: Graded, rows: Bools) -> None:
    """Holes in answers, and think blocks without a thought."""
    turns, ids = graded.turns, view.rows.ids
    holes = rows[turns.row] & (turns.stop >= 0) & (graded.count > 0) & (graded.count < graded.length)
    view.hit(
        "mask-holes",
        turns.row[holes],
        turns.body[holes],
        "only a part of the answer that begins here is trained",
    )
    if layout.think is None:
        return
    opened, closed = layout.think
    ends = np.flatnonzero((ids == closed) & view.trained & rows[view.rows.row_of])
    begins = ends - 1
    for _ in range(2):  # a new line or two between the tags
        blank = (begins >= 0) & (ids[begins] >= 0) & (ids[begins] < layout.vocab_size)
        blank[blank] = layout.blank[ids[begins[blank]]]
        begins = begins - blank
    empty = (begins >= 0) & (ids[begins] == opened) & view.trained[begins]
    view.hit("empty-think-trained", view.rows.row_of[begins[empty]], begins[empty], "an empty think block is trained")


def finish(tally: Tally) -> None:
    """Decide what only the whole input shows: where one end-of-turn is masked as padding, all are."""
    if "eot-masked-as-padding" in tally.hits:
        tally.move("eot-not-trained", "eot-masked-as-padding")
