"""`generate`: a completion from an inference server, by token ids.

It renders a conversation, posts its ids to `/inference/v1/generate` and parses the ids that came back. Prompt and
completion are exactly the ids that the model saw and sampled; nothing is tokenized twice. The order of this module is
that of a call: the result and its errors, `generate`, the request, the answer, and the model's maximum prompt length.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from niels_gpt.errors import DataError, UsageError
from niels_gpt.extras import check_library
from niels_gpt.messages import Message
from niels_gpt.renderers.completions.parsed import Event, ParsedResponse, ParsedToolCall, ToolCallParseStatus
from niels_gpt.renderers.completions.stream import ResponseParser
from niels_gpt.renderers.images.processors import MultiModalData
from niels_gpt.renderers.protocol import Renderer, StreamingRenderer, supports_tools
from niels_gpt.renderers.server_answers import Completed, ServerError, StreamedCompletion, completed, excerpt
from niels_gpt.renderers.types import RenderedTokens
from niels_gpt.tokenizer.pieces import token_id_list

if TYPE_CHECKING:
    import httpx
    from openai import AsyncOpenAI

__all__ = [
    "Generated",
    "OpenAIToolCall",
    "OverlongPromptError",
    "ServerError",
    "generate",
]

_LOG: Final = logging.getLogger(__name__)


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


class OpenAIToolCall(dict[str, Any]):
    """A call in the shape of the OpenAI chat format; a well-formed one (`status` is ok) can go back into `messages`.

    The attributes are those of the `ParsedToolCall`: consumers of the `renderers` package read them (`call.name`), and
    silently drop a call without them. The arguments of a malformed call are the text that is not JSON.
    """

    def __init__(self, call: ParsedToolCall, call_id: str) -> None:
        arguments = call.raw if call.arguments is None and call.status is not ToolCallParseStatus.OK else call.arguments
        text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
        super().__init__(id=call_id, type="function", function={"name": call.name, "arguments": text})
        self.id, self.name, self.arguments = call_id, call.name, call.arguments
        self.raw, self.token_span, self.status = call.raw, call.token_span, call.status


@dataclass(frozen=True, eq=False)  # equal as mappings are
class Generated(Mapping[str, Any]):
    """The result of `generate`. It is also a mapping of its attributes: `result["content"]` is `result.content`.

    Attributes:
        request_id: the server's; "" where it sent none.
        prompt_ids, completion_ids: the ids that the model saw and sampled, its stop included.
        completion_logprobs: one for each id of the completion.
        content, reasoning_content: of the completion as a message; reasoning is `None` where there is none.
        tool_calls: every attempt at a call in order, malformed ones too; see their `status`.
        finish_reason: the server's, but "tool_calls" in place of "stop" where a call is well-formed.
        routed_experts: as the server sent it, with `data`, base64, as bytes; `None` where it sent none.
        multi_modal_data: the images of the prompt.
        prompt_attribution: the rendered prompt; `None` where `prompt_ids` were passed without it.
        parsed: the `ParsedResponse` with content, reasoning and calls.
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
    on_event: Callable[[Event], object] | None = None,
) -> Generated:
    """One completion. Rendering and parsing run in threads, so the event loop stays free.

    Args:
        client: `openai.AsyncOpenAI`, or `httpx.AsyncClient(base_url=..., timeout=...)`; the default timeout of httpx is
            five seconds. A `/v1` at the end of the base url is not part of the server's root.
        prompt_ids: the prompt as it is, for example of `bridge_to_next_turn`; default `messages`, rendered.
        prompt_attribution: the rendering of `prompt_ids`; it is returned unchanged.
        multi_modal_data: the images of `prompt_ids`; default those of `prompt_attribution`.
        sampling_params: sent unchanged, but `stop_token_ids` gain the renderer's, and `logprobs` is 1.
            A server without `max_tokens` uses its own default (vLLM: 16).
        max_prompt_len: default the model's `max_model_len` in `GET /v1/models`, requested once per process; if the
            server does not list it, the length is not checked.
        on_event: is called in the event loop with each event (`renderers/completions/parsed.py`) of a completion that
            the server streams: reasoning, content and calls as they are sampled. The result is the same as without.

    Raises:
        UsageError: arguments that contradict each other; tools for a renderer that reads no calls; `on_event` for a
            renderer without `stream`.
        MissingExtra: httpx is not installed.
        OverlongPromptError: the prompt is longer than it may be.
        ServerError: the server sent no completion. Exceptions of `AsyncOpenAI` pass through, with a note of the url.
    """
    _optional_httpx()  # before any work is done
    if tools and not supports_tools(renderer):
        raise UsageError(
            f"found tools for a {type(renderer).__name__}, which reads no tool calls from completions; expected a "
            "renderer of a family with calls, or a tool_parser beside the template"
        )
    if on_event is not None and not isinstance(renderer, StreamingRenderer):
        raise UsageError(f"found on_event for a {type(renderer).__name__} without stream; leave on_event out")
    root = str(client.base_url).rstrip("/")
    if not root:
        raise UsageError("the client has no base_url; expected httpx.AsyncClient(base_url='http://host:8000/v1')")
    # openai's clients are made with `.../v1`, and `/inference/v1/generate` is beside that path, not below it.
    root = root.removesuffix("/v1")
    # The stop is a special token and its id must come back, and every token needs its logprob.
    sampling = {"skip_special_tokens": False, **(sampling_params or {}), "logprobs": 1}
    if sampling.get("n") not in (None, 1):
        raise UsageError(f"sampling_params have n={sampling['n']!r}; expected 1. Call generate as often as you need")
    prompt = await asyncio.to_thread(
        _prepared, renderer, messages, tools, prompt_ids, prompt_attribution, multi_modal_data
    )
    if max_prompt_len is None:
        max_prompt_len = await _limit_of(client, root, model, extra_headers)
    if max_prompt_len is not None and len(prompt.ids) > max_prompt_len:
        raise OverlongPromptError(prompt_len=len(prompt.ids), max_prompt_len=max_prompt_len)
    # The caller's, then the renderer's, each once.
    sampling["stop_token_ids"] = list(dict.fromkeys([*(sampling.get("stop_token_ids") or ()), *prompt.stops]))
    options: dict[str, Any] = {"cache_salt": cache_salt, "priority": priority}
    body: dict[str, Any] = {"model": model, "token_ids": prompt.ids, "sampling_params": sampling}
    # What is not set is left out, for servers that do not know these fields.
    body |= {name: value for name, value in options.items() if value is not None}
    url = f"{root}/inference/v1/generate"
    if on_event is not None and isinstance(renderer, StreamingRenderer):
        parser = renderer.stream(prompt.ids, tools=tools)
        payloads = _payloads(client, url, body | {"stream": True}, extra_headers)
        completion = await _stream(payloads, url, parser, on_event)
        return _result(prompt, completion, parser.result())
    status, content = await _post(client, url, body, extra_headers)
    # Of a completion of 32k tokens, reading the JSON and the text would hold the event loop for tens of milliseconds.
    completion, parsed = await asyncio.to_thread(_read, renderer, prompt.ids, tools, url, status, content)
    return _result(prompt, completion, parsed)


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
        ids = token_id_list(prompt_ids, "prompt_ids")
        if attribution is not None and list(attribution.token_ids) != ids:
            raise UsageError(
                f"prompt_attribution is of {len(attribution.token_ids)} tokens that differ from the {len(ids)} of "
                "prompt_ids; expected the same. Pass prompt_ids=attribution.token_ids"
            )
    if media is None and attribution is not None:
        media = attribution.multi_modal_data
    if media is not None and not media.is_empty():
        # vLLM sends images as pickles of its own classes; anything else would be misread there.
        kinds = ", ".join(media.mm_placeholders or media.mm_items or media.mm_hashes)
        raise UsageError(f"the prompt has {kinds} data; expected text only. Use the server's chat endpoint for it")
    return _Prompt(ids, renderer.get_stop_token_ids(), attribution, media)


