"""Rules on the tokens of turns: how they begin and end."""

from __future__ import annotations

from typing import Final

import numpy as np

from niels_gpt.doctor.layout import Layout, occurrences
from niels_gpt.doctor.rows import ASSISTANT, ROLES, TOOL, Bools, Int64s, Turns, counts_in, covered
from niels_gpt.doctor.rules.rule import Rule
from niels_gpt.doctor.tally import Tally
from niels_gpt.doctor.view import View

RULES: Final = (
    Rule(
        "eot-missing",
        "error",
        "assistant turns have no end-of-turn",
        "The never-ending response: a model that never saw the token cannot write it.",
        "The template writes none, or the rows were glued from texts.",
        "Render with the model's own template, or append its end-of-turn to every assistant turn.",
        ("huggingface/trl#1623", "hiyouga/LlamaFactory#2352"),
        needs=("turns",),
    ),
    Rule(
        "wrong-end-of-turn",
        "error",
        "assistant turns end in another token than the format's",
        "The model learns to stop with a token that serving does not wait for, and goes on behind it.",
        "eos_token was appended in the place of the format's own end-of-turn.",
        "End turns with the token that the chat template writes.",
        ("hiyouga/LlamaFactory#3426",),
        needs=("turns",),
    ),
    Rule(
        "truncated-mid-turn",
        "error",
        "rows break off inside an assistant turn that is trained",
        "The model learns that some answers simply stop, and that the text goes on without an end.",
        "Rows were cut to a length.",
        "Drop the turn that was cut, or leave it out of the loss (--too-long drop_partial_turn).",
        ("allenai/open-instruct#1876", "hiyouga/LlamaFactory#3143"),
        needs=("turns",),
    ),
    Rule(
        "begins-mid-turn",
        "error",
        "rows begin inside a turn",
        "The other half of the turn is in another row, or lost. The model learns to go on with answers without their "
        "question.",
        "Conversations were glued to one stream that was cut every so many tokens, or rows were cut on the left.",
        "Pack whole conversations (niels_gpt's packing plans do), and cut on the right, between turns.",
        ("huggingface/trl#4554", "huggingface/trl#5075", "unslothai/unsloth#7234"),
        ("tokens",),
        needs=("turns",),
    ),
    Rule(
        "double-bos",
        "error",
        "rows begin twice",
        "The model trains on two beginnings and sees one when it is served.",
        "The template writes bos, and the text was encoded again with add_special_tokens=True.",
        "Encode rendered text with add_special_tokens=False.",
        ("huggingface/trl#1114", "huggingface/open-r1#462", "MakazhanAlpamys/Soup#781"),
        needs=("beginnings",),
    ),
    Rule(
        "special-tokens-in-content",
        "warning",
        "content spells control tokens",
        "Encoded as control tokens they forge turns, images or ends; as text they are harmless.",
        "Scraped or user-written text that quotes a template.",
        "Encode bodies with control tokens off (niels_gpt's renderers do), or clean the text.",
        ("huggingface/transformers#29279", "antirez/ds4#197"),
        applies=("chats", "tokens", "documents"),
        needs=("controls",),
    ),
    Rule(
        "turn-order",
        "warning",
        "turns come in an order that formats are not made for",
        "A message that was encoded with control tokens on can forge turns. Once encoded nothing but their order shows "
        "it.",
        "A forged turn, a conversation that was merged or cut, or a format with instructions in between.",
        "Look at the row. Encode bodies with control tokens off (niels_gpt's renderers do).",
        ("huggingface/transformers#29279", "antirez/ds4#197"),
        ("tokens",),
        needs=("turns",),
    ),
    Rule(
        "header-drift",
        "error",
        "turns begin otherwise than the format writes them",
        "The model is trained on headers that serving never writes: another token, or none, between role and text.",
        "Another version of the template, a template that was edited, or rows that were glued from texts.",
        "Render with the template that will serve (niels-gpt doctor TRAINED SERVED compares two).",
        ("ollama/ollama#6823", "InternLM/lmdeploy#1945"),
        ("tokens",),
        needs=("turns",),
    ),
    Rule(
        "format-not-understood",
        "info",
        "turns could not be found for certain in this format",
        "Rules that need to know where turns begin and end were not judged. Nothing is said about them.",
        "The template writes turns in a way that its own probe renderings do not show.",
        "Pass --renderer with the family's name, if there is one.",
    ),
)


def check(view: View) -> None:
    """Judge the beginnings and ends of turns."""
    layout = view.scope.layout
    if layout is None:
        return
    _beginnings(view, layout)
    if view.turns is None:
        return
    _heads(view)
    _ends(view, layout, view.turns)
    _bodies(view, layout, view.turns)
    if view.given is None:
        _order(view, view.turns)
        _headers(view)


def _beginnings(view: View, layout: Layout) -> None:
    rows = view.rows
    padded = covered(rows.starts[:-1], rows.starts[1:], len(rows.ids)) & view.padding
    first = rows.first_of_document & ~padded
    left = np.flatnonzero(padded[:-1] & ~padded[1:]) + 1  # behind padding on the left
    places = np.union1d(np.flatnonzero(first), left[padded[rows.starts[rows.row_of[left]]]])
    runs = {layout.preamble, layout.preamble[:1], () if layout.bos is None else (layout.bos,)} - {()}
    twice = np.unique(np.concatenate([np.zeros(0, np.int64), *(occurrences(rows.ids, run + run) for run in runs)]))
    found = np.intersect1d(places, twice)
    found = found[found + 1 < rows.starts[rows.row_of[found] + 1]]
    view.hit("double-bos", rows.row_of[found], found, "the text begins twice")


