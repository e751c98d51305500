"""Rules on what is trained: the mask beside the turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from niels_gpt.doctor.layout import Layout
from niels_gpt.doctor.rows import ASSISTANT, TOOL, Bools, Turns, counts_in, covered
from niels_gpt.doctor.rules.rule import Rule
from niels_gpt.doctor.tally import Tally
from niels_gpt.doctor.view import View

RULES: Final = (
    Rule(
        "mask-all-zero",
        "error",
        "nothing of the row is trained",
        "The row costs compute and teaches nothing. The loss is an average over the other rows, so it looks healthy.",
        "The assistant mask came from a template without {% generation %} markers, truncation removed the answer, or "
        "the collator did not find its marker text.",
        "Build masks from attribution instead (niels-gpt episodes build, build_training_sample), or drop such rows.",
        ("huggingface/transformers#34172", "marin-community/marin#7237", "Liquid4All/liquid-finetune#37"),
    ),
    Rule(
        "mask-all-one",
        "error",
        "everything is trained, prompts too",
        "The model learns to write user messages and headers. The loss falls faster, because templates are easy.",
        "Labels are a copy of input_ids, or a mask was dropped on the way, for example by packing.",
        "Train what the model itself would emit; keep mask and ids in one record through packing.",
        ("huggingface/trl#3728", "karpathy/nanochat#582"),
    ),
    Rule(
        "mask-shifted",
        "error",
        "the mask is off by one token",
        "Either the first token of each answer is never learned, or the end-of-turn is not. Both change nothing that a "
        "loss curve shows.",
        "Targets were shifted twice or not at all, or prompt and answer were encoded apart and merge at the seam.",
        "Shift in one place only. Compare ids, not lengths, at the seam between prompt and completion.",
        ("areal-project/AReaL#1427", "huggingface/trl#5213", "pytorch/torchtitan#4504"),
    ),
    Rule(
        "eot-not-trained",
        "error",
        "the end-of-turn is not in the loss",
        "The never-ending response: the model writes well and does not stop, because it was never graded on stopping.",
        "The mask covers the assistant's text without the token that closes the turn.",
        "Put the assistant's end-of-turn into the loss.",
        ("huggingface/trl#1623", "unslothai/unsloth#416", "modelscope/ms-swift#3113"),
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
    ),
    Rule(
        "user-tokens-trained",
        "error",
        "text that the model never writes is in the loss",
        "The model becomes a good simulator of users and a worse assistant. Loss looks fine: it is language like any.",
        "The mask is inverted, comes from lying character offsets, or a span was not closed.",
        "Train assistant spans only, from attribution by message.",
        ("huggingface/transformers#47325", "huggingface/tokenizers#1517"),
    ),
    Rule(
        "tool-results-trained",
        "warning",
        "what tools returned is in the loss",
        "The model learns to make up tool results. Some recipes do this on purpose.",
        "The mask covers everything behind the first assistant turn.",
        "Leave tool messages out of the loss, or silence this rule with the reason.",
    ),
    Rule(
        "header-trained",
        "warning",
        "the assistant's header is in the loss",
        "Serving writes the header; the model never does. The easy tokens lower the loss and teach nothing.",
        "The mask covers the whole turn instead of what follows the generation prompt.",
        "Begin the mask behind the generation prompt.",
        ("NVIDIA-NeMo/Automodel#3739",),
    ),
    Rule(
        "supplied-trained",
        "warning",
        "text that the generation prompt supplies is in the loss",
        "A prefilled <think> is there before the model writes its first token.",
        "The mask begins behind the header, and the prompt supplies more than the header.",
        "Begin the mask behind everything that add_generation_prompt=True adds.",
        ("NVIDIA-NeMo/Automodel#3739",),
    ),
    Rule(
        "empty-think-trained",
        "warning",
        "an empty think block is in the loss",
        "The model learns to skip its reasoning wherever reasoning is on.",
        "The data has no reasoning, and the template writes an empty block that no generation prompt supplies.",
        "Render with enable_thinking=False, where the prompt supplies the empty block; or add reasoning to the data.",
        ("NVIDIA-NeMo/Automodel#3739",),
    ),
    Rule(
        "mask-holes",
        "warning",
        "parts of an assistant's turn are in the loss and parts are not",
        "The model learns to continue text that it was never graded on, or half of a word.",
        "Character offsets that do not fit tokens, or a mask cut and glued.",
        "Derive masks from ids; where parts are left out on purpose, silence this rule with the reason.",
        ("huggingface/tokenizers#1517", "huggingface/transformers#47325"),
    ),
    Rule(
        "last-turn-only",
        "warning",
        "only the last assistant turn of each conversation is trained",
        "Every earlier answer is thrown away. Single-turn evaluations do not show it, long conversations do.",
        "A preset for the last turn, or prompt/completion data made from whole conversations.",
        "Train all assistant turns; where the format drops reasoning from history, one sample for each turn "
        "(build_training_samples).",
    ),
    Rule(
        "padding-trained",
        "error",
        "padding is in the loss",
        "Predicting padding after padding is trivial: the loss looks low, and its gradients drown the others.",
        "Labels were padded with the padding token instead of -100.",
        "Pad labels with -100.",
        ("unslothai/unsloth#416",),
    ),
    Rule(
        "tail-trained",
        "info",
        "tokens behind the assistant's stop are in the loss",
        "Serving stops before them. Harmless as far as known; TRL's training templates do the same.",
        "The mask covers the turn up to the next one.",
        "End the mask with the stop.",
    ),
    Rule(
        "loss-share",
        "warning",
        "the share of trained tokens is unusual",
        "Usually 30 to 80 of 100 tokens are trained. Fewer than 10 or more than 98 mean a wrong mask more often than "
        "unusual data.",
        "A mask that lost turns, or one that covers prompts.",
        "Look at a row: niels-gpt show, niels-gpt render.",
    ),
)

LEAST_SHARE: Final = 0.10
MOST_SHARE: Final = 0.98
MOST_ROWS: Final = 0.90  # of the rows with several turns: more than that are no accident


def check(view: View) -> None:
    """Judge the mask of these rows."""
    rows, trained, tally = view.rows, view.trained, view.tally
    if rows.trained is None:
        return
    real = ~view.padding
    zero = rows.per_row(trained) == 0
    view.hit_rows("mask-all-zero", zero, "no token of this row is trained")
    view.hit_tokens("padding-trained", trained & view.padding, "padding is trained from here on")
    ones = _all_one(view, zero)
    view.hit_rows("mask-all-one", ones, "every token of this row is trained")
    plain = ~(zero | ones)
    tally.sums["plain real tokens"] += int((real & plain[rows.row_of]).sum())
    tally.sums["plain trained tokens"] += int((trained & real & plain[rows.row_of]).sum())
    layout = view.scope.layout
    if view.turns is None or layout is None:
        return
    graded = _Graded.of(view, view.turns.assistants)
    shifted = graded.shifted_rows(len(rows))
    view.hit_rows("mask-shifted", shifted & plain, lambda row, _: graded.how(row))
    judged = (plain & ~shifted)[rows.row_of]
    _prompts(view, layout, judged)
    _stops(view, layout, graded, plain & ~shifted)
    _inside(view, layout, graded, plain & ~shifted)
    _last_turns(view, graded, plain)


def _all_one(view: View, zero: Bools) -> Bools:
    """Rows whose every token is trained although some are a prompt's; a text's first token is never graded."""
    rows = view.rows
    open_ = rows.per_row(~view.padding & ~view.trained & ~rows.first_of_document) > 0
    if view.turns is None:
        return ~zero & ~open_ & (rows.mask_from not in ("", "labels"))
    foreign = rows.per_row(~view.padding & ~view.said & ~rows.first_of_document) > 0
    spoken = np.bincount(view.turns.row, minlength=len(rows)) > 0
    ones: Bools = ~zero & ~open_ & foreign & spoken
    return ones


@dataclass(frozen=True)
class _Graded:
    """The assistant's turns and how their tokens are graded; all of shape (turns,).

    Attributes:
        last: behind the last token before the stop.
        length, count: tokens before the stop, and how many of them are trained.
        stop: the stop is trained. left, right: the mask looks moved by one to the left or right.
        touched: anything from the header to behind the stop is trained.
    """

    turns: Turns
    last: np.ndarray[tuple[int], np.dtype[np.int64]]
    length: np.ndarray[tuple[int], np.dtype[np.int64]]
    count: np.ndarray[tuple[int], np.dtype[np.int64]]
    stop: Bools
    left: Bools
    right: Bools
    touched: Bools

    @classmethod
    def of(cls, view: View, turns: Turns) -> _Graded:
        """Measure the turns.

        ::

            header  h | body a b | stop E | tail n       right mask  . | # # | # | .
            left    # | # # | . | .                      right       . | . # | # | #
        """
        trained = view.trained
        ends = np.where(turns.stop >= 0, turns.stop, _trimmed(view, turns))
        last = np.maximum(ends, turns.body)
        count, length = counts_in(trained, turns.body, last), last - turns.body
        padded = np.concatenate((trained, [False]))
        stopped = turns.stop >= 0
        stop = stopped & padded[turns.stop]
        whole = stopped & (length > 0)
        before = (turns.body > turns.start) & padded[turns.body - 1]
        further = (turns.body - 1 > turns.start) & padded[turns.body - 2]
        left = whole & before & ~further & (count == length) & ~stop
        right = whole & ~padded[turns.body] & (count == length - 1) & stop & ~before
        touched = counts_in(trained, turns.start, np.minimum(turns.end, last + 2)) > 0
        return cls(turns, last, length, count, stop, left, right, touched)

    def shifted_rows(self, n: int) -> Bools:
        """Rows in which all trained turns are moved the same way."""
        of_row = np.bincount(self.turns.row[self.touched], minlength=n)
        lefts = np.bincount(self.turns.row[self.left], minlength=n)
        rights = np.bincount(self.turns.row[self.right], minlength=n)
        shifted: Bools = (of_row > 0) & ((lefts == of_row) | (rights == of_row))
        return shifted

    def how(self, row: int) -> str:
        """In words, which way the mask of a row is moved."""
        if self.left[self.turns.row == row].any():
            return "the mask begins one token too early, in the header, and leaves out the end-of-turn"
        return "the mask leaves out the first token of each answer"


def _trimmed(view: View, turns: Turns) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The end of each turn without padding behind it."""
    padded = counts_in(view.padding, turns.body, turns.end)
    return turns.end - padded