async def _post(client: Any, url: str, body: dict[str, Any], headers: Mapping[str, str] | None) -> tuple[int, bytes]:
    """Status and body of a successful answer."""
    httpx = _optional_httpx()
    if not isinstance(client, httpx.AsyncClient):
        options = {"headers": dict(headers)} if headers else {}
        try:
            # `cast_to=httpx.Response`: the answer as it came, not parsed as one of openai's own objects.
            raw = await client.post(url, cast_to=httpx.Response, body=body, options=options)
        # Whatever openai's client raises, its own errors or those of its transport: callers catch them by class, so the
        # exception gets a note and is not replaced.
        except Exception as error:
            error.add_note(f"{url}: {_server_answer(error)}")
            raise
        return raw.status_code, raw.content
    try:
        response = await client.post(url, json=body, headers=headers)
    except httpx.HTTPError as error:
        raise _no_answer(url, error) from error
    if not response.is_success:
        raise _refused(url, response.status_code, response.content)
    return response.status_code, response.content


async def _payloads(
    client: Any, url: str, body: dict[str, Any], headers: Mapping[str, str] | None
) -> AsyncGenerator[tuple[int, Any]]:
    """The status, and each part of a completion that the server streams: a line of the stream, or its JSON."""
    httpx = _optional_httpx()
    if isinstance(client, httpx.AsyncClient):
        try:
            async with client.stream("POST", url, json=body, headers=headers) as response:
                if not response.is_success:
                    raise _refused(url, response.status_code, await response.aread())
                async for line in response.aiter_lines():
                    yield response.status_code, line
        except httpx.HTTPError as error:
            raise _no_answer(url, error) from error
        return
    from openai import AsyncStream

    options = {"headers": dict(headers)} if headers else {}
    try:
        stream = await client.post(
            url, cast_to=object, body=body, options=options, stream=True, stream_cls=AsyncStream[object]
        )
        # openai's client reads the lines of the stream itself, and gives the JSON of each.
        async for payload in stream:
            yield stream.response.status_code, payload
    except Exception as error:  # everything that the caller's client raises gets the note, as in `_post`
        error.add_note(f"{url}: {_server_answer(error)}")
        raise


