"""Rules on the mask inside a row: prompts, headers, answers and their stops."""

from __future__ import annotations

from typing import Final

import numpy as np

from niels_gpt.doctor.counters import Counters
from niels_gpt.doctor.layouts.layout import Layout
from niels_gpt.doctor.rows import ASSISTANT, TOOL, Bools, covered
from niels_gpt.doctor.rules.rule import Rule
from niels_gpt.doctor.view import TurnMasks, View

RULES: Final = (
    Rule(
        "eot-not-trained",
        "error",
        "the end-of-turn is not in the loss",
        "The model writes well and never stops, because no end-of-turn is ever in the loss.",
        "The mask covers the assistant's text without the token that closes the turn.",
        "Put the assistant's end-of-turn into the loss.",
        ("huggingface/trl#1623", "unslothai/unsloth#416", "modelscope/ms-swift#3113"),
        needs=("mask", "turns"),
    ),
    Rule(
        "eot-masked-as-padding",
        "error",
        "the real end-of-turn is masked because it is also the padding token",
        "The model does not learn to stop, as with eot-not-trained. All of the mask looks right except the last token "
        "of each answer.",
        "pad_token is eos_token, and labels were set to -100 wherever the id is that of padding.",
        "Mask padding by position (attention_mask), never by id; or give padding a token of its own.",
        ("mlabonne/llm-course#33", "deepseek-ai/DeepSeek-Coder#163", "unslothai/unsloth#416"),
        needs=("mask", "turns"),
    ),
    Rule(
        "open-turns",
        "info",
        "no token that ends a turn is trained",
        "In this format the opener of the next turn ends the assistant turn. If it is not trained, the model does not "
        "learn to stop.",
        "By default the renderer does not mark the opener as sampled.",
        "Train it: sampled_openers=True, and final_stop=True for the last turn (--renderer-option sampled_openers=true "
        "--renderer-option final_stop=true).",
        ("huggingface/trl#1623",),
        needs=("mask", "turns"),
    ),
    Rule(
        "user-tokens-trained",
        "error",
        "text of users, system messages or the template is in the loss",
        "The model learns to write the user's part. The loss looks normal, because this is ordinary language.",
        "The mask is inverted, comes from wrong character offsets, or a span was not closed.",
        "Train assistant spans only, with a mask from attribution by message.",
        ("huggingface/transformers#47325", "huggingface/tokenizers#1517"),
        needs=("mask", "turns"),
    ),
    Rule(
        "tool-results-trained",
        "warning",
        "tool results are in the loss",
        "The model learns to invent tool results. Some recipes do this on purpose.",
        "The mask covers everything after the first assistant turn.",
        "Leave tool messages out of the loss, or silence this rule with the reason.",
        needs=("mask", "turns"),
    ),
    Rule(
        "header-trained",
        "warning",
        "the assistant's header is in the loss",
        "Serving writes the header; the model never does. Its tokens are easy to predict, lower the loss and teach "
        "nothing.",
        "The mask covers the whole turn instead of what follows the generation prompt.",
        "Begin the mask after the generation prompt.",
        ("NVIDIA-NeMo/Automodel#3739",),
        needs=("mask", "turns"),
    ),
    Rule(
        "supplied-trained",
        "warning",
        "text that the generation prompt prefills is in the loss",
        "A prefilled <think> is in the prompt before the model samples its first token, so training it is useless.",
        "The mask begins after the header, but the generation prompt writes more than the header.",
        "Begin the mask after everything that add_generation_prompt=True adds.",
        ("NVIDIA-NeMo/Automodel#3739",),
        needs=("mask", "turns"),
    ),
    Rule(
        "empty-think-trained",
        "info",
        "an empty think block is in the loss",
        "The model learns to skip its reasoning where reasoning is switched on.",
        "The data has no reasoning, and the template writes an empty block that is not in the generation prompt.",
        "Render with enable_thinking=False (--renderer-option enable_thinking=false), so that the prompt contains the "
        "empty block; or add reasoning to the data. Intended where one model is to answer with and without reasoning.",
        ("NVIDIA-NeMo/Automodel#3739",),
        needs=("mask", "turns"),
    ),
    Rule(
        "mask-holes",
        "warning",
        "an answer is only partly in the loss",
        "The model learns to continue text whose beginning it was not trained to write, or half of a word.",
        "Character offsets that do not match token borders, or a mask that was cut and joined.",
        "Compute masks from ids; where parts are left out on purpose, silence this rule with the reason.",
        ("huggingface/tokenizers#1517", "huggingface/transformers#47325"),
        needs=("mask", "turns"),
    ),
    Rule(
        "tail-trained",
        "info",
        "tokens after the assistant's stop are in the loss",
        "Serving stops before them. No harm is known; TRL's training templates do the same.",
        "The mask covers the turn up to the next one.",
        "End the mask with the stop.",
        needs=("mask", "turns"),
    ),
)

UNTRAINED_ENDS: Final = "rows whose end-of-turn is not trained"


