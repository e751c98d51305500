"""Rules on a tokenizer and its template alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from niels_gpt.doctor.layout import Layout
from niels_gpt.doctor.learning import AnyRenderer, renderings
from niels_gpt.doctor.probes import PROBES
from niels_gpt.doctor.report import Evidence, WindowToken
from niels_gpt.doctor.rules.chats import system_fault
from niels_gpt.doctor.rules.rule import Rule
from niels_gpt.doctor.tally import Tally
from niels_gpt.errors import MessageError
from niels_gpt.messages import normalise
from niels_gpt.renderers.engine import Family
from niels_gpt.renderers.rendered import RenderedTokens
from niels_gpt.renderers.template import TemplateRenderer
from niels_gpt.tokenizer.encoder import Encoder
from niels_gpt.tokenizer.protocol import PieceEncoder

_ALL: Final = ("chats", "tokens", "tokenizer")
RULES: Final = (
    Rule(
        "eot-not-in-stop-set",
        "error",
        "serving does not stop at the end-of-turn",
        "The model learns its end-of-turn well, and transformers' generate() goes on behind it: it stops at the ids of "
        "generation_config.json (of config.json, where there is none) and does not read the tokenizer's eos_token.",
        "generation_config.json names other ids than the template writes, often the base model's.",
        "Add the id to eos_token_id in generation_config.json.",
        ("huggingface/open-r1#603", "unslothai/unsloth#416"),
        _ALL,
        needs=("renderer", "stops"),
    ),
    Rule(
        "stop-set-unknown",
        "warning",
        "the end-of-turn is not eos, and no generation_config.json names it",
        "Serving stops at eos_token alone unless it is told otherwise.",
        "The tokenizer came without generation_config.json, or eos_token is the base model's.",
        "Add a generation_config.json whose eos_token_id lists the end-of-turn.",
        ("huggingface/open-r1#603", "hiyouga/LlamaFactory#2352"),
        _ALL,
        needs=("renderer", "stops"),
    ),
    Rule(
        "pad-is-eos",
        "warning",
        "padding and end-of-text are one token",
        "Every tool that masks padding by value masks real ends too.",
        "tokenizer.pad_token = tokenizer.eos_token",
        "Give padding a token of its own.",
        ("mlabonne/llm-course#33", "deepseek-ai/DeepSeek-Coder#163"),
        _ALL,
        needs=("tokenizer",),
    ),
    Rule(
        "bos-added-twice",
        "warning",
        "the template writes bos, and the tokenizer adds one too",
        "Rendered text that is encoded with the tokenizer's defaults begins twice.",
        "A post-processor that adds bos, beside a template that writes it.",
        "Encode rendered text with add_special_tokens=False (apply_chat_template with tokenize=True does).",
        ("huggingface/trl#3328", "huggingface/open-r1#462"),
        ("tokenizer",),
        needs=("renderer",),
    ),
    Rule(
        "no-generation-markers",
        "info",
        "the template has no {% generation %} markers",
        "transformers' return_assistant_tokens_mask returns zeros for it, and trainers train nothing.",
        "Most published templates have none.",
        "Use niels_gpt's TemplateRenderer, which needs no markers.",
        ("huggingface/transformers#34172", "huggingface/transformers#30650"),
        ("tokenizer",),
        needs=("renderer",),
    ),
    Rule(
        "prefix-not-preserved",
        "info",
        "a turn renders differently once others follow it",
        "What is trained in history is not what was sampled; a conversation cannot be continued without rendering "
        "again.",
        "The template drops reasoning, or empty think blocks, from history.",
        "Train one sample for each turn (build_training_samples).",
        ("ollama/ollama#10448", "OpenPipe/ART#726"),
        ("tokenizer",),
        needs=("renderer",),
    ),
    Rule(
        "template-refuses",
        "info",
        "the template refuses some kinds of conversation",
        "Rows of these kinds cannot be rendered.",
        "The format has no place for them.",
        "Check that your data holds none: niels-gpt doctor DATA --tokenizer DIR.",
        applies=("tokenizer",),
        needs=("renderer",),
    ),
    Rule(
        "attribution-partial",
        "warning",
        "some of the text in a rendering could not be traced to its message",
        "Masks of this template may be wrong where the trace was lost.",
        "The template rebuilds contents character by character, or compares them away.",
        "Use a family (--renderer) if there is one.",
        ("huggingface/tokenizers#1517",),
        ("chats", "tokenizer"),
        needs=("renderer",),
    ),
)
SHOWN: Final = 12


def check(encoder: PieceEncoder, renderer: AnyRenderer | None, layout: Layout, tally: Tally, *, alone: bool) -> None:
    """Judge a tokenizer and its template.

    Args:
        alone: there is no data: also judge what data could meet.
    """
    _stops(encoder, renderer, layout, tally)
    eos = encoder.added_ids.get(encoder.special_tokens.get("eos_token", ""))
    if layout.pad is not None and layout.pad == eos:
        tally.add("pad-is-eos", [_told(encoder, f"both are {encoder.special_tokens['pad_token']!r}")])
    if renderer is None:
        return
    if isinstance(renderer, TemplateRenderer):
        partial = [made.attribution for made in _shown(renderer) if made.attribution != "full"]
        tally.add("attribution-partial", [_told(encoder, note) for note in partial[:1]])
    if alone:
        _template(encoder, renderer, layout, tally)


def _told(encoder: PieceEncoder, note: str, ids: list[int] | None = None) -> Evidence:
    """Evidence that stands in no row."""
    window = tuple(WindowToken(token, encoder.decode([token])) for token in (ids or [])[:SHOWN])
    return Evidence(row=-1, where=encoder.name, note=note, window=window)


def _shown(renderer: AnyRenderer) -> Iterator[RenderedTokens]:
    return (made for made in renderings(renderer).values() if isinstance(made, RenderedTokens))


def _stops(encoder: PieceEncoder, renderer: AnyRenderer | None, layout: Layout, tally: Tally) -> None:
    """Is what ends the assistant's turn what serving waits for?"""
    if renderer is None:
        return
    if not layout.closes:
        openers = {ids[0] for _, ids in layout.openers}
        if (
            isinstance(renderer, TemplateRenderer)
            and not openers & layout.known
            and any(True for _ in _shown(renderer))
        ):
            note = "the template writes no control token behind what the assistant says"
            tally.add("eot-missing", [_told(encoder, note, next(_shown(renderer)).token_ids)])
        return
    stops = encoder.parts.generate_stops if isinstance(encoder, Encoder) else None
    waited = encoder.stop_ids if stops is None else stops
    missing = sorted(_final_stops(renderer, layout) - set(waited))
    if not missing:
        return
    note = f"turns end in {_spelt(encoder, missing)}; "
    if stops is None:
        note += f"the tokenizer's eos is {_spelt(encoder, waited)}"
        tally.add("stop-set-unknown", [_told(encoder, note, missing)])
        return
    note += f"generate() stops at {_spelt(encoder, waited)}"
    if set(missing) & set(encoder.stop_ids):
        note += " (it does not use the tokenizer's eos_token)"
    tally.add("eot-not-in-stop-set", [_told(encoder, note, missing)])


