"""What a server renders of a conversation: what it changes before its template gets it, and transformers' environment.

The template itself is asked what it takes.

::

    reasoning             under every name in use
    arguments of calls    JSON text becomes an object, and JSON text again where the template takes nothing else
    developer             becomes system where the template has no such role
    text parts            one text, joined by newlines, where the template does not write parts
    ids of calls          `functions.NAME:NUMBER` where the template writes ids in the place of names (Kimi)

The package does the same in code of its own.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from functools import cache, cached_property, lru_cache
from itertools import product
from typing import Any

import jinja2

from niels_gpt.renderers.template.renderer import TemplateRenderer

Messages = list[dict[str, Any]]
ONE, TWO, ID, NAME = "first half", "second half", "id0000001", "look_up"


def said(role: str, content: Any = "x", **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **fields}


def calling(arguments: Any) -> dict[str, Any]:
    call = {"id": ID, "type": "function", "function": {"name": NAME, "arguments": arguments}}
    return said("assistant", "", tool_calls=[call])


USER, ANSWER, RESULT = said("user"), said("assistant"), said("tool", tool_call_id=ID, name=NAME)
AROUND: dict[str, tuple[Messages, Messages]] = {
    "system": ([], [USER, ANSWER]),
    "user": ([], [ANSWER]),
    "assistant": ([USER], []),
    "tool": ([USER, calling({"a": 1})], [ANSWER]),
}


class Server:
    """Serves one template; `render` is its output on messages, `None` where it refuses them."""

    def __init__(self, render: Callable[[Messages], str | None]) -> None:
        self._render = render
        self._parts: dict[str, bool] = {}

    def given(self, messages: Messages) -> Messages:
        """The messages as the template gets them."""
        made = [self._given({key: value for key, value in one.items() if value is not None}) for one in messages]
        has_calls = any(message.get("tool_calls") for message in made)
        return with_named_ids(made) if has_calls and self._writes_ids else made

    def _given(self, message: dict[str, Any]) -> dict[str, Any]:
        if message["role"] == "developer" and not self._writes_developers:
            message["role"] = "system"
        content = message.get("content")
        if isinstance(content, list) and not (content and self._writes_parts(message["role"])):  # no parts are no text
            message["content"] = "\n".join(part["text"] for part in content if part["text"])
        if message.get("tool_calls"):
            message["tool_calls"] = [
                {**one, "function": self._function(one["function"])} for one in message["tool_calls"]
            ]
        if "reasoning_content" in message:
            names = ("reasoning_content", "thinking", "reasoning")
            return {**dict.fromkeys(names, message["reasoning_content"]), **message}
        return message

    def _function(self, function: dict[str, Any]) -> dict[str, Any]:
        arguments = function["arguments"]
        decoded = json.loads(arguments) if isinstance(arguments, str) else arguments
        return {**function, "arguments": json.dumps(decoded, ensure_ascii=False) if self._takes_text else decoded}

    # ---- questions, each of which is asked once

    def _text(self, messages: Messages) -> str:
        return self._render(messages) or ""

    @cached_property
    def _writes_developers(self) -> bool:
        return ONE in self._text([said("developer", ONE), USER, ANSWER])

    @cached_property
    def _writes_ids(self) -> bool:
        text = self._text([USER, calling({"a": 1})])
        return ID in text and NAME not in text

    @cached_property
    def _takes_text(self) -> bool:
        """Whether arguments as an object are refused, or written as Python prints them, and those as text are not."""
        for before, after in product(([], [said("system")]), ([RESULT, ANSWER], [])):
            as_object, as_text = (
                self._text([*before, USER, calling(arguments), *after]) for arguments in ({"a": 1}, '{"a": 1}')
            )
            if as_object or as_text:
                return bool(as_text) and (not as_object or ("{'a'" in as_object and "{'a'" not in as_text))
        return False

    def _writes_parts(self, role: str) -> bool:
        """Whether parts of a role are written, and not as Python or JSON print them; true where no text is written."""
        if role not in self._parts:
            self._parts[role] = self._ask_for_parts(role)
        return self._parts[role]

    def _ask_for_parts(self, role: str) -> bool:
        before, after = AROUND.get(role, ([], []))
        before = [self._given(dict(message)) for message in before]
        asked = RESULT if role == "tool" else said(role)
        for following in (after, []):
            if self._text([*before, {**asked, "content": f"{ONE} {TWO}"}, *following]):
                parts = [{"type": "text", "text": ONE}, {"type": "text", "text": TWO}]
                between, two, _ = self._text([*before, {**asked, "content": parts}, *following]).partition(TWO)
                return bool(two) and ONE in between and "type" not in between.partition(ONE)[2]
        return True


def with_named_ids(messages: Messages) -> Messages:
    """The messages with ids that name the function, numbered through the conversation.

    A result gets that of the call with its id; without an id, that of the next call of its name, or of any.
    """
    number, named, waiting, made = 0, dict[str, str](), dict[str, str](), Messages()
    for message in messages:
        waiting = {} if message["role"] == "assistant" else waiting  # id -> name
        if message.get("tool_calls"):
            calls = []
            for call in message["tool_calls"]:
                name = call["function"]["name"]
                calls.append({**call, "id": f"functions.{name}:{number}"})
                named[call.get("id", "")] = calls[-1]["id"]
                waiting[calls[-1]["id"]] = name
                number += 1
            message = {**message, "tool_calls": calls}
        elif message["role"] == "tool":
            of_name = [one for one, name in waiting.items() if name == message.get("name")]
            old = message.get("tool_call_id") or next(iter([*of_name, *waiting]), "")
            message = {**message, **({"tool_call_id": named.get(old, old)} if old else {})}
            waiting.pop(message.get("tool_call_id", ""), None)
        made.append(message)
    return made


# ---- transformers' rendering


@cache
def plain_template(source: str) -> jinja2.Template:
    from transformers.utils.chat_template_utils import _compile_jinja_template

    template: jinja2.Template = _compile_jinja_template(source)
    template.globals["strftime_now"] = lambda form: "2026-01-01"
    return template


def rendered(
    renderer: TemplateRenderer, messages: Messages, tools: Any, gen: bool, variables: dict[str, Any] | None = None
) -> str | None:
    """The text of transformers' environment; `None` where the template refuses or fails."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return plain_template(renderer.source).render(
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=gen,
                **{**renderer.encoder.special_tokens, **(variables or {})},
            )
    except Exception:  # whatever a template fails with
        return None


@lru_cache(maxsize=4)
def _server(renderer: TemplateRenderer, variables: tuple[tuple[str, Any], ...]) -> Server:
    return Server(lambda messages: rendered(renderer, messages, None, False, dict(variables)))


def served(renderer: TemplateRenderer, messages: Messages, variables: dict[str, Any] | None) -> Messages:
    """The messages as a server gives them to the renderer's template."""
    return _server(renderer, tuple((variables or {}).items())).given(messages)


def plainly(
    renderer: TemplateRenderer, messages: Messages, tools: Any, gen: bool, variables: dict[str, Any] | None = None
) -> str | None:
    """What a server renders of messages; `None` where the template refuses or fails."""
    return rendered(renderer, served(renderer, messages, variables), tools, gen, variables)