def _prompts(view: View, layout: Layout, judged: Bools) -> None:
    """What the model never writes."""
    rows, turns = view.rows, view.turns
    assert turns is not None
    wrong = view.trained & judged & ~view.padding & ~rows.first_of_document
    foreign = wrong & (view.role_of != ASSISTANT)
    if not layout.closes:  # the opener behind the assistant's turn ends it
        ends = turns.assistants.stop
        foreign[ends[ends >= 0]] = False
    view.hit_tokens("tool-results-trained", foreign & (view.role_of == TOOL), "a tool's result is trained from here on")
    view.hit_tokens("user-tokens-trained", foreign & (view.role_of != TOOL), "prompt text is trained from here on")
    own = turns.assistants
    header = wrong & covered(own.start, own.body, len(rows.ids))
    tags = np.isin(rows.ids, layout.think or ())
    view.hit_tokens("header-trained", header & ~tags, "the assistant's header is trained from here on")
    view.hit_tokens("supplied-trained", header & tags, "the generation prompt supplies this token")
    tail = wrong & covered(np.where(own.stop >= 0, own.stop + 1, own.end), own.end, len(rows.ids))
    view.hit_tokens("tail-trained", tail, "trained, and behind the stop")


def _stops(view: View, layout: Layout, graded: _Graded, rows: Bools) -> None:
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


