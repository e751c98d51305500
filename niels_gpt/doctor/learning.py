"""A layout from a renderer: render the probes, see where turns begin, what serving supplies, what ends them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from niels_gpt.doctor.layout import Ids, Layout, rows_of
from niels_gpt.doctor.probes import PROBES
from niels_gpt.doctor.rows import ASSISTANT, ROLES, TOOL, Bools, Int64s, covered
from niels_gpt.errors import MessageError
from niels_gpt.messages import normalise
from niels_gpt.renderers.default import DefaultRenderer
from niels_gpt.renderers.engine import Family
from niels_gpt.renderers.rendered import RenderedTokens
from niels_gpt.tokenizer.protocol import PieceEncoder

AnyRenderer = Family | DefaultRenderer
NO_TEMPLATE = "the tokenizer has no chat template, and no renderer was named"
_TAGS = ("", "<think>", "</think>")
_SAID = ("<|constrain|>",)  # control tokens that models write, and that templates need not


@dataclass(frozen=True)
class _Header:
    """A header of one message in a probe: what stands before its body, and what is in front of that."""

    role: int
    ids: Ids
    before: Ids


def renderings(renderer: AnyRenderer) -> dict[str, RenderedTokens | MessageError]:
    """Every probe as the renderer writes it, or why it does not, by name."""
    made: dict[str, RenderedTokens | MessageError] = {}
    for name, messages, tools in PROBES:
        try:
            made[name] = renderer.render(normalise(messages), tools=tools)
        except MessageError as error:
            made[name] = error
    return made


def learn(renderer: AnyRenderer) -> Layout:
    """The layout of a renderer's format.

    What cannot be learned is not guessed: the layout is then not `trusted`, and rules that need turns are not judged.
    """
    encoder = renderer.encoder
    made_of = renderings(renderer)
    shown = [made for made in made_of.values() if isinstance(made, RenderedTokens)]
    preamble = _preamble(shown, encoder)
    stops, closes = _stops(renderer, shown)
    headers = [header for made in shown for header in _headers(made, encoder, len(preamble), stops if closes else ())]
    openers = _openers(headers, encoder)
    own = {ids for role, ids in openers if role == ASSISTANT}
    supplied = {
        header.ids[len(opener) :]
        for header in headers
        if header.role == ASSISTANT
        for opener in own
        if header.ids[: len(opener)] == opener
    }
    layout = Layout(
        openers=openers,
        supplied=tuple(sorted(supplied, key=lambda run: (-len(run), run))),
        stops=stops,
        closes=closes,
        preamble=preamble,
        bos=_named(encoder, "bos_token"),
        structural=frozenset(token for made in shown for token in made.token_ids)
        | {encoder.added_ids[text] for text in _SAID if text in encoder.added_ids},
        firsts=_firsts(shown, encoder),
        pad=_named(encoder, "pad_token"),
        controls=frozenset(encoder.control_ids.values()),
        known=frozenset((*encoder.stop_ids, *renderer.get_stop_token_ids())),
        think=_think(encoder),
        blank=_blank(encoder),
        vocab_size=encoder.vocab_size,
        names={token: text for text, token in encoder.added_ids.items()},
    )
    layout = replace(layout, joins=_joins(layout, shown), gaps=_gaps(layout, shown), heads=_heads(layout, shown))
    refused = next((str(error) for error in made_of.values() if isinstance(error, MessageError)), "")
    doubt = _doubt(layout, shown) if shown else f"the template refuses every probe: {refused}"
    return replace(layout, trusted=not doubt, doubt=doubt)


def _named(encoder: PieceEncoder, name: str) -> int | None:
    return encoder.added_ids.get(encoder.special_tokens.get(name, ""))


def _think(encoder: PieceEncoder) -> tuple[int, int] | None:
    both = [encoder.added_ids.get(tag) for tag in ("<think>", "</think>")]
    return None if both[0] is None or both[1] is None else (both[0], both[1])


def _preamble(shown: Sequence[RenderedTokens], encoder: PieceEncoder) -> Ids:
    """Control tokens at the very beginning that come nowhere else, the same in all probes."""
    if encoder.engine == "sentencepiece":  # our own format has none; its system sentinel is always there, once
        return ()
    controls = set(encoder.control_ids.values())
    runs: list[Ids] = []
    for made in shown:
        n = 0
        while (
            n < len(made.token_ids) and made.token_ids[n] in controls and made.token_ids.count(made.token_ids[n]) == 1
        ):
            n += 1
        runs.append(tuple(made.token_ids[:n]))
    return _common(runs)


def _firsts(shown: Sequence[RenderedTokens], encoder: PieceEncoder) -> frozenset[int]:
    """What renderings begin with; empty where that may be text."""
    firsts = {made.token_ids[0] for made in shown}
    return frozenset(firsts) if firsts <= {*encoder.control_ids.values(), *encoder.added_ids.values()} else frozenset()


def _common(runs: Sequence[Ids]) -> Ids:
    """What all runs begin with."""
    shared = runs[0] if runs else ()
    for run in runs:
        n = next((at for at, (a, b) in enumerate(zip(shared, run, strict=False)) if a != b), min(len(shared), len(run)))
        shared = shared[:n]
    return shared


def _headers(made: RenderedTokens, encoder: PieceEncoder, after: int, stops: Ids) -> Iterator[_Header]:
    """The header of each message: from its first token to its first body token, but never in the first `after`."""
    ids, owners = made.token_ids, made.message_indices
    marks = {token for text, token in encoder.added_ids.items() if text.strip()}
    for index, role in enumerate(made.message_roles):
        own = [at for at, owner in enumerate(owners) if owner == index]
        body = [at for at in own if made.is_content[at] and (role != "assistant" or made.sampled_mask[at])]
        if not body or role not in ROLES:
            continue
        first, stop = max(own[0], after), body[0]
        if first >= stop:  # the turn has no header of its own: what ends the one before it is its header
            first = next((at for at in range(stop - 1, after - 1, -1) if ids[at] in marks), stop)
        if role != "assistant":  # a turn that the template invents in front of the message is not its header
            first = next((at + 1 for at in range(stop - 1, first - 1, -1) if ids[at] in stops), first)
        while first < stop and not encoder.decode(ids[first : first + 1]).strip():
            first += 1
        if first < stop:
            yield _Header(ROLES.index(role), tuple(ids[first:stop]), tuple(ids[:first]))


def _openers(headers: Iterable[_Header], encoder: PieceEncoder) -> tuple[tuple[int, Ids], ...]:
    """Of each role what its headers share, those with different first ids apart, white space and tags left out."""
    groups: dict[tuple[int, int], list[Ids]] = {}
    for header in headers:
        groups.setdefault((header.role, header.ids[0]), []).append(header.ids)
    controls = set(encoder.control_ids.values())
    found: dict[Ids, int] = {}
    for (role, _), runs in sorted(groups.items(), key=lambda held: held[0][0] != ASSISTANT):
        opener = _common(runs)
        last = max((at + 1 for at, token in enumerate(opener) if token in controls), default=0)
        if last > 1:  # `<|start|>system<|end|>` and then what the format always says there, a date perhaps
            opener = opener[:last]
        while len(opener) > 1 and encoder.decode(opener[-1:]).strip() in _TAGS:
            opener = opener[:-1]
        # A system message that is written into the user's turn has the user's header.
        if opener not in found or (role == ROLES.index("user") and found[opener] != ASSISTANT):
            found[opener] = role
    return tuple(sorted((role, opener) for opener, role in found.items()))


def _stops(renderer: AnyRenderer, shown: Sequence[RenderedTokens]) -> tuple[Ids, bool]:
    """What ends the assistant's turns, and whether that is theirs: the last token that the model says in each."""
    last = set()
    for made in shown:
        for index, role in enumerate(made.message_roles):
            facts = enumerate(zip(made.message_indices, made.sampled_mask, strict=True))
            said = [at for at, (owner, sampled) in facts if owner == index and sampled]
            if role == "assistant" and said:
                last.add(made.token_ids[said[-1]])
    ends = {*renderer.encoder.control_ids.values(), *renderer.get_stop_token_ids()}
    if len(last) == 1:  # every turn ends in it: it is a stop, marked as special or not
        ends |= set(renderer.encoder.added_ids.values())
    if last and last <= ends:
        return tuple(sorted(last)), True
    return tuple(renderer.get_stop_token_ids()), False