def _spelt(encoder: PieceEncoder, ids: Iterable[int]) -> str:
    return ", ".join(f"{encoder.decode([token])!r} ({token})" for token in ids) or "nothing"


def _final_stops(renderer: AnyRenderer, layout: Layout) -> set[int]:
    """What ends an answer while it is sampled: what ends a conversation, and a family's own stops.

    A turn of history may end otherwise: gpt-oss writes <|end|> there, and <|return|> where the model stops.
    """
    final = set(renderer.get_stop_token_ids()) if isinstance(renderer, Family) else set[int]()
    for made in _shown(renderer):
        said = [token for token, sampled in zip(made.token_ids, made.sampled_mask, strict=True) if sampled]
        final |= set(said[-1:])
    return final & set(layout.stops)


def _template(encoder: PieceEncoder, renderer: AnyRenderer, layout: Layout, tally: Tally) -> None:
    _beginning(encoder, layout, tally)
    if isinstance(renderer, TemplateRenderer) and not re.search(r"{%[-+]?\s*generation\b", renderer.source):
        tally.add("no-generation-markers", [_told(encoder, "no {% generation %} in the template's text")])
    made = renderings(renderer)
    refused = {name: one for name, one in made.items() if isinstance(one, MessageError)}
    tally.add("template-refuses", [_told(encoder, f"{name}: {error}") for name, error in refused.items()])
    _prefixes(encoder, renderer, made, tally)
    system = made.get("a system message")
    if isinstance(system, RenderedTokens) and system.attribution == "full":
        rule, note = system_fault(np.asarray(system.message_indices), np.asarray(system.is_content))
        if rule:
            tally.add(rule, [_told(encoder, note, system.token_ids)])


def _beginning(encoder: PieceEncoder, layout: Layout, tally: Tally) -> None:
    """What the tokenizer itself puts in front of a text that already begins with bos."""
    if not isinstance(encoder, Encoder) or not layout.preamble:
        return
    from tokenizers import Tokenizer

    official = Tokenizer.from_str(encoder.parts.json_bytes.decode())
    added = official.encode(encoder.decode(layout.preamble) + "a").ids
    first = layout.preamble[0]
    if added[:2] == [first, first]:
        tally.add("bos-added-twice", [_told(encoder, "encoding rendered text again", added)])


def _prefixes(encoder: PieceEncoder, renderer: AnyRenderer, made: Mapping[str, Any], tally: Tally) -> None:
    """Is a turn the same when others follow it?"""
    for name, messages, tools in PROBES:
        whole = made[name]
        if not isinstance(whole, RenderedTokens) or len(messages) < 4 or tools:
            continue
        produced = renderer.render(normalise(messages[:2]), tools=tools)
        end = max((at + 1 for at, said in enumerate(produced.sampled_mask) if said), default=0)
        if whole.token_ids[:end] != produced.token_ids[:end]:
            pairs = zip(whole.token_ids, produced.token_ids, strict=False)
            at = next(at for at, (one, other) in enumerate(pairs) if one != other)
            note = f"{name}: as history the first turn differs from token {at} on"
            tally.add("prefix-not-preserved", [_told(encoder, note, produced.token_ids[max(0, at - 4) :])])
            return
