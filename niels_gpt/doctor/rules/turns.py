"""Rules on turns in token ids: how they begin, their order and contents; their ends: `turn_ends.py`."""

from __future__ import annotations

import numpy as np

from niels_gpt.doctor.counters import Counters
from niels_gpt.doctor.layouts.layout import Layout
from niels_gpt.doctor.layouts.turns import occurrences
from niels_gpt.doctor.rows import ASSISTANT, ROLES, SYSTEM, Bools, Int64s, Turns, counts_in, covered
from niels_gpt.doctor.rules import turn_ends
from niels_gpt.doctor.rules.rule import Rule
from niels_gpt.doctor.view import View

USER = ROLES.index("user")
_ARTICLES = dict.fromkeys(ROLES, "a") | {"assistant": "an"}


class _DoubleBos(Rule):
    """A beginning of text, or the whole preamble, twice in a row where a text begins."""

    def check_rows(self, view: View) -> None:
        layout, rows = view.scope.layout, view.rows
        if layout is None:
            return
        places = _beginnings(view)
        # The template's whole preamble, its first token (often a bos), and the tokenizer's bos.
        runs = {layout.preamble, layout.preamble[:1], () if layout.bos is None else (layout.bos,)} - {()}
        twice = np.unique(np.concatenate([np.zeros(0, np.int64), *(occurrences(rows.ids, run + run) for run in runs)]))
        found = np.intersect1d(places, twice)
        # The second one must be in the same row.
        found = found[found + 1 < rows.starts[rows.row_of[found] + 1]]
        view.hit(self.id, rows.row_of[found], found, "the text begins twice")


class _BosMissing(Rule):
    """Texts that begin with a turn, where every text of the format begins with other control tokens."""

    def check_rows(self, view: View) -> None:
        layout, turns = view.scope.layout, view.turns
        if layout is None or turns is None or view.rendered_turns is not None or not layout.preamble:
            return
        if layout.first_ids != {layout.preamble[0]}:  # some texts of the format begin without them
            return
        places, ids = _beginnings(view), view.rows.ids
        without = np.isin(places, turns.start) | np.isin(ids[places], layout.preamble[1:])
        # Where a column places the text one token too late, its beginning is before it.
        late = ~np.isin(places, view.rows.starts) & np.isin(ids[places - 1], layout.preamble)
        places = places[without & ~late & (ids[places] != layout.preamble[0])]
        note = f"the text begins here; the format begins texts with {view.scope.decode_id(layout.preamble[0])!r}"
        view.hit(self.id, view.rows.row_of[places], places, note)


def _beginnings(view: View) -> Int64s:
    """Where texts begin: with rows and documents, and after padding on the left."""
    rows = view.rows
    padded = view.padding
    first = rows.first_of_document & ~padded
    # The first real token after padding.
    left = np.flatnonzero(padded[:-1] & ~padded[1:]) + 1
    # Only where the row begins with padding: padding between texts is not a beginning of its own.
    found: Int64s = np.union1d(np.flatnonzero(first), left[padded[rows.starts[rows.row_of[left]]]])
    return found


class _TurnOrder(Rule):
    """A user turn after a user turn, an assistant turn after one, or a system turn after a user turn.

    Ids alone show this order, so it is a warning. A system turn after an assistant turn may begin another text, which
    `attention-crosses` reports.
    """

    def check_rows(self, view: View) -> None:
        turns, rows = view.turns, view.rows
        if turns is None or len(turns) < 2:
            return
        before, after = turns.role[:-1], turns.role[1:]
        # Neighbours in one row and one text.
        same = (turns.row[1:] == turns.row[:-1]) & ~rows.first_of_document[turns.start[1:]]
        answers = (before == ASSISTANT) & (after == ASSISTANT)
        layout = view.scope.layout
        if layout is not None and layout.repeats_opener:
            # Neighbouring assistant turns are parts of one answer (gpt-oss), which ends where serving stops.
            stop = turns.stop[:-1]
            answers &= (stop >= 0) & np.isin(rows.ids[stop], list(layout.serving_stops))
        wrong = same & (answers | ((before == USER) & ((after == USER) | (after == SYSTEM))))
        # A table by place, since only the few findings that become evidence need a note.
        pairs = dict(zip(turns.start[1:][wrong].tolist(), zip(before[wrong], after[wrong], strict=True), strict=True))
        ends = turns.end - counts_in(view.padding, turns.body, turns.end)
        empty = {*turns.start[ends <= turns.body].tolist()}

        def note(_: int, place: int) -> str:
            first, second = (ROLES[role] for role in pairs[place])
            if first == second == "assistant" and place in empty:
                return "a header without an answer follows the last answer: a generation prompt"
            return f"{_ARTICLES[second]} {second} turn directly after {_ARTICLES[first]} {first} turn"

        view.hit(self.id, turns.row[1:][wrong], turns.start[1:][wrong], note)