def _inside(view: View, layout: Layout, graded: _Graded, rows: Bools) -> None:
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


def _last_turns(view: View, graded: _Graded, rows: Bools) -> None:
    """Rows with several turns of which only the last is trained; `finish` decides whether that is the rule."""
    turns, n = graded.turns, len(rows)
    many = (np.bincount(turns.row, minlength=n) > 1) & rows
    spoke = graded.count > 0
    is_last = np.append(turns.row[1:] != turns.row[:-1], True)
    last = np.bincount(turns.row[spoke & is_last], minlength=n) > 0
    others = np.bincount(turns.row[spoke & ~is_last], minlength=n) > 0
    view.tally.sums["rows of several turns"] += int(many.sum())
    view.hit_rows("last-turn-only", many & last & ~others, "several assistant turns, of which only the last is trained")


def finish(tally: Tally) -> None:
    """Decide what only the whole input shows."""
    hits = tally.hits.get("last-turn-only")
    if hits is not None and hits.rows < MOST_ROWS * tally.sums["rows of several turns"]:
        tally.drop("last-turn-only")
    if "eot-masked-as-padding" in tally.hits:
        tally.move("eot-not-trained", "eot-masked-as-padding")


def share(tally: Tally) -> float | None:
    """Trained of all tokens, rows apart that train nothing or everything; `None` where there are none."""
    tokens = tally.sums["plain real tokens"]
    return tally.sums["plain trained tokens"] / tokens if tokens else None
