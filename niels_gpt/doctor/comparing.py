"""Drift: two tokenizers or templates on the same conversations, the built-in probes and the user's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from niels_gpt.display.rows import TokenSpelling
from niels_gpt.doctor.context import is_renderer, renderer_for
from niels_gpt.doctor.counters import Counters
from niels_gpt.doctor.evidence import Evidence, WindowToken
from niels_gpt.doctor.examine import examine_slices
from niels_gpt.doctor.layouts.probes import PROBES, AnyRenderer
from niels_gpt.doctor.options import DiagnoseOptions
from niels_gpt.doctor.rows import ChatRow, chat_rows
from niels_gpt.doctor.rules import RULES
from niels_gpt.errors import MessageError, TemplateError, UsageError
from niels_gpt.inputs.opened import Opened, is_tokenizer
from niels_gpt.inputs.parts import Slice, decoded
from niels_gpt.messages import normalise
from niels_gpt.renderers.types import RenderedTokens

Sides = tuple[AnyRenderer, AnyRenderer]
WINDOW: Final = 6  # tokens shown on either side of the first difference


def open_side(side: Any, tokenizer: Any, renderer: Any, date: str | None) -> AnyRenderer:
    """One of the two to compare: a renderer, a tokenizer directory, or a template file together with `tokenizer`.

    Raises:
        UsageError: a template without a tokenizer. TemplateError: a tokenizer without a template.
    """
    if is_renderer(side):
        return side.lists_unwritten()
    path = Path(str(side))
    # A file that is no tokenizer is the text of a template.
    if path.is_file() and not is_tokenizer(path):
        if tokenizer is None:
            raise UsageError(f"{path}: a template needs a tokenizer; pass --tokenizer DIR")
        # `renderer` names what writes the other side; this one is written by its template.
        _, opened = renderer_for(tokenizer, path.read_text(encoding="utf-8"), None, date)
    else:
        # Its own template even if a family is known for it: two checkpoints may differ in nothing but the template.
        _, opened = renderer_for(side, None, renderer, date, own_template=True)
    if opened is None:
        raise TemplateError(f"{side}: no chat template to compare; add chat_template.jinja, or name --renderer")
    return opened


def compare_formats(sides: Sides, opened: Opened | None, how: DiagnoseOptions) -> tuple[Counters, dict[str, Any]]:
    """Compare on the conversations of an input, if there is one, and on the probes.

    Returns:
        What was found, and a description of the input for the report's `source`. Probes are numbered after the rows of
        the input.
    """
    counters, description = Counters(how.evidence), dict[str, Any]()
    # The number of the first probe; probes follow the rows of the input.
    first_probe = 0
    if opened is not None:
        how.progress.begin(f"comparing on {opened.name}", total=how.sample or opened.count(), unit="rows")
        examine = partial(_compared, sides, opened.dialect_at, how.evidence)
        for part in examine_slices(examine, opened.slices(how.sample, how.seed), how.workers):
            counters.merge(part)
            first_probe += part.sums["rows"]
            how.progress.advance(part.sums["rows"])
        description = {"chats": opened.name, "conversations": first_probe}
        if how.sample is not None:
            description |= {"sample": how.sample, "seed": how.seed}
            # In a sample, rows keep their numbers in the whole input; probes come after all of them.
            first_probe = opened.count() or first_probe
    on_probes = Counters(how.evidence)
    on_probes.sums["rows"] = len(PROBES)
    chats = [
        ChatRow(number, f"probe {name!r}", normalise(messages), tools)  # type: ignore[arg-type]
        for number, (name, messages, tools) in enumerate(PROBES, start=first_probe)
    ]
    compare(sides, chats, on_probes)
    if opened is not None:
        # The report says how many of the hits are in the user's conversations, and how many in the probes.
        for rule in (rule for rule in RULES.values() if rule.applies == ("drift",)):
            for name, part in (("conversations", counters), ("probes", on_probes)):
                hits = part.hits.get(rule.id)
                counters.sums[f"{rule.id}: {name}"] = hits.rows if hits is not None else 0
    counters.merge(on_probes)
    return counters, description


def _compared(sides: Sides, dialect_at: Callable[[str], str], max_evidence: int, part: Slice) -> Counters:
    """The counters of a slice, on whose conversations the two are compared."""
    numbers, payload = part
    counters = Counters(max_evidence)
    counters.sums["rows"] = len(numbers)
    # Rows that are no conversations become hits, as in a diagnosis, and are not compared.
    compare(sides, chat_rows(numbers, decoded(numbers, payload), dialect_at, counters), counters)
    return counters


# ---- two renderings of one conversation


def compare(sides: Sides, chats: Sequence[ChatRow], counters: Counters) -> None:
    """Render every conversation with both; `tokens` counts what the first one writes."""
    one, other = sides
    for chat in chats:
        counters.sums["tokens"] += _compare_whole(one, other, chat, counters)
        _compare_prompts(one, other, chat, counters)


def _rendered(renderer: AnyRenderer, chat: ChatRow, *, prompt: bool = False) -> RenderedTokens | str:
    """The conversation, or the prompt before its last message; the error text where the template refuses it."""
    messages = chat.messages[:-1] if prompt else chat.messages
    try:
        return renderer.with_kwargs(chat.kwargs).render(messages, tools=chat.tools, add_generation_prompt=prompt)
    except MessageError as error:
        return str(error)


def _compare_whole(one: AnyRenderer, other: AnyRenderer, chat: ChatRow, counters: Counters) -> int:
    first, second = _rendered(one, chat), _rendered(other, chat)
    if isinstance(first, str) or isinstance(second, str):
        # If both refuse, they agree.
        if isinstance(first, str) != isinstance(second, str):
            refuses = first if isinstance(first, str) else second
            which = "first" if isinstance(first, str) else "second"
            note = f"only the {which} refuses it: {refuses}"
            counters.add("template-drift", [Evidence(row=chat.number, where=chat.where, note=note)])
        return 0
    if first.token_ids != second.token_ids:
        # Equal texts and different ids: the tokenizers differ. Different texts: the templates do.
        same_text = _text(one, chat) == _text(other, chat)
        rule = "tokenizer-drift" if same_text else "template-drift"
        counters.add(rule, [_difference(one, other, first, second, chat)])
    return len(first.token_ids)


def _text(renderer: AnyRenderer, chat: ChatRow) -> str:
    return renderer.with_kwargs(chat.kwargs).text(chat.messages, tools=chat.tools)


def _compare_prompts(one: AnyRenderer, other: AnyRenderer, chat: ChatRow, counters: Counters) -> None:
    """Compare the generation prompts before the last message, where all before them is the same."""
    if len(chat.messages) < 2 or chat.messages[-1]["role"] != "assistant":
        return
    first, second = _rendered(one, chat, prompt=True), _rendered(other, chat, prompt=True)
    if isinstance(first, str) or isinstance(second, str) or first.token_ids == second.token_ids:
        return
    at = _first_difference(first.token_ids, second.token_ids)
    # All that follows the first difference belongs to no message, so it is the generation prompt.
    in_prompt = all(owner < 0 for owner in [*first.message_indices[at:], *second.message_indices[at:]])
    if in_prompt:  # a difference in the messages is reported by _compare_whole
        counters.add("generation-prompt-drift", [_difference(one, other, first, second, chat)])


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    # If one is the beginning of the other, they differ where the shorter ends.
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def _difference(
    one: AnyRenderer, other: AnyRenderer, first: RenderedTokens, second: RenderedTokens, chat: ChatRow
) -> Evidence:
    at = _first_difference(first.token_ids, second.token_ids)
    low = max(0, at - WINDOW)
    texts = []
    for renderer, made in ((one, first), (other, second)):
        rest = made.token_ids[at : at + 4]
        # One of them may end where the other goes on.
        texts.append(f"{renderer.encoder.decode(rest)!r} {rest}" if rest else "nothing")
    # The difference may lie past the end of the first.
    owner = first.message_indices[at] if at < len(first.message_indices) else -1
    shown = first.token_ids[low : at + WINDOW + 1]
    return Evidence(
        row=chat.number,
        where=chat.where,
        note=f"{len(first.token_ids)} and {len(second.token_ids)} tokens; from token {at} on {texts[0]} and {texts[1]}",
        message=owner if owner >= 0 else None,
        token=at,
        window=tuple(WindowToken(token, TokenSpelling(one.encoder.token_bytes)(token)) for token in shown),
        mark=at - low if at - low < len(shown) else None,
    )