def _heads(view: View) -> None:
    """What stands before a row's first turn and is the rest of another."""
    first, last = view.cut_heads
    assert view.turns is not None
    view.tally.sums["turns found"] += len(view.turns)
    said = dict(zip(first.tolist(), (counts_in(view.trained, first, last) > 0).tolist(), strict=True))

    def note(_: int, place: int) -> str:
        return f"the row begins inside {'an answer that is trained' if said[place] else 'a turn'}, with this token"

    view.hit("begins-mid-turn", view.rows.row_of[first], first, note)


def _ends(view: View, layout: Layout, turns: Turns) -> None:
    """Assistant turns without a stop: inside a row, at its end, or closed by another token."""
    rows, own = view.rows, turns.assistants
    text = own.end - counts_in(view.padding, own.body, own.end)  # behind the last token that is no padding
    spoken = text > own.body
    view.tally.sums["turns closed"] += int((own.stop >= 0).sum())
    if not layout.closes:
        return
    cut = spoken & (own.stop < 0)
    last = _last_text(view, layout, own, text)
    other = cut & np.isin(rows.ids[last], list(layout.controls - set(layout.stops)))
    view.hit("wrong-end-of-turn", own.row[other], last[other], "the turn ends in this token")
    at_end = own.end == rows.starts[own.row + 1]
    inner = cut & ~other & ~at_end
    view.hit("eot-missing", own.row[inner], text[inner] - 1, "the next turn begins behind this token")
    taught = counts_in(view.trained, own.body, own.end) > 0 if rows.trained is not None else spoken
    broken = cut & ~other & at_end & taught
    view.hit("truncated-mid-turn", own.row[broken], text[broken] - 1, "the row ends here, inside the assistant's turn")


def _last_text(view: View, layout: Layout, own: Turns, text: Int64s) -> Int64s:
    """The last token of each turn that is not white space."""
    last = np.maximum(text - 1, 0)
    ids = view.rows.ids
    for _ in range(2):
        known = (ids[last] >= 0) & (ids[last] < layout.vocab_size) & (last > own.body)
        known[known] = layout.blank[ids[last[known]]]
        last = last - known
    return last


def _bodies(view: View, layout: Layout, turns: Turns) -> None:
    """Control tokens in bodies that the format itself never writes."""
    ids, n = view.rows.ids, len(view.rows.ids)
    odd = layout.controls - layout.structural - layout.known - {layout.pad, layout.bos}
    text = np.maximum(turns.end - counts_in(view.padding, turns.body, turns.end), turns.body)
    open_ends = np.where(turns.role == ASSISTANT, _last_text(view, layout, turns, text), turns.end)  # see _ends
    ends = np.where((turns.role == ASSISTANT) & (turns.stop >= 0), turns.stop, open_ends)
    body: Bools = covered(turns.body, ends, n)
    found = np.isin(ids, list(odd)) & body & ~view.padding
    view.hit_tokens(
        "special-tokens-in-content",
        found,
        lambda _, place: f"the control token {view.scope.spell(int(ids[place]))!r} inside a message",
    )


def _headers(view: View) -> None:
    """Headers that the format does not write."""
    short, strange = view.odd_headers
    kinds = dict.fromkeys(short.tolist(), "the white space behind this header is missing")
    kinds |= dict.fromkeys(strange.tolist(), "what begins here is no header of this format")
    places = np.array(sorted(kinds), dtype=np.int64)
    view.hit("header-drift", view.rows.row_of[places], places, lambda _, at: kinds[at])


def _order(view: View, turns: Turns) -> None:
    """A user's turn behind a user's, a system turn behind a user's or a tool's: by ids alone, so it is a warning.

    A system turn behind an assistant's may begin another text, which `attention-crosses` tells.
    """
    if len(turns) < 2:
        return
    rows, before, after = view.rows, turns.role[:-1], turns.role[1:]
    same = (turns.row[1:] == turns.row[:-1]) & ~rows.first_of_document[turns.start[1:]]
    user, system = ROLES.index("user"), ROLES.index("system")
    # Behind a tool's turn only if a user has spoken: a format may declare tools in front of the system message.
    late = (before == user) | ((before == TOOL) & _behind_role(turns, user)[1:])
    odd = same & (((before == user) & (after == user)) | (late & (after == system)))
    pairs = dict(zip(turns.start[1:][odd].tolist(), zip(before[odd], after[odd], strict=True), strict=True))

    def note(_: int, place: int) -> str:
        first, second = (ROLES[role] for role in pairs[place])
        return f"a {second} turn right behind a {first} turn"

    view.hit("turn-order", turns.row[1:][odd], turns.start[1:][odd], note)


def _behind_role(turns: Turns, role: int) -> Bools:
    """Of each turn whether one of this role stands before it in its row."""
    count = np.concatenate(([0], np.cumsum(turns.role == role)))
    found: Bools = count[:-1] > count[np.searchsorted(turns.row, turns.row, side="left")]
    return found


def finish(tally: Tally) -> None:
    """Where no turn of the whole input is closed, rows are not cut: the format has no end."""
    if not tally.sums["turns closed"]:
        tally.move("truncated-mid-turn", "eot-missing")
    if not tally.sums["turns found"]:  # text without turns; nothing of it was cut
        if tally.sums["trained tokens"]:
            tally.move("begins-mid-turn", "user-tokens-trained")
        else:
            tally.drop("begins-mid-turn")
