"""Rules on a tokenizer and its template, which need no data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from niels_gpt.display.rows import TokenSpelling
from niels_gpt.doctor.counters import Counters
from niels_gpt.doctor.evidence import Evidence, WindowToken
from niels_gpt.doctor.layouts.layout import Layout
from niels_gpt.doctor.layouts.probes import PROBES, AnyRenderer, render_probes
from niels_gpt.doctor.rules.chats import system_fault
from niels_gpt.messages import normalise
from niels_gpt.renderers.family import Family
from niels_gpt.renderers.template.renderer import TemplateRenderer
from niels_gpt.renderers.types import RenderedTokens
from niels_gpt.tokenizer.encoder import TokenizerAdapter
from niels_gpt.tokenizer.pieces import PieceEncoder
from niels_gpt.tokenizer.sentencepiece import SentencePieceEncoder

SHOWN: Final = 12


def check(
    encoder: PieceEncoder, renderer: AnyRenderer | None, layout: Layout, counters: Counters, *, without_data: bool
) -> None:
    """Judge a tokenizer and its template.

    Args:
        renderer: `None` if the tokenizer has no template.
        without_data: the input is the tokenizer, without data: also judge what only some data would meet.
    """
    _check_stops(encoder, renderer, layout, counters)
    eos = encoder.added_ids.get(encoder.special_tokens.get("eos_token", ""))
    if layout.pad is not None and layout.pad == eos:
        counters.add("pad-is-eos", [_evidence(encoder, f"both are {encoder.special_tokens['pad_token']!r}")])
    # Other tokenizers are those of published models, whose normalisation is what the model was trained with.
    if isinstance(encoder, SentencePieceEncoder) and encoder.tokenizer.inexact_reason is not None:
        counters.add("tokenizer-changes-text", [_evidence(encoder, encoder.tokenizer.inexact_reason)])
    if renderer is None:
        return
    if isinstance(renderer, TemplateRenderer):
        partial = [made.attribution for made in _rendered_probes(renderer) if made.attribution != "full"]
        counters.add("attribution-partial", [_evidence(encoder, note) for note in partial[:1]])
    if without_data:
        _check_template(encoder, renderer, layout, counters)


def _evidence(encoder: PieceEncoder, note: str, ids: list[int] | None = None) -> Evidence:
    """Evidence that is the tokenizer itself, with some ids."""
    window = tuple(WindowToken(token, TokenSpelling(encoder.token_bytes)(token)) for token in (ids or [])[:SHOWN])
    return Evidence(row=-1, where=encoder.name, note=note, window=window)


def _rendered_probes(renderer: AnyRenderer) -> Iterator[RenderedTokens]:
    return (made for made in render_probes(renderer).values() if isinstance(made, RenderedTokens))


def _check_stops(encoder: PieceEncoder, renderer: AnyRenderer | None, layout: Layout, counters: Counters) -> None:
    """Does serving stop at the token that ends an assistant turn?"""
    if renderer is None:
        return
    if not layout.has_own_stop:
        # Where an opener ends turns, serving must stop at it; a template that writes no such token has no end at all.
        openers = {ids[0] for _, ids in layout.openers}
        ids = encoder.control_ids
        # GLM models stop at these openers by design, whatever their files list.
        stops_of_glm = {ids[name] for name in ("<|user|>", "<|observation|>") if name in ids and "[gMASK]" in ids}
        if (
            isinstance(renderer, TemplateRenderer)
            and not openers & (layout.serving_stops | stops_of_glm)
            and any(True for _ in _rendered_probes(renderer))
        ):
            note = "the template writes no control token after the assistant message"
            counters.add("eot-missing", [_evidence(encoder, note, next(_rendered_probes(renderer)).token_ids)])
        return
    stops = _generate_stops(encoder)
    served, missing = served_and_missing(encoder, renderer, layout)
    if not missing:
        return
    note = f"turns end in {_spelt(encoder, missing)}; "
    if stops is None:
        note += f"the tokenizer's eos is {_spelt(encoder, served)}"
        counters.add("eot-not-in-stop-set", [_evidence(encoder, note, missing)])
        counters.milder["eot-not-in-stop-set"] = "info"  # servers may have settings of their own
        return
    note += f"generate() stops at {_spelt(encoder, served)}"
    # eos_token would stop there, but generate() does not read it.
    if set(missing) & set(encoder.stop_ids):
        note += " (it does not use the tokenizer's eos_token)"
    counters.add("eot-not-in-stop-set", [_evidence(encoder, note, missing)])


def _generate_stops(encoder: PieceEncoder) -> Iterable[int] | None:
    """The ids at which generate() stops; `None` without generation_config.json and config.json."""
    return encoder.parts.generate_stops if isinstance(encoder, TokenizerAdapter) else None


def served_and_missing(encoder: PieceEncoder, renderer: AnyRenderer, layout: Layout) -> tuple[list[int], list[int]]:
    """The ids at which serving stops, and those of ends of turns that are not among them."""
    stops = _generate_stops(encoder)
    served = list(encoder.stop_ids if stops is None else stops)
    return served, sorted(_final_stops(renderer, layout) - set(served))


def _spelt(encoder: PieceEncoder, ids: Iterable[int]) -> str:
    return ", ".join(f"{encoder.decode([token])!r} ({token})" for token in ids) or "nothing"


def _final_stops(renderer: AnyRenderer, layout: Layout) -> set[int]:
    """The stops that the model samples at the end of an answer: those at the end of a probe, and a family's own.

    A turn of history may end in another token: gpt-oss writes <|end|> there, and <|return|> where the model stops.
    """
    final = set(renderer.get_stop_token_ids()) if isinstance(renderer, Family) else set[int]()
    for made in _rendered_probes(renderer):
        sampled = [token for token, is_sampled in zip(made.token_ids, made.sampled_mask, strict=True) if is_sampled]
        final |= set(sampled[-1:])
    return final & set(layout.stops)


def _check_template(encoder: PieceEncoder, renderer: AnyRenderer, layout: Layout, counters: Counters) -> None:
    """Judge what the template does with the probes."""
    _check_bos(encoder, layout, counters)
    if isinstance(renderer, TemplateRenderer) and not re.search(r"{%[-+]?\s*generation\b", renderer.source):
        counters.add("no-generation-markers", [_evidence(encoder, "no {% generation %} in the template's text")])
    made = render_probes(renderer)
    _check_prefixes(encoder, renderer, made, counters)
    system = made.get("a system message")
    if isinstance(system, RenderedTokens) and system.attribution == "full":
        rule, note = system_fault(np.asarray(system.message_indices), np.asarray(system.is_content))
        if rule:
            counters.add(rule, [_evidence(encoder, note, system.token_ids)])


def _check_bos(encoder: PieceEncoder, layout: Layout, counters: Counters) -> None:
    """Does the tokenizer add bos to a text that already begins with it?"""
    if not isinstance(encoder, TokenizerAdapter) or not layout.preamble:
        return
    from tokenizers import Tokenizer

    # Not our own encoder, which never adds special tokens.
    official = Tokenizer.from_str(encoder.parts.json_bytes.decode())
    added = official.encode(encoder.decode(layout.preamble) + "a").ids
    first = layout.preamble[0]
    if added[:2] == [first, first]:
        counters.add("bos-added-twice", [_evidence(encoder, "encoding rendered text again", added)])


def _check_prefixes(encoder: PieceEncoder, renderer: AnyRenderer, made: Mapping[str, Any], counters: Counters) -> None:
    """Is the first turn of a probe rendered the same when others follow it?"""
    for name, messages, tools in PROBES:
        whole = made[name]
        # Probes with at least two turns of each role, so that the first answer is history in the whole.
        if not isinstance(whole, RenderedTokens) or len(messages) < 4 or tools:
            continue
        produced = renderer.render(normalise(messages[:2]), tools=tools)
        # Compared up to the last token that the model samples; what the template writes after it may differ.
        end = max((at + 1 for at, sampled in enumerate(produced.sampled_mask) if sampled), default=0)
        if whole.token_ids[:end] != produced.token_ids[:end]:
            pairs = zip(whole.token_ids, produced.token_ids, strict=False)
            at = next(at for at, (one, other) in enumerate(pairs) if one != other)
            note = f"{name}: as history the first turn differs from token {at} on"
            counters.add("prefix-not-preserved", [_evidence(encoder, note, produced.token_ids[max(0, at - 4) :])])
            return
