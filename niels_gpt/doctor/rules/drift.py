"""Rules on two tokenizers or templates: do they render the same conversations as the same ids?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from niels_gpt.display.rows import TokenSpelling
from niels_gpt.doctor.counters import Counters
from niels_gpt.doctor.evidence import Evidence, WindowToken
from niels_gpt.doctor.layouts.probes import AnyRenderer
from niels_gpt.doctor.rows import ChatRow
from niels_gpt.errors import MessageError
from niels_gpt.renderers.types import RenderedTokens

WINDOW: Final = 6  # tokens shown on either side of the first difference


def check(one: AnyRenderer, other: AnyRenderer, chats: Sequence[ChatRow], counters: Counters) -> int:
    """Render every conversation with both.

    Returns:
        The number of tokens that the first renderer wrote.
    """
    tokens = 0
    for chat in chats:
        tokens += _compare_whole(one, other, chat, counters)
        _compare_prompts(one, other, chat, counters)
    return tokens


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
