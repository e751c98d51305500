"""tml-renderers beside ours: our conversations as its messages, its samples, prompts and parsed messages as ours.

It renders by grammars of its own, in Rust, over vocabularies that it brings along. Its tokenizers are what our families
render with here (`ours`), so all ids are comparable. A family that both know is one line of `JUDGED`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from tml_renderers import chat, renderers, tokenizers, v0

from niels_gpt.renderers.base import build_training_samples
from niels_gpt.renderers.family import Family
from niels_gpt.renderers.registry import FAMILIES, config_of
from niels_gpt.tokenizer.load import open_encoder
from niels_gpt.tokenizer.pieces import PieceEncoder
from tests.memory import shared
from tests.renderers.chats import Messages, plain_text

DAY = "2026-01-31"


@dataclass(frozen=True)
class Judged:
    """A family of ours with some options, and what it is called there.

    Attributes:
        family: our family; options: its options.
        kind: the class of tml-renderers; arguments: those of its constructor.
        tools: it can declare tools.
        thinks: it has a place for reasoning.
        ignored: markup of theirs that stands for another model's format and is left out of the comparison.
        respelled: markup of theirs, and what ours writes in its place, by a difference that is listed.
    """

    family: str
    kind: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    tools: bool = True
    thinks: bool = True
    ignored: tuple[str, ...] = ()
    respelled: Mapping[str, str] = field(default_factory=dict)


_KEPT = {"strip_thinking_from_history": False}
_KEEPS = {"preserve_all_thinking": True}
_THINKING, _CHAT, _PREVIEW = {"thinking": True}, {"thinking_mode": "chat"}, {"reasoning_effort_profile": "preview"}
_EFFORTS: tuple[str | int, ...] = ("low", "medium", "high", "max", 30, 1)
_LOW, _MEDIUM, _HIGH, _MAX, _THIRTY, _ONE = ({"reasoning_effort": effort} for effort in _EFFORTS)
_ENDS = {"sampled_openers": True}
JUDGED: dict[str, Judged] = {
    "qwen3": Judged("qwen3", "Qwen3"),
    "qwen3 without thinking": Judged("qwen3", "Qwen3", {"prefix_empty_thinking": True}, {"enable_thinking": False}),
    "qwen3 that keeps reasoning": Judged("qwen3", "Qwen3", _KEPT, _KEEPS),
    "qwen3-vl": Judged("qwen3-vl", "Qwen3", {"vision": True, "support_thinking": False}, thinks=False),
    "qwen3.5": Judged("qwen3.5", "Qwen35", options={"enable_thinking": True}),
    "qwen3.5 without thinking": Judged("qwen3.5", "Qwen35", {"enable_thinking": False}, {"enable_thinking": False}),
    "qwen3.5 that keeps reasoning": Judged("qwen3.5", "Qwen35", _KEPT, {"enable_thinking": True, **_KEEPS}),
    "deepseek-v3": Judged("deepseek-v3", "DeepSeekV3", tools=False, thinks=False),
    "deepseek-v3.1": Judged("deepseek-v3.1", "DeepSeekV31", tools=False),
    "deepseek-v3.1, thinking": Judged("deepseek-v3.1", "DeepSeekV31", _THINKING, _THINKING, tools=False),
    "deepseek-v4": Judged("deepseek-v4", "DeepSeekV4"),
    "deepseek-v4, high effort": Judged("deepseek-v4", "DeepSeekV4", _HIGH, _HIGH),
    "deepseek-v4, maximal effort": Judged("deepseek-v4", "DeepSeekV4", _MAX, _MAX),
    "deepseek-v4 in chat mode": Judged("deepseek-v4", "DeepSeekV4", _CHAT, {"thinking": False}),
    "deepseek-v4-preview": Judged("deepseek-v4-preview", "DeepSeekV4", _PREVIEW),
    "deepseek-v4-preview, maximal effort": Judged("deepseek-v4-preview", "DeepSeekV4", _PREVIEW | _MAX, _MAX),
    "deepseek-v4.1": Judged("deepseek-v4.1", "DeepSeekV41"),
    "deepseek-v4.1, low effort": Judged("deepseek-v4.1", "DeepSeekV41", _LOW, _LOW),
    "deepseek-v4.1, effort 30": Judged("deepseek-v4.1", "DeepSeekV41", _THIRTY, _THIRTY),
    "deepseek-v4.1 in chat mode": Judged("deepseek-v4.1", "DeepSeekV41", _CHAT, {"thinking": False}),
    # theirs is K2 Thinking, ours K2 Instruct, which has no think blocks
    "kimi-k2": Judged("kimi-k2", "KimiK2", thinks=False, ignored=("<think>", "</think>")),
    "kimi-k2.5": Judged("kimi-k2.5", "KimiK25"),
    "kimi-k2.5 without thinking": Judged("kimi-k2.5", "KimiK25", {"support_thinking": False}, {"thinking": False}),
    "kimi-k2.5 that keeps reasoning": Judged("kimi-k2.5", "KimiK25", _KEPT, _KEEPS),
    **{
        f"gpt-oss, {effort} effort": Judged(
            "gpt-oss",
            "GptOss",
            {"reasoning_effort": effort, "current_date": DAY},
            {"reasoning_effort": effort, "conversation_start_date": DAY, "text_before_calls": "commentary"},
        )
        for effort in ("low", "medium", "high")
    },
    "nemotron-3": Judged("nemotron-3", "Nemotron3", options={"ultra": False}),
    "nemotron-3, low effort": Judged(
        "nemotron-3", "Nemotron3", {"reasoning_effort": "low"}, {"ultra": False, "low_effort": True}
    ),
    "nemotron-3 without thinking": Judged(
        "nemotron-3", "Nemotron3", {"support_thinking": False}, {"ultra": False, "enable_thinking": False}
    ),
    "nemotron-3 that keeps reasoning": Judged(
        "nemotron-3", "Nemotron3", _KEPT, {"ultra": False, "truncate_history_thinking": False}
    ),
    "nemotron-3-ultra": Judged("nemotron-3-ultra", "Nemotron3", {"ultra": True}),
    "nemotron-3-ultra, medium effort": Judged(
        "nemotron-3-ultra", "Nemotron3", {"ultra": True, "reasoning_effort": "medium"}, {"medium_effort": True}
    ),
    "nemotron-3-ultra without thinking": Judged(
        "nemotron-3-ultra", "Nemotron3", {"ultra": True, "support_thinking": False}, {"enable_thinking": False}
    ),
    "nemotron-3-ultra that keeps reasoning": Judged(
        "nemotron-3-ultra", "Nemotron3", {"ultra": True, **_KEPT}, {"truncate_history_thinking": False}
    ),
    "qwen3.8": Judged("qwen3.8", "Qwen38"),
    "qwen3.8, low effort": Judged("qwen3.8", "Qwen38", _LOW, _LOW),
    "qwen3.8 without thinking": Judged("qwen3.8", "Qwen38", {"support_thinking": False}, {"enable_thinking": False}),
    "kimi-k2-thinking": Judged("kimi-k2-thinking", "KimiK2"),
    "glm-5.2": Judged("glm-5.2", "Glm52", options=_ENDS),
    "glm-5.3": Judged("glm-5.3", "Glm53", {"clear_thinking": False}, _ENDS),
    "glm-5.3, low effort": Judged("glm-5.3", "Glm53", {"clear_thinking": False, **_LOW}, {**_ENDS, **_LOW}),
    "glm-5.3-flash": Judged("glm-5.3", "Glm53Flash", {"clear_thinking": False}, _ENDS),
    "deepseek-r1": Judged("deepseek-r1", "DeepSeekR1", tools=False, respelled={"</think>": "\n</think>\n\n"}),
    # several options together, and their other values
    "qwen3 without thinking that keeps reasoning": Judged(
        "qwen3", "Qwen3", {"prefix_empty_thinking": True, **_KEPT}, {"enable_thinking": False, **_KEEPS}
    ),
    "qwen3.5 without thinking that keeps reasoning": Judged(
        "qwen3.5", "Qwen35", {"enable_thinking": False, **_KEPT}, {"enable_thinking": False, **_KEEPS}
    ),
    "qwen3.8, medium effort": Judged("qwen3.8", "Qwen38", _MEDIUM, _MEDIUM),
    "qwen3.8 that drops reasoning": Judged(
        "qwen3.8", "Qwen38", {"strip_thinking_from_history": True}, {"preserve_thinking": False}
    ),
    "qwen3.8 without thinking that drops reasoning": Judged(
        "qwen3.8",
        "Qwen38",
        {"support_thinking": False, "strip_thinking_from_history": True},
        {"enable_thinking": False, "preserve_thinking": False},
    ),
    "deepseek-v4-preview in chat mode": Judged(
        "deepseek-v4-preview", "DeepSeekV4", _PREVIEW | _CHAT, {"thinking": False}
    ),
    "deepseek-v4.1, maximal effort": Judged("deepseek-v4.1", "DeepSeekV41", _MAX, _MAX),
    "deepseek-v4.1, effort 1": Judged("deepseek-v4.1", "DeepSeekV41", _ONE, _ONE),
    "kimi-k2.5 without thinking that keeps reasoning": Judged(
        "kimi-k2.5", "KimiK25", {"support_thinking": False, **_KEPT}, {"thinking": False, **_KEEPS}
    ),
    "kimi-k2-thinking that keeps reasoning": Judged("kimi-k2-thinking", "KimiK2", _KEPT, _KEEPS),
    "gpt-oss, another identity": Judged(
        "gpt-oss",
        "GptOss",
        {"current_date": DAY, "model_identity": "You are N."},
        {"conversation_start_date": DAY, "model_identity": "You are N.", "text_before_calls": "commentary"},
    ),
    "nemotron-3, low effort, that keeps reasoning": Judged(
        "nemotron-3",
        "Nemotron3",
        {"reasoning_effort": "low", **_KEPT},
        {"ultra": False, "low_effort": True, "truncate_history_thinking": False},
    ),
    "nemotron-3-ultra without thinking that keeps reasoning": Judged(
        "nemotron-3-ultra",
        "Nemotron3",
        {"ultra": True, "support_thinking": False, **_KEPT},
        {"enable_thinking": False, "truncate_history_thinking": False},
    ),
    "glm-5.2, high effort": Judged("glm-5.2", "Glm52", _HIGH, {**_ENDS, **_HIGH}),
    "glm-5.2 that keeps reasoning": Judged(
        "glm-5.2", "Glm52", {"clear_thinking": False}, {**_ENDS, "clear_thinking": False}
    ),
    "glm-5.3, high effort": Judged("glm-5.3", "Glm53", {"clear_thinking": False, **_HIGH}, {**_ENDS, **_HIGH}),
    "glm-5.3 that drops reasoning": Judged("glm-5.3", "Glm53", {}, {**_ENDS, "clear_thinking": True}),
    "glm-5.3-flash, low effort": Judged("glm-5.3", "Glm53Flash", {"clear_thinking": False, **_LOW}, {**_ENDS, **_LOW}),
    "inkling": Judged("inkling", "v0.Renderer", options={"thinking_effort": None, "sampled_header": True}),
}


def _inkling() -> Any:
    return v0.Renderer(tokenizers.O200kBaseChatTokenizer())


KINDS: dict[str, Any] = {"v0.Renderer": _inkling}  # those that are not in `tml_renderers.renderers`


# ---- the two renderers


@shared
def theirs(name: str) -> Any:
    """The renderer of tml-renderers."""
    case = JUDGED[name]
    return _kind(case.kind)(**case.arguments)


def _kind(name: str) -> Any:
    return KINDS.get(name) or getattr(renderers, name)


@shared
def encoder_of(kind: str) -> PieceEncoder:
    """The vocabulary of a class of tml-renderers, opened for us."""
    return _encoder_of(type(_kind(kind)().tokenizer))


@shared
def _encoder_of(tokenizer: type) -> PieceEncoder:
    """Once for all classes with the same vocabulary: loading takes some seconds."""
    return open_encoder(tokenizer())


@shared
def ours(name: str) -> Family:
    """Our family over the same vocabulary; one for all tests, because tests ask for it with each conversation."""
    case = JUDGED[name]
    return FAMILIES[case.family](encoder_of(case.kind), config_of({"name": case.family, **case.options}))  # type: ignore[arg-type]


# ---- our conversation as theirs

_ROLES = {
    "system": chat.AuthorKind.System,
    "developer": chat.AuthorKind.System,
    "user": chat.AuthorKind.User,
    "assistant": chat.AuthorKind.Model,
    "tool": chat.AuthorKind.Tool,
}


def as_tml(messages: Messages, tools: Any = None, *, inkling: bool = False) -> Any:
    """A conversation as native messages: one for each reasoning, text and call, and one that ends an answer.

    For Inkling, as their conversion of OpenAI's messages has it: tools are declared by an author with a name, and there
    is no message for the empty text after a reasoning.
    """
    made = [_declared(tools, "tool_declare" if inkling else None)] if tools else []
    for message in messages:
        author = chat.Author(_ROLES[message["role"]], message.get("name") if message["role"] == "tool" else None)
        known = message.get("tool_call_id")
        metadata = None if known is None else chat.MessageMetadata(tool_call_id=known)
        contents = _contents(message, inkling)
        made += [chat.Message(content, author, message_metadata=metadata) for content in contents]
    return chat.MessageList(made)


def _declared(tools: Any, author: str | None) -> Any:
    specs = [
        chat.ToolSpecJson(tool["type"], function["name"], function["description"], function["parameters"])
        for tool in tools
        for function in [tool["function"]]
    ]
    return chat.Message(chat.ToolDeclareJson(specs), chat.Author(chat.AuthorKind.System, author))


def _contents(message: Mapping[str, Any], inkling: bool) -> list[Any]:
    text = plain_text(message["content"])
    if message["role"] != "assistant":
        return [chat.Text(text)]
    calls = message.get("tool_calls") or []
    reasoning = message.get("reasoning_content")
    found: list[Any] = [] if reasoning is None else [chat.Thinking(reasoning)]
    found += [chat.Text(text)] if text or not (calls or (inkling and reasoning)) else []
    return [*found, *map(_call, calls), chat.ModelEndSampling()]


def _messages(name: str, messages: Messages, tools: Any) -> Any:
    return as_tml(messages, tools, inkling=JUDGED[name].kind == "v0.Renderer")


def _call(call: Mapping[str, Any]) -> Any:
    given = call["function"]["arguments"]
    arguments = json.loads(given) if isinstance(given, str) else given
    return chat.InvokeTool(
        chat.StructuredToolCall(
            call["function"]["name"],
            [chat.ToolArg(name, json.dumps(value, ensure_ascii=False)) for name, value in arguments.items()],
            tool_call_id=call.get("id"),
        )
    )


# ---- what the two make of it


class Sample(NamedTuple):
    """A training sample: ids, and which of them are trained."""

    ids: list[int]
    mask: list[bool]


def ids_of(spans: Sequence[Any]) -> list[int]:
    """The ids of text spans."""
    return [token for span in spans for token in span.span.tokens]


def their_samples(name: str, messages: Messages, tools: Any = None, *, respelled: bool = True) -> list[Sample]:
    """Their training examples, the weights as a mask; `respelled` as `Judged` says."""
    examples = theirs(name).render_for_sft(_messages(name, messages, tools))
    samples = [
        Sample(ids_of(example.input_token_spans), [weight > 0 for weight in example.per_token_loss_weight_unshifted])
        for example in examples
    ]
    return [_kept(name, sample, respelled=respelled) for sample in samples]


def _kept(name: str, sample: Sample, *, respelled: bool = False) -> Sample:
    """A sample without what is ignored, and with what is spelled otherwise as we spell it."""
    case = JUDGED[name]
    spelled = dict.fromkeys(case.ignored, "") | (dict(case.respelled) if respelled else {})
    if not spelled:
        return sample
    encoder = encoder_of(case.kind)
    known = {encoder.added_ids[text]: text for text in spelled}
    ids = {token: encoder.encode_pieces([spelled[text]], [True])[0].tolist() for token, text in known.items()}
    kept = [(one, trained) for token, trained in zip(*sample, strict=True) for one in ids.get(token, [token])]
    return Sample([token for token, _ in kept], [trained for _, trained in kept])


def our_samples(name: str, messages: Messages, tools: Any = None) -> list[Sample]:
    """Our samples of the same conversation, one for each turn that renders differently."""
    closed = JUDGED[name].family.startswith("glm")  # its format does not end the last turn
    samples = build_training_samples(ours(name), messages, tools=tools, ensure_final_stop=closed)
    return [Sample(*sample) for sample in samples]


class Turn(NamedTuple):
    """A stretch of a sample that is trained, `ids[start:]`, with all that comes before it."""

    ids: tuple[int, ...]
    start: int


def turns_of(samples: Sequence[Sample]) -> list[Turn]:
    """What samples train, whichever turns share one: each trained stretch with its context, the shortest first."""
    found = set()
    for ids, mask in samples:
        edges = np.flatnonzero(np.diff(np.array([False, *mask, False])))
        found |= {Turn(tuple(ids[:stop]), start) for start, stop in edges.reshape(-1, 2).tolist()}
    return sorted(found, key=lambda turn: (len(turn.ids), turn))


def their_prompt(name: str, messages: Messages, tools: Any = None) -> list[int]:
    """The ids of the generation prompt."""
    spans, _ = theirs(name).render_for_completion(_messages(name, messages, tools))
    ids = ids_of(spans)
    return _kept(name, Sample(ids, [False] * len(ids))).ids


def our_prompt(name: str, messages: Messages, tools: Any = None) -> list[int]:
    """The ids of ours."""
    return ours(name).render_ids(messages, tools=tools, add_generation_prompt=True)


class Read(NamedTuple):
    """A completion as both read it: calls are names with arguments."""

    content: str
    reasoning: str
    calls: list[tuple[str | None, Any]]


def read_by_them(name: str, messages: Messages, completion: Sequence[int], tools: Any = None) -> Read:
    """What their parser of the prompt before makes of a completion."""
    _, parser = theirs(name).render_for_completion(_messages(name, messages, tools))
    texts: dict[type, list[str]] = {chat.Text: [], chat.Thinking: []}
    calls: list[tuple[str | None, Any]] = []
    for message in parser.parse_tokens(list(completion)):
        found = message.content
        if isinstance(found, chat.InvokeTool):
            calls.append((found.name, {arg.name: json.loads(arg.value) for arg in found.args}))
        elif isinstance(found, chat.Text | chat.Thinking):
            texts[type(found)].append(found.text)
    return Read("".join(texts[chat.Text]), "".join(texts[chat.Thinking]), calls)


def read_by_us(name: str, completion: Sequence[int], tools: Any = None) -> Read:
    """What `parse_response` makes of it."""
    parsed = ours(name).parse_response(completion, tools=tools)
    return Read(
        parsed.content, parsed.reasoning_content or "", [(call.name, call.arguments) for call in parsed.tool_calls]
    )
