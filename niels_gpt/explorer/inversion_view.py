"""What the page shows of ids or text that were read back: the conversation, its tokens, what is lost, what differs.

A format is one-to-one only as far as different conversations have different ids. To find what is `lost`, the
conversation is changed in each respect that formats are known to drop, and rendered once more: where the ids stay the
same, the ids do not hold what was changed.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import numpy as np

from niels_gpt.errors import MessageError, NielsError, UsageError
from niels_gpt.explorer.boundaries import Chat, Renderer
from niels_gpt.explorer.drift import compare
from niels_gpt.explorer.inversion import Reading, ids_in_text, read_conversation
from niels_gpt.explorer.renderer_list import MOST_CHARACTERS, RendererChoice, RendererList
from niels_gpt.explorer.rendering import RAW, token_table
from niels_gpt.explorer.token_columns import MODES, TokenTable
from niels_gpt.messages import normalise

_TEXT_NOTE = (
    "The text was encoded anew, each control token's spelling as that token. In ids, a control "
    "token that a user typed differs from a real one; in text it does not."
)


def inverted(renderers: RendererList, choice: RendererChoice, given: str) -> dict[str, Any]:
    """A conversation from ids or from rendered text.

    Returns:
        `read_as`: what was given. `state`: "same", "cut" (the ids end within the last message) or "differs", and a
        sentence about it (`verdict`). `conversation`. `prompt`: the ids end with a generation prompt. `note`: a
        remark. `lost`: sentences about what the ids do not hold. `table`: the given tokens with their owners; where
        the rendering differs, `again` and `drift` show how.

    Raises:
        UsageError: no tokenizer, too long, or no turn of this format in it. TokenizerError: an id is not in the
            vocabulary.
    """
    if choice.renderer == RAW:
        raise UsageError("bare text has no turns; choose the format that the ids were written in")
    if not choice.tokenizer:
        raise UsageError("ids are read with the tokenizer that wrote them: start with --tokenizer DIR, then choose it")
    renderer = renderers.renderer(choice)
    ids = ids_in_text(given)
    as_text = ids is None
    if ids is None:
        if not given or len(given) > MOST_CHARACTERS:
            raise UsageError(f"{len(given):,} characters were given; expected 1 to {MOST_CHARACTERS:,}")
        ids = renderer.encoder.encode_pieces([given], [True])[0].tolist()
    reading = read_conversation(renderer, ids)
    rendered: TokenTable | None = None  # stays so where what was read cannot be rendered
    if reading.ids:
        with suppress(NielsError):
            rendered = renderers.table(reading.messages, reading.tools, choice, MODES, prompt=reading.prompt)
    # Ids that end early are a beginning of what is rendered: the end of the last turn is written anew.
    state = "cut" if ids and reading.ids[: len(ids)] == ids else "differs"
    if reading.ids == ids:
        state = "same"
    table = rendered if rendered is not None and state == "same" else _as_read(renderer, reading, ids, choice)
    differs = rendered is not None and state == "differs"
    return {
        "read_as": f"{len(given):,} characters, {len(ids):,} ids" if as_text else f"{len(ids):,} ids",
        "state": state,
        "verdict": _verdict(renderer, reading, ids, state),
        "conversation": {"messages": reading.messages, "tools": reading.tools},
        "prompt": reading.prompt,
        "note": _TEXT_NOTE if as_text else "",
        "lost": lost(renderer, reading),
        "table": table.to_json(),
        "again": rendered.to_json() if rendered is not None and differs else None,
        "drift": asdict(compare(table, rendered)) if rendered is not None and differs else None,
    }


def _as_read(renderer: Renderer, reading: Reading, ids: list[int], choice: RendererChoice) -> TokenTable:
    """The given ids with the owners that were read, where the renderer does not write the same ids."""
    owners = np.full(len(ids), -1, np.int64)
    sampled = np.zeros(len(ids), np.bool_)
    for index, part in enumerate(reading.parts):
        owners[part.start : part.stop] = index
        sampled[part.start : part.stop] = part.role == "assistant"
    facts = owners.tolist(), sampled.tolist(), (owners >= 0).tolist()
    return token_table(
        renderer.encoder,
        ids,
        facts,
        renderer.get_stop_token_ids(),
        normalise(reading.messages),
        MODES,
        note="Owners as read from the ids: the contents only. The renderer does not write these ids.",
        title=choice.renderer,
        renderer=choice.renderer,
        tokenizer=choice.tokenizer,
    )


def _verdict(renderer: Renderer, reading: Reading, ids: list[int], state: str) -> str:
    """A sentence: how far the ids and the conversation determine each other."""
    n = len(reading.messages)
    found = f"{n:,} {'message' if n == 1 else 'messages'}"
    if state == "same":
        end = ", and a generation prompt" if reading.prompt else ""
        return f"= {found}{end}. Rendered again, they give exactly these ids."
    if state == "cut":
        return f"= {found}. The ids end within the last message: rendered again, they give these ids and more."
    if reading.problem:
        return f"≠ {found}, which the format refuses: {reading.problem}"
    if renderer.encoder.decode(ids) == renderer.encoder.decode(reading.ids):
        return f"≠ {found}. Rendered again, they give the same text in other ids: the tokenizer does not write it so."
    first = next((at for at, pair in enumerate(zip(ids, reading.ids, strict=False)) if pair[0] != pair[1]), None)
    at = min(len(ids), len(reading.ids)) if first is None else first
    return f"≠ {found}. Rendered again, they give other ids, first at token {at:,}; what differs is not recovered."


def lost(renderer: Renderer, reading: Reading) -> list[str]:
    """Sentences about what the ids do not determine: changes of the conversation that do not change its rendering."""
    sentences = []
    for sentence, messages, tools in _changes(reading):
        try:
            ids = renderer.render(messages, tools=tools, add_generation_prompt=reading.prompt).token_ids
        except (MessageError, UsageError):  # a change that this format refuses is not lost
            continue
        sentences += [sentence] if ids == reading.ids else []
    return sentences


def _changes(reading: Reading) -> Iterator[tuple[str, Chat, Any]]:
    """Conversations that differ from the one that was read in one respect, each with what is lost if the ids stay.

    The texts that are put in ("zq", "zqc") occur in no format, so they cannot be mistaken for markup.
    """
    given, tools = reading.messages, reading.tools

    def each(role: str, change: Callable[[dict[str, Any]], dict[str, Any]], where: Callable[[int], bool]) -> Chat:
        return [
            {**message, **change(message)} if message["role"] == role and where(at) else message
            for at, message in enumerate(given)
        ]

    roles = list(dict.fromkeys(message["role"] for message in given))
    for role in roles:
        yield (
            f"White space before and after the content of {role} messages: the format strips it.",
            each(role, lambda message: {"content": f"\n {message['content']} \n"}, lambda at: True),
            tools,
        )
    last_user = max((at for at, message in enumerate(given) if message["role"] == "user"), default=-1)

    def without_reasoning(at: int) -> bool:
        return not given[at].get("reasoning_content")

    # Many formats drop reasoning before the last user message only, so the two are changed one at a time.
    places: dict[str, Callable[[int], bool]] = {
        "before the last user message": lambda at: at < last_user and without_reasoning(at),
        "after the last user message": lambda at: at > last_user and without_reasoning(at),
    }
    for name, where in places.items():
        if any(message["role"] == "assistant" and where(at) for at, message in enumerate(given)):
            yield (
                f"Reasoning {name}: the format drops it, so whether there was any is unknown.",
                each("assistant", lambda message: {"reasoning_content": "zqc"}, where),
                tools,
            )
    if any(message.get("tool_calls") for message in given):
        yield from _changes_of_calls(given, tools)
    yield from _changes_of_tools(given, tools)
    if given[0]["role"] == "user" and "\n\n" in given[0]["content"]:
        head, _, rest = given[0]["content"].partition("\n\n")
        merged = [{"role": "system", "content": head}, {**given[0], "content": rest}, *given[1:]]
        yield "Where the system message ends and the first user message begins: the format joins them.", merged, tools
    if "user" in roles:
        named = each("user", lambda message: {"name": "zq"}, lambda at: True)
        yield "Names of users: the format does not write them.", named, tools
    if "assistant" in roles:
        yield (
            "Loss weights and train flags of messages: they choose the mask, and are in no ids.",
            each("assistant", lambda _: {"weight": 0.5}, lambda at: True),
            tools,
        )


def _changes_of_calls(given: Chat, tools: Any) -> Iterator[tuple[str, Chat, Any]]:
    def renamed(change: Callable[[dict[str, Any]], Any]) -> Chat:
        changed = copy.deepcopy(given)
        for message in changed:
            for call in message.get("tool_calls", []):
                change(call)
        return changed

    other = renamed(lambda call: call.update(id=f"zq{call['id']}"))
    for message in other:
        if "tool_call_id" in message:
            message["tool_call_id"] = f"zq{message['tool_call_id']}"
    yield "The ids of tool calls: the format does not write them; those shown are made up.", other, tools

    def reverse(call: dict[str, Any]) -> None:
        arguments = call["function"]["arguments"]
        if isinstance(arguments, dict):
            call["function"]["arguments"] = dict(reversed(arguments.items()))

    if any(len(call["function"]["arguments"]) > 1 for message in given for call in message.get("tool_calls", [])):
        yield "The order of a call's arguments: the format sorts them.", renamed(reverse), tools

    def as_text(call: dict[str, Any]) -> None:
        call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)

    yield "Whether arguments were an object or JSON text: both are written alike.", renamed(as_text), tools
    if any(message.get("name") for message in given if message["role"] == "tool"):
        nameless = [{**message, "name": "zq"} if message["role"] == "tool" else message for message in given]
        yield "The tool's name on its results: the format does not write it there.", nameless, tools


def _changes_of_tools(given: Chat, tools: Any) -> Iterator[tuple[str, Chat, Any]]:
    if not tools:
        function = {"name": "zqname", "description": "zq", "parameters": {"type": "object", "properties": {}}}
        unseen = [{"type": "function", "function": function}]
        yield "Declared tools: the format does not write them, or not here.", given, unseen
        return

    def reversed_keys(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: reversed_keys(held) for key, held in reversed(value.items())}
        return [reversed_keys(held) for held in value] if isinstance(value, list) else value

    if len(tools) > 1:
        yield "The order of the tools: the format sorts them.", given, tools[::-1]
    reordered = [reversed_keys(tool) for tool in tools]
    yield "The order of keys in tool schemas: the format writes its own.", given, reordered
    extra = [{**tool, "function": {**tool["function"], "zq": True}} if "function" in tool else tool for tool in tools]
    yield "Unknown fields of tool declarations: the format leaves them out.", given, extra
