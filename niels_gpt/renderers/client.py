"""`generate`: a completion from an inference server, by token ids.

It renders a conversation, posts its ids to `/inference/v1/generate` and parses the ids that came back. Prompt and
completion are exactly the ids that the model saw and sampled; nothing is tokenized twice. The order of this module is
that of a call: the result and its errors, `generate`, the request, the answer, and the model's maximum prompt length.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import BaseModel, Field, FiniteFloat, StrictInt, ValidationError

from niels_gpt.errors import DataError, UsageError
from niels_gpt.extras import check_library
from niels_gpt.messages import Message
from niels_gpt.renderers.completions.parsed import ParsedResponse, ParsedToolCall, ToolCallParseStatus
from niels_gpt.renderers.images.processors import MultiModalData
from niels_gpt.renderers.protocol import Renderer, StreamingRenderer, supports_tools
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
_EXCERPT: Final = 300  # characters of a body that an error shows


class ServerError(DataError):
    """An inference server cannot be reached, refuses, or does not answer with a completion.

    `status` is the HTTP status, `None` if there was no answer.
    """

    def __init__(self, url: str, status: int | None, detail: str) -> None:
        super().__init__(f"{url}: {'no answer' if status is None else f'status {status}'}: {detail}")
        self.url, self.status, self.detail = url, status, detail

    def __reduce__(self) -> tuple[type[ServerError], tuple[str, int | None, str]]:
        """As for `MissingExtra`."""
        return type(self), (self.url, self.status, self.detail)


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

    Raises:
        UsageError: arguments that contradict each other; tools for a renderer that reads no calls.
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
    status, content = await _post(client, url, body, extra_headers)
    # Of a completion of 32k tokens, reading the JSON and the text would hold the event loop for tens of milliseconds.
    answer, parsed = await asyncio.to_thread(_read, renderer, prompt.ids, tools, url, status, content)
    return _result(prompt, answer, parsed)


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


def _refused(url: str, status: int, content: bytes) -> ServerError:
    return ServerError(url, status, f"expected a completion. The server says {excerpt(content)}")


def _no_answer(url: str, error: Exception) -> ServerError:
    remedy = "see that the server runs; if it is only slow, give the client a longer timeout"
    found = f"{str(error) or 'nothing came'} ({type(error).__name__})"
    return ServerError(url, None, f"{found}; expected a completion; {remedy}")


def excerpt(content: bytes) -> str:
    """The beginning of a body, for errors."""
    # A character has up to four bytes; the rest of a body of megabytes is not decoded.
    text = " ".join(content[: 4 * _EXCERPT].decode(errors="replace").split())
    return repr(text if len(text) <= _EXCERPT else text[: _EXCERPT - 3] + "...")


def _server_answer(error: Exception) -> str:
    """The server's answer in an exception of openai, whose messages leave it out."""
    openai = sys.modules.get("openai")  # if it was never imported, no exception is its own
    if openai is not None and isinstance(error, openai.APIStatusError):
        return f"status {error.status_code}: the server says {excerpt(error.response.content)}"
    return "no answer; see that the server runs"


# ---- the answer


class _Entry(BaseModel):
    logprob: Annotated[FiniteFloat, Field(strict=True)]


class _Logprobs(BaseModel):
    content: list[_Entry]


class _Choice(BaseModel):
    """A completion as the server sent it; what is trained on is checked."""

    token_ids: Annotated[list[Annotated[StrictInt, Field(ge=0)]], Field(min_length=1)]
    logprobs: _Logprobs
    finish_reason: Any = None
    routed_experts: Any = None


class _Answer(BaseModel):
    request_id: Any = None
    choices: Annotated[list[_Choice], Field(min_length=1)]


def _answer(url: str, status: int, content: bytes) -> _Answer:
    """A server's answer; `ServerError` if it is no completion."""
    try:
        answer = _Answer.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        found = f"{first['msg']} at {'.'.join(map(str, first['loc'])) or 'the top'}"
        raise ServerError(url, status, f"found no completion: {found}. The server says {excerpt(content)}") from error
    ids, logprobs = len(answer.choices[0].token_ids), len(answer.choices[0].logprobs.content)
    # Without this check a response with fewer logprobs would train on those of other tokens.
    if ids != logprobs:
        raise ServerError(url, status, f"found {logprobs} logprobs for {ids} tokens; expected one for each")
    return answer


def _read(
    renderer: Renderer, prompt_ids: list[int], tools: Any, url: str, status: int, content: bytes
) -> tuple[_Answer, ParsedResponse]:
    answer = _answer(url, status, content)
    ids = answer.choices[0].token_ids
    if isinstance(renderer, StreamingRenderer):
        return answer, renderer.parse_response(ids, tools=tools, prompt_ids=prompt_ids)
    return answer, renderer.parse_response(ids, tools=tools)


def _result(prompt: _Prompt, answer: _Answer, parsed: ParsedResponse) -> Generated:
    completion, request_id = answer.choices[0], str(answer.request_id or "")
    # Formats without ids get some that are unique over requests, because results name them in later turns.
    prefix = f"call_{request_id}_" if request_id else "call_"
    calls = [OpenAIToolCall(call, call.id or f"{prefix}{at}") for at, call in enumerate(parsed.tool_calls)]
    called = any(call.status is ToolCallParseStatus.OK for call in calls)
    experts = completion.routed_experts
    if isinstance(experts, dict) and isinstance(data := experts.get("data"), str):
        experts = experts | {"data": memoryview(data.encode())}  # users of the `renderers` package expect bytes
    return Generated(
        request_id=request_id,
        prompt_ids=prompt.ids,
        completion_ids=completion.token_ids,
        completion_logprobs=[entry.logprob for entry in completion.logprobs.content],
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
