"""Rules on the mask of whole rows; `answers` judges it inside them."""

from __future__ import annotations

from typing import Final

import numpy as np

from niels_gpt.doctor.graded import Graded
from niels_gpt.doctor.report import Evidence
from niels_gpt.doctor.rows import Bools
from niels_gpt.doctor.rules import answers, untrained
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
        needs=("mask",),
    ),
    Rule(
        "mask-missing",
        "warning",
        "conversations have no mask",
        "Trainers that are given ids alone train every token: the model learns to write user messages and headers.",
        "The rows were tokenised without labels, or the column was dropped.",
        "Store labels (or assistant_masks) beside the ids; niels-gpt episodes build does.",
        ("huggingface/trl#3728",),
        ("tokens",),
        needs=("turns",),
    ),
    Rule(
        "mask-all-one",
        "error",
        "everything is trained, prompts too",
        "The model learns to write user messages and headers. The loss falls faster, because templates are easy.",
        "Labels are a copy of input_ids, or a mask was dropped on the way, for example by packing.",
        "Train what the model itself would emit; keep mask and ids in one record through packing.",
        ("huggingface/trl#3728", "karpathy/nanochat#582"),
        needs=("mask", "prompts"),
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
        needs=("mask", "turns"),
    ),
    Rule(
        "padding-trained",
        "error",
        "padding is in the loss",
        "Predicting padding after padding is trivial: the loss looks low, and its gradients drown the others.",
        "Labels were padded with the padding token instead of -100.",
        "Pad labels with -100.",
        ("unslothai/unsloth#416",),
        needs=("mask", "padding"),
    ),
    Rule(
        "loss-share",
        "warning",
        "the share of trained tokens is unusual",
        "Usually 30 to 80 of 100 tokens are trained. Fewer than 10 or more than 98 mean a wrong mask more often than "
        "unusual data.",
        "A mask that lost turns, or one that covers prompts.",
        "Look at a row: niels-gpt show, niels-gpt render.",
        needs=("mask",),
    ),
)

LEAST_SHARE: Final = 0.10
MOST_SHARE: Final = 0.98


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
    graded = Graded.of(view, view.turns.assistants)
    shifted = graded.shifted_rows(len(rows))
    shifted[rows.row_of[np.concatenate(view.odd_headers)]] = False  # there a mask begins elsewhere for that reason
    view.hit_rows("mask-shifted", shifted & plain, lambda row, _: graded.how(row))
    answers.check(view, layout, graded, plain & ~shifted)
    untrained.check(view, layout, graded, plain)


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


def finish(tally: Tally, *, sampled: bool) -> None:
    """Decide what only the whole input shows."""
    if tally.sums["turns found"] and not tally.sums["rows with a mask"]:
        note = "no labels, assistant_masks, completion_mask or loss_mask"
        tally.add("mask-missing", [Evidence(row=-1, where="", note=note)], count=1, rows=tally.sums["rows"])
    untrained.finish(tally, sampled=sampled)
    answers.finish(tally)


def share(tally: Tally) -> float | None:
    """Trained of all tokens, rows apart that train nothing or everything; `None` where there are none."""
    tokens = tally.sums["plain real tokens"]
    return tally.sums["plain trained tokens"] / tokens if tokens else None