def _doubt(layout: Layout, shown: Sequence[RenderedTokens]) -> str:
    """The first probe whose turns are not found as they were written; empty if all are."""
    if not any(role == ASSISTANT for role, _ in layout.openers):
        return "no header of the assistant is to be seen"
    rows = rows_of([made.token_ids for made in shown])
    turns = layout.turns(rows).assistants
    end = turns.said_end if layout.closes else turns.end
    found = covered(turns.body, end, len(rows.ids))
    if layout.joins:
        again = turns.of(turns.resumed)
        found |= covered(again.start, again.body, len(rows.ids))
    wrong = np.flatnonzero(found != _said(shown))
    if not wrong.size:
        return ""
    row = int(rows.row_of[wrong[0]])
    return f"turns of probe {row} are not where the template writes them (token {int(wrong[0] - rows.starts[row])})"


def _joins(layout: Layout, shown: Sequence[RenderedTokens]) -> bool:
    """In all probes in which an assistant's turn follows another at once, the model writes the opener between them."""
    rows = rows_of([made.token_ids for made in shown])
    turns = layout.turns(rows).assistants
    between = turns.start[turns.resumed]
    return len(between) > 0 and bool(_said(shown)[between].all())


def _gaps(layout: Layout, shown: Sequence[RenderedTokens]) -> tuple[int, ...]:
    """Of each opener the least white space behind it, for contents of probes begin with none; 0 for tool results."""
    _, which, _, sizes = layout.white_behind(rows_of([made.token_ids for made in shown]))
    return tuple(
        int(sizes[which == at].min()) if role != TOOL and (which == at).any() else 0
        for at, (role, _) in enumerate(layout.openers)
    )


