"""Ids to an inference server, ids back, read as a message (document 003, DESIGN 2.3).

`generate` renders a conversation, posts its ids to `/inference/v1/generate` and parses what came back. Prompt and
completion are exactly the ids that the model saw and sampled; nothing is tokenized twice.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from operator import index
from typing import TYPE_CHECKING, Any, Final

from niels_gpt.errors import DataError, UsageError
from niels_gpt.messages import Message
from niels_gpt.renderers.limits import LIMITS, ask_limit, optional_httpx
from niels_gpt.renderers.parsing import ParsedResponse, ParsedToolCall, ToolCallParseStatus
from niels_gpt.renderers.protocol import Renderer, supports_tools
from niels_gpt.renderers.rendered import MultiModalData, RenderedTokens

if TYPE_CHECKING:
    import httpx
    from openai import AsyncOpenAI

__all__ = ["Generated", "OpenAIToolCall", "OverlongPromptError", "ServerError", "generate"]

_EXCERPT: Final = 300  # characters of a body that an error shows


class OverlongPromptError(DataError):
    """The prompt has more tokens than the model takes. Nothing was posted."""

    def __init__(self, *, prompt_len: int, max_prompt_len: int) -> None:
        super().__init__(
            f"the prompt has {prompt_len} tokens; expected at most {max_prompt_len}. "
            "Shorten the conversation, or pass max_prompt_len= if the server takes more"
        )
        self.prompt_len, self.max_prompt_len = prompt_len, max_prompt_len

    def __reduce__(self) -> tuple[partial[OverlongPromptError], tuple[()]]:
        """As for `MissingExtra`."""
        return partial(type(self), prompt_len=self.prompt_len, max_prompt_len=self.max_prompt_len), ()


class ServerError(DataError):
    """An inference server cannot be reached, refuses, or answers what is no completion.

    `status` is the HTTP status, `None` if there was no answer.
    """

    def __init__(self, url: str, status: int | None, detail: str) -> None:
        super().__init__(f"{url}: {'no answer' if status is None else f'status {status}'}: {detail}")
        self.url, self.status, self.detail = url, status, detail

    def __reduce__(self) -> tuple[type[ServerError], tuple[str, int | None, str]]:
        """As for `MissingExtra`."""
        return type(self), (self.url, self.status, self.detail)


class OpenAIToolCall(dict[str, Any]):
    """A call in the shape of the OpenAI chat format; a well-formed one (`status` is ok) can go back into `messages`.

    The attributes are those of the `ParsedToolCall`: consumers of the known package read them (`call.name`), and drop a
    call without a word if they are absent. The arguments of a malformed call are the text that could not be read.
    """

    def __init__(self, call: ParsedToolCall, call_id: str) -> None:
        said = call.raw if call.arguments is None and call.status is not ToolCallParseStatus.OK else call.arguments
        said = said if isinstance(said, str) else json.dumps(said or {}, ensure_ascii=False)
        super().__init__(id=call_id, type="function", function={"name": call.name, "arguments": said})
        self.id, self.name, self.arguments = call_id, call.name, call.arguments
        self.raw, self.token_span, self.status = call.raw, call.token_span, call.status


@dataclass(frozen=True, eq=False)  # equal as mappings are
class Generated(Mapping[str, Any]):
    """What `generate` returns. Each attribute can also be read as in a mapping: `made["content"]` is `made.content`.

    Attributes:
        request_id: the server's; "" where it gave none.
        prompt_ids, completion_ids: what the model saw and sampled, its stop included.
        completion_logprobs: one for each id of the completion.
        content, reasoning_content: of the completion as a message; reasoning is `None` where there is none.
        tool_calls: every attempt at a call in order, malformed ones too; `status` tells them apart.
        finish_reason: the server's, but "tool_calls" in place of "stop" where a call is well-formed.
        routed_experts: as the server sent it, with `data`, base64, as bytes; `None` where it sent none.
        multi_modal_data: of the prompt. prompt_attribution: what is known of its tokens, `None` for `prompt_ids`
            without.
        parsed: the `ParsedResponse` that content, reasoning and calls are of.
    """

    request_id: str
    prompt_ids: list[int] = field(repr=False)
    completion_ids: list[int] = field(repr=False)
    completion_logprobs: list[float] = field(repr=False)
    content: str
    reasoning_content: str | None
    tool_calls: list[OpenAIToolCall]
    finish_reason: str | None
    routed_experts: Any = field(repr=False)
    multi_modal_data: MultiModalData | None = field(repr=False)
    prompt_attribution: RenderedTokens | None = field(repr=False)
    parsed: ParsedResponse = field(repr=False)

    @property
    def well_formed_calls(self) -> list[OpenAIToolCall]:
        """The calls that can be answered, and go back into `messages`."""
        return [call for call in self.tool_calls if call.status is ToolCallParseStatus.OK]

    def __getitem__(self, name: str) -> Any:
        if name not in _GENERATED:
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(_GENERATED)

    def __len__(self) -> int:
        return len(_GENERATED)


_GENERATED = tuple(each.name for each in fields(Generated))


async def generate(
    *,
    client: AsyncOpenAI | httpx.AsyncClient,
    renderer: Renderer,
    messages: Sequence[Message],
    model: str,
    prompt_ids: Sequence[int] | None = None,
    prompt_attribution: RenderedTokens | None = None,
    multi_modal_data: MultiModalData | None = None,
    tools: Any = None,
    sampling_params: Mapping[str, Any] | None = None,
    cache_salt: str | None = None,
    priority: int | None = None,
    extra_headers: Mapping[str, str] | None = None,
    max_prompt_len: int | None = None,
) -> Generated:
    """One completion. Rendering and parsing run in threads, so the event loop stays free.

    Args:
        client: `openai.AsyncOpenAI`, or `httpx.AsyncClient(base_url=..., timeout=...)`; httpx gives up after five
            seconds unless told otherwise. A `/v1` at the end of the base url is not part of the server's root.
        prompt_ids: the prompt as it is, for example of `bridge_to_next_turn`; default `messages`, rendered.
        prompt_attribution: what is known of `prompt_ids`; it comes back unchanged.
        multi_modal_data: of `prompt_ids`; default that of `prompt_attribution`.
        sampling_params: to the server as they are, but `stop_token_ids` gain the renderer's, and `logprobs` is 1.
            A server without `max_tokens` uses its own default (vLLM: 16).
        max_prompt_len: default the model's `max_model_len` in `GET /v1/models`, asked for once per process; a server
            that does not tell is not checked.

    Raises:
        UsageError: arguments that do not fit each other; tools for a renderer that reads no calls.
        MissingExtra: httpx is not installed.
        OverlongPromptError: the prompt is longer than it may be.
        ServerError: no completion came. What `AsyncOpenAI` itself raises stays what it is, with a note of the url.
    """
    optional_httpx()  # before any work is done
    if tools and not supports_tools(renderer):
        raise UsageError(
            f"found tools for a {type(renderer).__name__}, which reads no tool calls from completions; expected a "
            "renderer of a family with calls, or a tool_parser beside the template"
        )
    root = _server_root(client)
    sampling = _sampling_params(sampling_params or {})
    prompt = await asyncio.to_thread(
        _prepared, renderer, messages, tools, prompt_ids, prompt_attribution, multi_modal_data
    )
    if max_prompt_len is None:
        max_prompt_len = await LIMITS.of((root, model), partial(ask_limit, client, root, model, extra_headers))
    if max_prompt_len is not None and len(prompt.ids) > max_prompt_len:
        raise OverlongPromptError(prompt_len=len(prompt.ids), max_prompt_len=max_prompt_len)
    sampling["stop_token_ids"] = list(dict.fromkeys([*(sampling.get("stop_token_ids") or ()), *prompt.stops]))
    options: dict[str, Any] = {"cache_salt": cache_salt, "priority": priority}
    body: dict[str, Any] = {"model": model, "token_ids": prompt.ids, "sampling_params": sampling}
    body |= {name: value for name, value in options.items() if value is not None}
    url = f"{root}/inference/v1/generate"
    status, content = await _post(client, url, body, extra_headers)
    made, parsed = await asyncio.to_thread(_read, renderer, tools, url, status, content)
    return _result(prompt, made, parsed)


# ---- the request


@dataclass(frozen=True)
class _Prompt:
    ids: list[int]
    stops: list[int]
    attribution: RenderedTokens | None
    media: MultiModalData | None


def _prepared(
    renderer: Renderer,
    messages: Sequence[Message],
    tools: Any,
    prompt_ids: Sequence[int] | None,
    attribution: RenderedTokens | None,
    media: MultiModalData | None,
) -> _Prompt:
    if prompt_ids is None:
        if attribution is not None or media is not None:
            raise UsageError("found prompt_attribution or multi_modal_data; expected prompt_ids with them: pass both")
        attribution = renderer.render(messages, tools=tools, add_generation_prompt=True)
        ids = list(attribution.token_ids)
    else:
        ids = _checked_ids(prompt_ids, attribution)
    if media is None and attribution is not None:
        media = attribution.multi_modal_data
    if media is not None and not media.is_empty():
        # They travel as vLLM's own classes, written by vLLM's own code; a look-alike would be read as something else.
        kinds = ", ".join(media.mm_placeholders or media.mm_items or media.mm_hashes)
        raise UsageError(f"the prompt has {kinds} data; expected text only. Use the server's chat endpoint for it")
    return _Prompt(ids, renderer.get_stop_token_ids(), attribution, media)


def _checked_ids(prompt_ids: Sequence[int], attribution: RenderedTokens | None) -> list[int]:
    try:
        ids = [index(token) for token in prompt_ids]  # numpy's integers become Python's, which JSON can write
    except TypeError as error:
        raise UsageError(f"prompt_ids hold what is no integer ({error}); expected token ids") from error
    if attribution is not None and list(attribution.token_ids) != ids:
        raise UsageError(
            f"prompt_attribution is of {len(attribution.token_ids)} tokens that differ from the {len(ids)} of "
            "prompt_ids; expected the same. Pass prompt_ids=attribution.token_ids"
        )
    return ids


def _sampling_params(given: Mapping[str, Any]) -> dict[str, Any]:
    if given.get("n") not in (None, 1):
        raise UsageError(f"sampling_params have n={given['n']!r}; expected 1. Call generate as often as you need")
    return {"skip_special_tokens": False, **given, "logprobs": 1}


def _server_root(client: AsyncOpenAI | httpx.AsyncClient) -> str:
    base = str(client.base_url).rstrip("/")
    if not base:
        raise UsageError("the client has no base_url; expected httpx.AsyncClient(base_url='http://host:8000/v1')")
    return base.removesuffix("/v1")


async def _post(client: Any, url: str, body: dict[str, Any], headers: Mapping[str, str] | None) -> tuple[int, bytes]:
    """Status and body of an answer of success."""
    httpx = optional_httpx()
    if not isinstance(client, httpx.AsyncClient):
        options = {"headers": dict(headers)} if headers else {}
        try:
            raw = await client.post(url, cast_to=httpx.Response, body=body, options=options)
        except Exception as error:
            # Consumers catch the kinds of this client, and openai may not be installed here: a note, not another kind.
            error.add_note(f"{url}: {_told_by(error)}")
            raise
        return raw.status_code, raw.content
    try:
        response = await client.post(url, json=body, headers=headers)
    except httpx.HTTPError as error:
        remedy = "see that the server runs; if it is only slow, give the client a longer timeout"
        found = f"{str(error) or 'nothing came'} ({type(error).__name__})"
        raise ServerError(url, None, f"{found}; expected a completion; {remedy}") from error
    if not response.is_success:
        said = _excerpt(response.content)
        raise ServerError(url, response.status_code, f"expected a completion. The server says {said}")
    return response.status_code, response.content


def _told_by(error: Exception) -> str:
    """What the server said, of errors that carry it (openai's messages leave it out)."""
    openai = sys.modules.get("openai")  # where it was never imported, no error is its own
    if openai is not None and isinstance(error, openai.APIStatusError):
        return f"status {error.status_code}: the server says {_excerpt(error.response.content)}"
    return "no answer; see that the server runs"


# ---- the answer


@dataclass(frozen=True)
class _Completion:
    request_id: str
    ids: list[int]
    logprobs: list[float]
    finish_reason: str | None
    routed_experts: Any


def _read(renderer: Renderer, tools: Any, url: str, status: int, content: bytes) -> tuple[_Completion, ParsedResponse]:
    made = _completion(url, status, content)
    return made, renderer.parse_response(made.ids, tools=tools)


def _completion(url: str, status: int, content: bytes) -> _Completion:
    """The first choice, every part checked: a sample with a hole would be trained on.

    `json.loads` reads routed experts with the rest. Measured: 0.9 ms per MB of base64, beside 26 ms for 32k tokens with
    their logprobs; cutting the text out beforehand would save 16 ms of 42 at 20 MB, and has to know where strings end.
    """

    def wrong(found: str, expected: str) -> ServerError:
        return ServerError(url, status, f"found {found}; expected {expected}. The server says {_excerpt(content)}")

    try:
        payload = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise wrong(f"no JSON ({type(error).__name__}: {error})", "an object with choices") from error
    choices = payload.get("choices") if isinstance(payload, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise wrong("no choice", "choices with one object")
    choice = choices[0]
    ids, logprobs = choice.get("token_ids"), choice.get("logprobs")
    if not isinstance(ids, list) or not ids or not all(type(token) is int and token >= 0 for token in ids):
        raise wrong("choices[0].token_ids that are no ids, or none", "at least one id")
    told = logprobs.get("content") if isinstance(logprobs, dict) else None
    entries = told if isinstance(told, list) else []
    values: list[Any] = [entry.get("logprob") if isinstance(entry, dict) else None for entry in entries]
    if len(values) != len(ids):
        raise wrong(f"{len(values)} logprobs for {len(ids)} tokens", "one for each")
    if not all(type(value) in (int, float) and math.isfinite(value) for value in values):
        raise wrong("logprobs that are no finite numbers", "choices[0].logprobs.content[*].logprob")
    request_id, reason = payload.get("request_id"), choice.get("finish_reason")
    return _Completion(str(request_id or ""), ids, list(map(float, values)), reason, choice.get("routed_experts"))


def _excerpt(content: bytes) -> str:
    text = " ".join(content[: 4 * _EXCERPT].decode(errors="replace").split())
    return repr(text if len(text) <= _EXCERPT else text[: _EXCERPT - 3] + "...")


def _result(prompt: _Prompt, made: _Completion, parsed: ParsedResponse) -> Generated:
    prefix = f"call_{made.request_id}_" if made.request_id else "call_"
    calls = [OpenAIToolCall(call, call.id or f"{prefix}{at}") for at, call in enumerate(parsed.tool_calls)]
    called = any(call.status is ToolCallParseStatus.OK for call in calls)
    return Generated(
        request_id=made.request_id,
        prompt_ids=prompt.ids,
        completion_ids=made.ids,
        completion_logprobs=made.logprobs,
        content=parsed.content,
        reasoning_content=parsed.reasoning_content,
        tool_calls=calls,
        finish_reason="tool_calls" if called and made.finish_reason == "stop" else made.finish_reason,
        routed_experts=_with_bytes(made.routed_experts),
        multi_modal_data=prompt.media,
        prompt_attribution=prompt.attribution,
        parsed=parsed,
    )


def _with_bytes(routed_experts: Any) -> Any:
    """Routed experts with their base64 text as bytes, as decoders and consumers of the known package take it."""
    if isinstance(routed_experts, dict) and isinstance(data := routed_experts.get("data"), str):
        return routed_experts | {"data": memoryview(data.encode())}
    return routed_experts