class _HeaderDrift(Rule):
    """Headers that the format does not write."""

    def check_rows(self, view: View) -> None:
        short, unknown, long, spaced = view.wrong_headers
        turns = view.turns
        notes = dict.fromkeys(short.tolist(), "the white space after this header is missing")
        notes |= dict.fromkeys(unknown.tolist(), "the header that begins here is not one of this format")
        notes |= dict.fromkeys(long.tolist(), _MORE_SPACE)
        places = np.array(sorted(notes), dtype=np.int64)
        view.hit(self.id, view.rows.row_of[places], places, lambda _, at: notes[at])
        view.counters.sums["answers"] += 0 if turns is None else len(turns.assistants)
        view.hit(_SPACE_FIRST, view.rows.row_of[spaced], spaced, lambda _, __: _MORE_SPACE)
        view.counters.sums[WRONG_HEADERS] += len(np.unique(view.rows.row_of[np.append(places, spaced)]))


# Candidates, counted as hits of this name until `finish` decides. One answer may begin with an empty line. Where many
# do, the model learns to begin so; where nearly all do, the header has another line.
_SPACE_FIRST = "header-drift: white space before answers"
WRONG_HEADERS = "rows with headers that the format does not write"
FEWEST_SPACED, SPACED_SHARE, ALL_SPACED_SHARE = 3, 0.03, 0.9
_MORE_SPACE = "more white space than the format writes follows this header"


RULES = (
    Rule(
        "eot-missing",
        "error",
        "assistant turns have no end-of-turn",
        "The model never stops: it cannot write a token that it has never seen.",
        "The template writes no end-of-turn, or rows were joined from plain texts.",
        "Render with the model's own template, or append its end-of-turn to every assistant turn.",
        ("huggingface/trl#1623", "hiyouga/LlamaFactory#2352"),
        needs=("turns",),
    ),
    Rule(
        "wrong-end-of-turn",
        "error",
        "assistant turns end in another token than the format's end-of-turn",
        "The model learns to stop with a token at which serving does not stop, so generation goes on.",
        "eos_token was appended instead of the format's own end-of-turn.",
        "End turns with the token that the chat template writes.",
        ("hiyouga/LlamaFactory#3426",),
        needs=("turns",),
    ),
    Rule(
        "truncated-mid-turn",
        "error",
        "rows end inside an assistant turn that is trained",
        "The model learns that some answers break off without an end.",
        "Rows were cut to a maximum length.",
        "Drop the turn that was cut, or leave it out of the loss (--too-long drop_partial_turn).",
        ("allenai/open-instruct#1876", "hiyouga/LlamaFactory#3143"),
        needs=("turns",),
    ),
    Rule(
        "begins-mid-turn",
        "error",
        "rows begin inside a turn",
        "The first half of the turn is in another row, or lost. The model learns to continue answers whose question it "
        "does not see.",
        "Conversations were joined into one stream and cut every so many tokens, or rows were cut on the left.",
        "Pack whole conversations (niels_gpt's packing does), and cut on the right, between turns.",
        ("huggingface/trl#4554", "huggingface/trl#5075", "unslothai/unsloth#7234"),
        ("tokens",),
        needs=("turns",),
    ),
    _DoubleBos(
        "double-bos",
        "error",
        "rows begin with two beginning-of-text tokens",
        "The model is trained on two of them and sees one when it is served.",
        "The template writes bos, and the text was encoded again with add_special_tokens=True.",
        "Encode rendered text with add_special_tokens=False.",
        ("huggingface/trl#1114", "huggingface/open-r1#462", "MakazhanAlpamys/Soup#781"),
        needs=("beginnings",),
    ),
    _BosMissing(
        "bos-missing",
        "warning",
        "texts begin without the format's beginning-of-text token",
        "Serving writes it before the first turn, so the model answers after a token that it was never trained with.",
        "bos was stripped from the rendered text, which was then encoded with add_special_tokens=False.",
        "Write bos once: render with tokenize=True, or keep it in the text and encode with add_special_tokens=False.",
        applies=("tokens",),
        needs=("turns",),
    ),
    Rule(
        "special-tokens-in-content",
        "warning",
        "contents contain the text of control tokens",
        "Encoded as control tokens they forge turns, images or ends of text. Encoded as text they are harmless.",
        "Scraped or user-written text that quotes a template.",
        "Encode contents without control tokens (niels_gpt's renderers do), or clean the text.",
        ("huggingface/transformers#29279", "antirez/ds4#197"),
        needs=("controls",),
    ),
    _TurnOrder(
        "turn-order",
        "warning",
        "turns come in an order that chat formats do not have",
        "A message that was encoded with control tokens can forge turns. After encoding only their order shows it.",
        "A forged turn, a conversation that was merged or cut, a generation prompt after the last answer, or a format "
        "with instructions between turns.",
        "Look at the row. Encode contents without control tokens (niels_gpt's renderers do), and training data without "
        "add_generation_prompt.",
        ("huggingface/transformers#29279", "antirez/ds4#197"),
        ("tokens",),
        needs=("turns",),
    ),
    _HeaderDrift(
        "header-drift",
        "error",
        "turns begin with other headers than the format writes",
        "The model is trained on headers that serving never writes: another token, a missing one, or one too many, "
        "between role and text; or it learns to begin its answers with an empty line.",
        "Another version of the template, an edited template, or rows that were joined from texts. Where only some "
        "answers begin with more white space (a warning), it may be their own.",
        "Render with the template that will serve (`niels-gpt doctor TRAINED SERVED` compares two), and strip the "
        "answers.",
        ("ollama/ollama#6823", "InternLM/lmdeploy#1945"),
        ("tokens",),
        needs=("turns",),
    ),
    Rule(
        "format-not-understood",
        "info",
        "turns of this format could not be found reliably",
        "Rules that need to know where turns begin and end were not judged, so such faults may be in the data.",
        "The template writes turns in a way that renderings of the built-in probes do not show.",
        "Pass --renderer with the name of the family, if there is one.",
    ),
)