def _heads(layout: Layout, shown: Sequence[RenderedTokens]) -> frozenset[tuple[int, int]]:
    """What follows the control tokens that begin the assistant's headers; nothing where models write these too."""
    own = [ids for role, ids in layout.openers if role == ASSISTANT and len(ids) > 1]
    firsts = {ids[0] for ids in own if ids[0] in layout.controls}
    pairs = (pair for made in shown for pair in zip(made.token_ids, made.token_ids[1:], strict=False))
    return frozenset() if layout.joins else frozenset(pair for pair in pairs if pair[0] in firsts)


def _said(shown: Sequence[RenderedTokens]) -> Bools:
    """Of all tokens of the probes, one after the other, whether the assistant says them."""
    return np.array([_by_assistant(made, at) for made in shown for at in range(len(made.token_ids))], dtype=np.bool_)


def _by_assistant(made: RenderedTokens, at: int) -> bool:
    owner = made.message_indices[at]
    return made.sampled_mask[at] and owner >= 0 and made.message_roles[owner] == "assistant"


def bare(encoder: PieceEncoder) -> Layout:
    """What a tokenizer without a template tells: its vocabulary and its control tokens, no turns."""
    vocab = encoder.vocab_size
    return Layout(
        openers=(),
        supplied=((),),
        stops=(),
        closes=True,
        preamble=(),
        bos=_named(encoder, "bos_token"),
        structural=frozenset(),
        pad=_named(encoder, "pad_token"),
        controls=frozenset(encoder.control_ids.values()),
        known=frozenset(encoder.stop_ids),
        think=_think(encoder),
        blank=_blank(encoder),
        vocab_size=vocab,
        trusted=False,
        doubt=NO_TEMPLATE,
        names={token: text for text, token in encoder.added_ids.items()},
    )


def _blank(encoder: PieceEncoder) -> Int64s:
    """Of each id its bytes if they are white space, else 0."""
    spelt = encoder.token_bytes(range(encoder.vocab_size))
    return np.array([0 if token.strip() else len(token) for token in spelt], dtype=np.int64)
