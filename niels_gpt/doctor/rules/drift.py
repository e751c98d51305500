"""Rules on two tokenizers or templates: do they make the same ids of the same conversations?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from niels_gpt.doctor.chats import ChatRow
from niels_gpt.doctor.learning import AnyRenderer
from niels_gpt.doctor.report import Evidence, WindowToken
from niels_gpt.doctor.rules.rule import Rule
from niels_gpt.doctor.tally import Tally
from niels_gpt.errors import MessageError
from niels_gpt.renderers.rendered import RenderedTokens

RULES: Final = (
    Rule(
        "template-drift",
        "error",
        "the two write the same conversation differently",
        "The model is served prompts of a shape that it was not trained on. Evaluations that use the training code do "
        "not show it.",
        "Two versions of a template, or a serving stack with its own.",
        "Serve with the template that was trained on.",
        ("ollama/ollama#6823", "InternLM/lmdeploy#1945", "lm-sys/FastChat#2992"),
        ("drift",),
    ),
    Rule(
        "tokenizer-drift",
        "error",
        "the two encode the same text differently",
        "Ids mean other things to the two; the model reads noise.",
        "Another version of the tokenizer, other added tokens, or a conversion.",
        "Ship the tokenizer that was trained with.",
        ("hiyouga/LlamaFactory#3426", "OpenBMB/MiniCPM-V#141"),
        ("drift",),
    ),
    Rule(
        "generation-prompt-drift",
        "error",
        "the two write different generation prompts",
        "The model begins its answer from a prompt that it was not trained on.",
        "A prefilled think tag or a new line, in one of the two.",
        "Serve with the template that was trained on.",
        ("InternLM/lmdeploy#1945",),
        ("drift",),
    ),
)
AROUND: Final = 6


def check(one: AnyRenderer, other: AnyRenderer, chats: Sequence[ChatRow], tally: Tally) -> int:
    """Render every conversation with both; returns how many tokens the first made."""
    tokens = 0
    for chat in chats:
        tokens += _whole(one, other, chat, tally)
        _prompt(one, other, chat, tally)
    return tokens


def _made(renderer: AnyRenderer, chat: ChatRow, *, prompt: bool = False) -> RenderedTokens | str:
    messages = chat.messages[:-1] if prompt else chat.messages
    try:
        return renderer.render(messages, tools=chat.tools, add_generation_prompt=prompt)
    except MessageError as error:
        return str(error)


def _whole(one: AnyRenderer, other: AnyRenderer, chat: ChatRow, tally: Tally) -> int:
    first, second = _made(one, chat), _made(other, chat)
    if isinstance(first, str) or isinstance(second, str):
        if isinstance(first, str) != isinstance(second, str):
            refuses = first if isinstance(first, str) else second
            which = "first" if isinstance(first, str) else "second"
            note = f"only the {which} refuses it: {refuses}"
            tally.add("template-drift", [Evidence(row=chat.number, where=chat.where, note=note)])
        return 0
    if first.token_ids != second.token_ids:
        same_text = _text(one, chat) == _text(other, chat)
        rule = "tokenizer-drift" if same_text else "template-drift"
        tally.add(rule, [_difference(one, other, first, second, chat)])
    return len(first.token_ids)


def _text(renderer: AnyRenderer, chat: ChatRow) -> str:
    return renderer.text(chat.messages, tools=chat.tools)


def _prompt(one: AnyRenderer, other: AnyRenderer, chat: ChatRow, tally: Tally) -> None:
    """The generation prompts before the last message, where what is before them is the same."""
    if len(chat.messages) < 2 or chat.messages[-1]["role"] != "assistant":
        return
    first, second = _made(one, chat, prompt=True), _made(other, chat, prompt=True)
    if isinstance(first, str) or isinstance(second, str) or first.token_ids == second.token_ids:
        return
    at = _first_difference(first.token_ids, second.token_ids)
    behind = all(owner < 0 for owner in [*first.message_indices[at:], *second.message_indices[at:]])
    if behind:  # else the messages differ already, which is told above
        tally.add("generation-prompt-drift", [_difference(one, other, first, second, chat)])


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def _difference(
    one: AnyRenderer, other: AnyRenderer, first: RenderedTokens, second: RenderedTokens, chat: ChatRow
) -> Evidence:
    at = _first_difference(first.token_ids, second.token_ids)
    low = max(0, at - AROUND)
    told = [_spelt(renderer, made, at) for renderer, made in ((one, first), (other, second))]
    owner = first.message_indices[at] if at < len(first.message_indices) else -1
    shown = first.token_ids[low : at + AROUND + 1]
    return Evidence(
        row=chat.number,
        where=chat.where,
        note=f"{len(first.token_ids)} and {len(second.token_ids)} tokens; from token {at} on {told[0]} and {told[1]}",
        message=owner if owner >= 0 else None,
        token=at,
        window=tuple(WindowToken(token, one.encoder.decode([token])) for token in shown),
        mark=at - low if at - low < len(shown) else None,
    )


def _spelt(renderer: AnyRenderer, made: RenderedTokens, at: int) -> str:
    rest = made.token_ids[at : at + 4]
    return repr(renderer.encoder.decode(rest)) + f" {rest}" if rest else "nothing"