def check(view: View, layout: Layout, turn_masks: TurnMasks, rows: Bools) -> None:
    """Judge rows whose mask is plausible as a whole.

    Args:
        rows: bool of shape (rows,): the rows to judge. Rows that train nothing, train everything or have a shifted mask
            are reported by `masks` and left out here.
    """
    _check_prompts(view, layout, rows[view.rows.row_of])
    _check_stops(view, layout, turn_masks, rows)
    _check_answers(view, layout, turn_masks, rows)


def _check_prompts(view: View, layout: Layout, judged: Bools) -> None:
    """Trained tokens that the model never samples."""
    rows, turns = view.rows, view.turns
    assert turns is not None
    # The first token of a text is never predicted, so it is not trained whatever its mask is.
    wrong = view.trained & judged & ~view.padding & ~rows.first_of_document
    # The rest of a turn at the beginning of a row is reported as begins-mid-turn.
    foreign = wrong & (view.role_of != ASSISTANT) & ~covered(*view.cut_turns, len(rows.ids))
    if not layout.has_own_stop:  # the opener after the assistant turn ends it, so it may be trained
        ends = turns.assistants.stop
        foreign[ends[ends >= 0]] = False
    view.hit_tokens("tool-results-trained", foreign & (view.role_of == TOOL), "a tool result is trained from here on")
    view.hit_tokens("user-tokens-trained", foreign & (view.role_of != TOOL), "prompt text is trained from here on")
    assistants = turns.assistants
    header = wrong & covered(assistants.start, assistants.body, len(rows.ids))
    if layout.repeats_opener:  # the model samples the headers between parts of an answer
        header &= ~covered(assistants.start[assistants.resumed], assistants.body[assistants.resumed], len(rows.ids))
    # Think tags of the header are prefilled by the prompt, which is a rule of its own.
    tags = np.isin(rows.ids, layout.think or ())
    view.hit_tokens("header-trained", header & ~tags, "the assistant's header is trained from here on")
    view.hit_tokens("supplied-trained", header & tags, "the generation prompt prefills this token")
    # From after the stop to the end of the turn; empty where there is no stop.
    tail = wrong & covered(
        np.where(assistants.stop >= 0, assistants.stop + 1, assistants.end), assistants.end, len(rows.ids)
    )
    view.hit_tokens("tail-trained", tail, "this token is trained and comes after the stop")


def _check_stops(view: View, layout: Layout, turn_masks: TurnMasks, rows: Bools) -> None:
    """Answers that are trained without their stop."""
    turns = turn_masks.turns
    # A turn that is not trained at all lacks no stop; `untrained` judges it.
    trained = (turn_masks.count > 0) & rows[turns.row]
    if not layout.has_own_stop:
        # A stop is the opener of the next turn, which the last turn of a row does not have: one per row is enough.
        some_stop = np.bincount(turns.row[trained & turn_masks.stop], minlength=len(rows)) > 0
        some_answer = np.bincount(turns.row[trained], minlength=len(rows)) > 0
        view.hit_rows("open-turns", some_answer & ~some_stop, "no token that ends a turn is trained in this row")
        return
    wrong = trained & (turns.stop >= 0) & ~turn_masks.stop
    view.counters.sums[UNTRAINED_ENDS] += len(np.unique(turns.row[wrong]))
    # The tokenizer's padding token, and whatever the rows are padded with.
    padding = {layout.pad, *np.unique(view.rows.ids[view.padding]).tolist()}
    is_padding = wrong & np.isin(view.rows.ids[turns.stop], [token for token in padding if token is not None])
    note = "this end-of-turn is not trained"
    view.hit("eot-masked-as-padding", turns.row[is_padding], turns.stop[is_padding], note)
    other = wrong & ~is_padding
    view.hit("eot-not-trained", turns.row[other], turns.stop[other], note)


def _check_answers(view: View, layout: Layout, turn_masks: TurnMasks, rows: Bools) -> None:
    """Answers that are trained in part, and empty think blocks."""
    turns, ids = turn_masks.turns, view.rows.ids
    # Turns without a stop were cut, and a policy may have left a part out on purpose.
    # A stop that is trained alone is no hole where it is the next opener, or where no text is before it.
    some = (turn_masks.count > 0) | (turn_masks.stop & layout.has_own_stop)
    holes = rows[turns.row] & (turns.stop >= 0) & some & (turn_masks.count < turn_masks.length)
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
    # From each trained </think> back over white space to its <think>.
    begins = ends - 1
    for _ in range(2):  # one or two tokens of newlines between the tags
        white_bytes = (begins >= 0) & (ids[begins] >= 0) & (ids[begins] < layout.vocab_size)
        white_bytes[white_bytes] = layout.white_bytes[ids[begins[white_bytes]]]
        # A step back over one token of white space; where there is none the place stays.
        begins = begins - white_bytes
    # Only where the opening tag is trained: a template may prefill it.
    empty = (begins >= 0) & (ids[begins] == opened) & view.trained[begins]
    view.hit("empty-think-trained", view.rows.row_of[begins[empty]], begins[empty], "an empty think block is trained")


def finish(counters: Counters) -> None:
    """If the end-of-turn is masked as padding in one row, report all untrained ends as that: the cause is the same."""
    if "eot-masked-as-padding" in counters.hits:
        counters.move("eot-not-trained", "eot-masked-as-padding", rows=counters.sums[UNTRAINED_ENDS])