def check(view: View) -> None:
    """Judge where turns begin and end, and their contents."""
    layout = view.scope.layout
    if layout is None or view.turns is None:
        return
    _check_cut_turns(view, view.turns)
    turn_ends.check(view, layout, view.turns)
    _check_contents(view, layout, view.turns)


def _check_cut_turns(view: View, turns: Turns) -> None:
    """Rows that begin with the rest of a turn."""
    first, last = view.cut_turns
    view.counters.sums["turns found"] += len(turns)
    trained = dict(zip(first.tolist(), (counts_in(view.trained, first, last) > 0).tolist(), strict=True))

    def note(_: int, place: int) -> str:
        return f"the row begins inside {'an answer that is trained' if trained[place] else 'a turn'}, with this token"

    view.hit("begins-mid-turn", view.rows.row_of[first], first, note)


def _check_contents(view: View, layout: Layout, turns: Turns) -> None:
    """Control tokens inside messages that the format itself never writes."""
    ids, n = view.rows.ids, len(view.rows.ids)
    foreign = layout.controls - layout.template_ids - layout.serving_stops - {layout.pad, layout.bos}
    text_end = np.maximum(turns.end - counts_in(view.padding, turns.body, turns.end), turns.body)
    # Without a stop the last token may be a wrong end of turn, which `turn_ends` reports.
    open_ends = np.where(turns.role == ASSISTANT, turn_ends.last_text(view, layout, turns, text_end), turns.end)
    ends = np.where((turns.role == ASSISTANT) & (turns.stop >= 0), turns.stop, open_ends)
    body: Bools = covered(turns.body, ends, n)
    wrong = np.isin(ids, list(foreign)) & body & ~view.padding
    # Ends of text are in order after a message, where tools put them between texts. Inside of one more text follows.
    ends_of_text = list(layout.serving_stops - layout.template_ids)
    follows = np.append(body[1:] & ~view.padding[1:] & ~np.isin(ids[1:], list(layout.controls)), False)
    others = covered(turns.body, np.where(turns.role == ASSISTANT, turns.body, ends), n)
    view.hit_tokens(
        "special-tokens-in-content",
        wrong | (np.isin(ids, ends_of_text) & others & follows & ~view.padding),
        lambda _, place: f"the control token {view.scope.decode_id(int(ids[place]))!r} inside a message",
    )


def finish(counters: Counters) -> None:
    """Adjust the findings that depend on the whole input; called after the last row."""
    spaced, answers = counters.hits.get(_SPACE_FIRST), counters.sums["answers"]
    if spaced is not None and spaced.count < max(FEWEST_SPACED, SPACED_SHARE * answers):
        counters.drop(_SPACE_FIRST)
    elif spaced is not None:
        # Alone, and before some of the answers only, the white space may be that of the answers themselves.
        if "header-drift" not in counters.hits and spaced.count < ALL_SPACED_SHARE * answers:
            counters.milder["header-drift"] = "warning"
        counters.move(_SPACE_FIRST, "header-drift", rows=counters.sums[WRONG_HEADERS])
    turn_ends.finish(counters)
    # Without any turn the rows are plain text, of which no turn can be cut.
    if not counters.sums["turns found"]:
        if counters.sums["trained tokens"]:
            counters.move("begins-mid-turn", "user-tokens-trained")
        else:
            counters.drop("begins-mid-turn")
