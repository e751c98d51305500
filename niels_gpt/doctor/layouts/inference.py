"""The layout of a renderer's format, inferred from its renderings of the probes.

The renderer attributes every token of a probe to its message and marks what the model samples::

    probe      <|im_start|> user newline In      <|im_start|> assistant newline In the north <|im_end|>
    message    1            1    1       1       2            2         2       2  2   2     2
    sampled    .            .    .       .       .            .         .       #  #   #     #

From that follow, in this order:

1. stops: the tokens of the kind STOP (`<|im_end|>`);
2. headers: what each message has before its content (`<|im_start|> assistant newline`);
3. openers: what the headers of a role have in common, without white space and think tags (`<|im_start|> assistant`);
   what follows in the headers of assistants is what a generation prompt may write;
4. facts of the turns that the layout so far finds in the ids of the probes: parts of answers, white space after
   openers.

Then the layout is tried. Only if it finds every turn of the probes, from their ids alone, where the renderer wrote
it, is it trusted, and rules that need turns are judged by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from niels_gpt.doctor.layouts.headers import facts_of_headers
from niels_gpt.doctor.layouts.layout import Ids, Layout
from niels_gpt.doctor.layouts.probes import AnyRenderer, assistant, render_probes, user
from niels_gpt.doctor.layouts.turns import rows_of, turns_of
from niels_gpt.doctor.rows import ASSISTANT, ROLES, covered
from niels_gpt.errors import MessageError
from niels_gpt.inputs.rows import Bools
from niels_gpt.messages import normalise
from niels_gpt.renderers.kinds import SAMPLED, Kind
from niels_gpt.renderers.types import RenderedTokens
from niels_gpt.tokenizer.pieces import PieceEncoder

NO_TEMPLATE: Final = "the tokenizer has no chat template, and no renderer was named"
_Header = tuple[int, Ids]  # the role of a message, and what a probe has before its content
_TAGS: Final = ("", "<think>", "</think>")
# What gpt-oss writes and no probe needs to show: a control token inside calls, and its own tools, whose results
# templates do not write, but openai-harmony does: `<|start|>python to=assistant<|channel|>commentary<|message|>`.
_SAMPLED_CONTROLS: Final = ("<|constrain|>",)
_OWN_TOOLS: Final = ("python", "browser")


def infer_layout(renderer: AnyRenderer) -> Layout:
    """The layout of a renderer's format.

    A layout that does not find the turns of the probes is not `trusted`; then rules that need turns are not judged.
    """
    probes = render_probes(renderer)
    shown = [rendered for rendered in probes.values() if isinstance(rendered, RenderedTokens)]
    layout = _layout_of_attributions(renderer, shown)
    layout = _with_facts_of_turns(layout, renderer.encoder, shown)
    reason = _untrusted_because(layout, shown)
    if reason:  # try the other reading: only the last part of an answer has the stop
        joined = replace(layout, joins_parts=True)
        if not _untrusted_because(joined, shown):
            layout, reason = joined, ""
    if not shown:
        refusal = next((str(error) for error in probes.values() if isinstance(error, MessageError)), "")
        reason = f"the template refuses every probe: {refusal}"
    return replace(layout, trusted=not reason, untrusted_because=reason)


def layout_without_template(encoder: PieceEncoder) -> Layout:
    """The layout for a tokenizer without a chat template: its vocabulary and its control tokens, no turns."""
    bos, pad = (encoder.added_ids.get(encoder.special_tokens.get(name, "")) for name in ("bos_token", "pad_token"))
    think, end_of_think = (encoder.added_ids.get(tag) for tag in ("<think>", "</think>"))
    spelt = encoder.token_bytes(range(encoder.vocab_size))
    return Layout(
        vocab_size=encoder.vocab_size,
        controls=frozenset(encoder.control_ids.values()),
        bos=bos,
        pad=pad,
        serving_stops=frozenset(encoder.stop_ids),
        think=None if think is None or end_of_think is None else (think, end_of_think),
        white_bytes=np.array([0 if token.strip() else len(token) for token in spelt], dtype=np.int64),
        trusted=False,
        untrusted_because=NO_TEMPLATE,
    )


# ---- what the attributions of the probes show


def _layout_of_attributions(renderer: AnyRenderer, shown: Sequence[RenderedTokens]) -> Layout:
    encoder = renderer.encoder
    preamble = _preamble(shown, encoder)
    stops, has_own_stop = _stops(renderer, shown)
    # Without an end of turn the stops are openers, which must not be cut off a header.
    cut_at = stops if has_own_stop else ()
    headers = [header for rendered in shown for header in _headers(rendered, encoder, len(preamble), cut_at)]
    openers = _openers(headers, encoder)
    supplied = {
        which: tuple(sorted({ids[len(opener) :] for of, ids in headers if of == role and ids[: len(opener)] == opener}))
        for which, (role, opener) in enumerate(openers)
        if role == ASSISTANT
    }
    first_ids = frozenset(rendered.token_ids[0] for rendered in shown)
    if not first_ids <= {*encoder.control_ids.values(), *encoder.added_ids.values()}:
        first_ids = frozenset()  # a rendering that begins with ordinary text can begin anywhere
    written = {token for rendered in shown for token in rendered.token_ids}
    written |= {encoder.added_ids[text] for text in _SAMPLED_CONTROLS if text in encoder.added_ids}
    return replace(
        layout_without_template(encoder),
        openers=openers,
        supplied=supplied,
        stops=stops,
        has_own_stop=has_own_stop,
        preamble=preamble,
        template_ids=frozenset(written),
        first_ids=first_ids,
        serving_stops=frozenset((*encoder.stop_ids, *renderer.get_stop_token_ids())),
        headerless=bool(supplied) and has_own_stop and _is_headerless(renderer, stops),
    )


def _stops(renderer: AnyRenderer, shown: Sequence[RenderedTokens]) -> tuple[Ids, bool]:
    """The ids that end assistant turns, and whether all of these turns have a stop of their own."""
    found, all_end = set[int](), True
    for rendered in shown:
        facts = list(zip(rendered.token_ids, rendered.message_indices, rendered.kinds, strict=True))
        for index, role in enumerate(rendered.message_roles):
            own = [(token, kind) for token, owner, kind in facts if owner == index and kind & SAMPLED]
            if role == "assistant" and own:
                stops = {token for token, kind in own if kind == Kind.STOP}
                found |= stops
                all_end = all_end and bool(stops)
    if found and all_end:
        return tuple(sorted(found)), True
    return tuple(renderer.get_stop_token_ids()), False


def _preamble(shown: Sequence[RenderedTokens], encoder: PieceEncoder) -> Ids:
    """The control tokens that all probes begin with and that occur nowhere else in them."""
    if encoder.engine == "sentencepiece":  # the sentinel format has none: its system sentinel opens a turn
        return ()
    controls = set(encoder.control_ids.values())
    runs: list[Ids] = []
    for rendered in shown:
        ids = rendered.token_ids
        # A control token that occurs again opens turns, so it is not part of a preamble.
        is_part = (token in controls and ids.count(token) == 1 for token in ids)
        n = next((at for at, part in enumerate(is_part) if not part), len(ids))
        runs.append(tuple(ids[:n]))
    return _common(runs)


def _headers(rendered: RenderedTokens, encoder: PieceEncoder, after: int, stops: Ids) -> Iterator[_Header]:
    """The header of each message, and its role: from its first token to its first content token.

    Args:
        after: tokens of the preamble, which belong to no header.
        stops: ids that end turns, where assistant turns have a stop of their own.
    """
    ids, owners = rendered.token_ids, rendered.message_indices
    # Tags and control tokens; added tokens of white space only are not part of a header.
    marks = {token for text, token in encoder.added_ids.items() if text.strip()}
    for index, role in enumerate(rendered.message_roles):
        positions = [at for at, owner in enumerate(owners) if owner == index]
        # Content of an answer that is not sampled is written by the generation prompt, so it belongs to the header.
        is_body = rendered.sampled_mask if role == "assistant" else rendered.is_content
        body = [at for at in positions if rendered.is_content[at] and is_body[at]]
        if not body or role not in ROLES:
            continue
        first, stop = max(positions[0], after), body[0]
        if first >= stop:  # no header of its own: the tag that ends the turn before it serves as its header
            first = next((at for at in range(stop - 1, after - 1, -1) if ids[at] in marks), stop)
        if role != "assistant":  # a turn that the template inserts before the message is not part of its header
            first = next((at + 1 for at in range(stop - 1, first - 1, -1) if ids[at] in stops), first)
        # White space before the header belongs to the turn before.
        while first < stop and not encoder.decode(ids[first : first + 1]).strip():
            first += 1
        if first < stop:
            yield ROLES.index(role), tuple(ids[first:stop])


def _openers(headers: Iterable[_Header], encoder: PieceEncoder) -> tuple[tuple[int, Ids], ...]:
    """The opener of each role: what its headers have in common, without trailing white space and think tags.

    Headers of one role that begin with different ids give one opener each.
    """
    groups: dict[tuple[int, int], list[Ids]] = {}
    for role, ids in headers:
        groups.setdefault((role, ids[0]), []).append(ids)
    controls = set(encoder.control_ids.values())
    found: dict[Ids, int] = {}
    # The assistant first, so that an opener shared with another role is the assistant's.
    for (role, _), runs in sorted(groups.items(), key=lambda group: group[0][0] != ASSISTANT):
        opener = _common(runs)
        last = max((at + 1 for at, token in enumerate(opener) if token in controls), default=0)
        if last > 1:  # `<|start|>system<|message|>`, then text that all probes share, for example a date
            opener = opener[:last]
        # A prompt may or may not write them, and white space may share a token with the text after it.
        while len(opener) > 1 and encoder.decode(opener[-1:]).strip() in _TAGS:
            opener = opener[:-1]
        # A system message that is written into the user's turn has the user's header.
        if opener not in found or (role == ROLES.index("user") and found[opener] != ASSISTANT):
            found[opener] = role
    return tuple(sorted((role, opener) for opener, role in found.items()))


def _common(runs: Sequence[Ids]) -> Ids:
    """The longest run that all runs begin with: (1, 2) of (1, 2, 3) and (1, 2, 4)."""
    shared = runs[0] if runs else ()
    for run in runs:
        n = next((at for at, (a, b) in enumerate(zip(shared, run, strict=False)) if a != b), min(len(shared), len(run)))
        shared = shared[:n]
    return shared


def _is_headerless(renderer: AnyRenderer, stops: Ids) -> bool:
    """Whether an assistant turn at the beginning has no header, while the header of users is not a stop."""
    chat: list[Any] = [assistant("In the north."), user("Rain?"), assistant("Yes.")]
    try:
        rendered = renderer.render(normalise(chat))
    except MessageError:
        return False
    positions = [at for at, owner in enumerate(rendered.message_indices) if owner == 0]
    ends = [at for at in positions if rendered.token_ids[at] in stops]
    first = positions[0] if positions else None
    return first is not None and rendered.is_content[first] and rendered.sampled_mask[first] and len(ends) == 1


# ---- what the turns show that the layout so far finds in the ids of the probes


def _with_facts_of_turns(layout: Layout, encoder: PieceEncoder, shown: Sequence[RenderedTokens]) -> Layout:
    """The layout with these facts."""
    rows = rows_of([rendered.token_ids for rendered in shown])
    answers = turns_of(layout, rows).assistants
    # gpt-oss samples the opener between two parts of one answer, in all probes that have several parts.
    between = answers.start[answers.resumed]
    repeats_opener = len(between) > 0 and bool(_sampled(shown)[between].all())
    layout = replace(layout, repeats_opener=repeats_opener)
    headers = facts_of_headers(layout, rows)
    if repeats_opener:
        begins = {opener[0] for role, opener in layout.openers if role == ASSISTANT}
        words = [int(encoder.encode_pieces([name], [False])[0][0]) for name in _OWN_TOOLS]
        headers = replace(headers, pairs=headers.pairs | {(first, word) for first in begins for word in words})
    return replace(layout, headers=headers)


def _untrusted_because(layout: Layout, shown: Sequence[RenderedTokens]) -> str:
    """Why the layout is not trusted: the first token at which its turns differ from the renderer's; empty if none."""
    if not any(role == ASSISTANT for role, _ in layout.openers):
        return "no probe shows a header of an assistant turn"
    rows = rows_of([rendered.token_ids for rendered in shown])
    turns = turns_of(layout, rows).assistants
    end = turns.sampled_end if layout.has_own_stop else turns.end
    found = covered(turns.body, end, len(rows.ids))
    if layout.repeats_opener:
        # Between the parts of one answer the opener is also sampled.
        again = turns.select(turns.resumed)
        found |= covered(again.start, again.body, len(rows.ids))
    wrong = np.flatnonzero(found != _sampled(shown))
    if not wrong.size:
        return ""
    row = int(rows.row_of[wrong[0]])
    return f"turns of probe {row} are not where the template writes them (token {int(wrong[0] - rows.starts[row])})"


def _sampled(shown: Sequence[RenderedTokens]) -> Bools:
    """True on tokens of the concatenated probes that the assistant samples."""
    flags = [
        is_sampled and owner >= 0 and rendered.message_roles[owner] == "assistant"
        for rendered in shown
        for is_sampled, owner in zip(rendered.sampled_mask, rendered.message_indices, strict=True)
    ]
    return np.array(flags, dtype=np.bool_)