async def _stream(
    payloads: AsyncGenerator[tuple[int, Any]], url: str, parser: ResponseParser, on_event: Callable[[Event], object]
) -> Completed:
    """A completion that the server sends part by part; the parser's events are reported as they come."""
    parts = StreamedCompletion(url)
    async with contextlib.aclosing(payloads) as each:
        async for status, payload in each:
            for event in parser.feed(parts.take(status, payload)):
                on_event(event)
    for event in parser.finish():
        on_event(event)
    return parts.whole()


def _refused(url: str, status: int, content: bytes) -> ServerError:
    return ServerError(url, status, f"expected a completion. The server says {excerpt(content)}")


def _no_answer(url: str, error: Exception) -> ServerError:
    remedy = "see that the server runs; if it is only slow, give the client a longer timeout"
    found = f"{str(error) or 'nothing came'} ({type(error).__name__})"
    return ServerError(url, None, f"{found}; expected a completion; {remedy}")


def _server_answer(error: Exception) -> str:
    """The server's answer in an exception of openai, whose messages leave it out."""
    openai = sys.modules.get("openai")  # if it was never imported, no exception is its own
    if openai is not None and isinstance(error, openai.APIStatusError):
        return f"status {error.status_code}: the server says {excerpt(error.response.content)}"
    return "no answer; see that the server runs"


# ---- the answer


def _read(
    renderer: Renderer, prompt_ids: list[int], tools: Any, url: str, status: int, content: bytes
) -> tuple[Completed, ParsedResponse]:
    completion = completed(url, status, content)
    if isinstance(renderer, StreamingRenderer):
        return completion, renderer.parse_response(completion.ids, tools=tools, prompt_ids=prompt_ids)
    return completion, renderer.parse_response(completion.ids, tools=tools)


def _result(prompt: _Prompt, completion: Completed, parsed: ParsedResponse) -> Generated:
    # Formats without ids get some that are unique over requests, because results name them in later turns.
    prefix = f"call_{completion.request_id}_" if completion.request_id else "call_"
    calls = [OpenAIToolCall(call, call.id or f"{prefix}{at}") for at, call in enumerate(parsed.tool_calls)]
    called = any(call.status is ToolCallParseStatus.OK for call in calls)
    experts = completion.routed_experts
    if isinstance(experts, dict) and isinstance(data := experts.get("data"), str):
        experts = experts | {"data": memoryview(data.encode())}  # users of the `renderers` package expect bytes
    return Generated(
        request_id=completion.request_id,
        prompt_ids=prompt.ids,
        completion_ids=completion.ids,
        completion_logprobs=completion.logprobs,
        content=parsed.content,
        reasoning_content=parsed.reasoning_content,
        tool_calls=calls,
        # A server that is asked for ids reads no calls, so it says "stop" after them.
        finish_reason="tool_calls" if called and completion.finish_reason == "stop" else completion.finish_reason,
        routed_experts=experts,
        multi_modal_data=prompt.media,
        prompt_attribution=prompt.attribution,
        parsed=parsed,
    )


# ---- the maximum prompt length of a model

Key = tuple[str, str]  # a server's root and a model
# For the process, because many calls of `generate` ask the same server about the same model.
_LIMITS: Final[dict[Key, int | None]] = {}
_WARNED: Final[set[Key]] = set()


async def _limit_of(client: Any, root: str, model: str, headers: Mapping[str, str] | None) -> int | None:
    """A model's `max_model_len` in `GET /v1/models`, `None` if the server does not list one.

    An answer is remembered. A failure is warned of once, and the next call asks again.
    """
    key = root, model
    if key in _LIMITS:
        return _LIMITS[key]
    listing: Any = None
    try:
        if isinstance(client, _optional_httpx().AsyncClient):
            response = await client.get(f"{root}/v1/models", headers=headers)
            listing = response.raise_for_status().json()
        else:
            listing = await client.get("/models", cast_to=dict[str, Any])
        problem = "answered no list of models"
    # Each client has its own exceptions. Nothing is hidden: the request that follows goes to the same server, and
    # raises an error that names the problem.
    except Exception as error:
        problem = f"failed ({type(error).__name__}: {error})"
    cards = listing.get("data") if isinstance(listing, Mapping) else None
    if not isinstance(cards, list):
        if key not in _WARNED:
            _WARNED.add(key)
            _LOG.warning("the length of prompts for %s is not checked: GET %s/v1/models %s", model, root, problem)
        return None
    matching = [card for card in cards if isinstance(card, Mapping) and card.get("id") == model]
    limit = matching[0].get("max_model_len") if matching else None
    _LIMITS[key] = limit if type(limit) is int and limit > 0 else None
    return _LIMITS[key]


def _optional_httpx() -> Any:
    """The httpx module, or a `MissingExtra` that names it; `Any`, because type checkers may not have it."""
    check_library("httpx")
    import httpx

    return httpx
