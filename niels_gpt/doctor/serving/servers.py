"""How each inference server is asked for the tokens of a prompt.

=================  ==========================================================  ==============
server             requests                                                    answers
=================  ==========================================================  ==============
vLLM               `/tokenize` with messages, tools, `chat_template_kwargs`    ids
SGLang             `/v1/chat/completions` with `return_prompt_token_ids`       ids
llama.cpp          `/apply-template`, then `/tokenize` as its chat route does  text, ids
TGI                `/chat_tokenize`                                            text, ids
any other          `/v1/chat/completions`, one token: `usage.prompt_tokens`    number of ids
=================  ==========================================================  ==============

Which one it is, is asked of the server: `owned_by` in `/v1/models`, and `/info` for TGI. Redirects are not followed and
proxies of the environment are not used, so that nothing reaches any host but the one that is named.

Sources: docs.vllm.ai (OpenAI-compatible server, tokenizer API), docs.sglang.ai (OpenAI-compatible APIs), llama.cpp's
tools/server/README.md, TGI's openapi.json, transformers' page "Serve CLI".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from niels_gpt.errors import UsageError
from niels_gpt.extras import check_library
from niels_gpt.renderers.client import ServerError, excerpt

if TYPE_CHECKING:
    import httpx

_OWNERS: Final = {"vllm": "vLLM", "sglang": "SGLang", "llamacpp": "llama.cpp"}  # `owned_by` of a model -> the server
OTHER: Final = "OpenAI-compatible"
_TIMEOUT: Final = 120.0  # seconds; the first request may load a model


class Refused(Exception):
    """The server refuses this conversation; the text is its own."""


@dataclass(frozen=True)
class Prompt:
    """The prompt of a conversation as a server tokenizes it.

    Attributes:
        ids: its token ids; `None` where the server returns their number only.
        text: its text, where the server returns it.
    """

    count: int
    ids: list[int] | None = None
    text: str | None = None


# What the routes answer with; other fields of an answer are not read.


class _Answered(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class _Model(_Answered):
    id: str = ""
    owned_by: str | None = None


class _Models(_Answered):
    data: list[_Model] | None = None


class _About(_Answered):
    router: str | None = None
    model_id: str | None = None


class _Tokenized(_Answered):
    tokens: list[int]


class _Templated(_Answered):
    prompt: str


class _Token(_Answered):
    id: int


class _ChatTokenized(_Answered):
    tokenize_response: list[_Token]
    templated_text: str | None = None


class Choice(_Answered):
    """A completion that the server sampled: a message in the OpenAI chat format, and its ids where it returns them."""

    message: dict[str, Any]
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class _Usage(_Answered):
    prompt_tokens: int


class _Chat(_Answered):
    choices: Annotated[list[Choice], Field(min_length=1)]
    usage: _Usage | None = None
    prompt_token_ids: list[int] | None = None


M = TypeVar("M", bound=_Answered)


@dataclass(frozen=True)
class Server:
    """A server that answers. Made by `connect`.

    Attributes:
        root: its URL without `/v1`.
        kind: "vLLM", "SGLang", "llama.cpp", "TGI" or "OpenAI-compatible".
        model: the first that it lists; "" where it lists none.
        kwargs: `chat_template_kwargs` of every request.
    """

    root: str
    kind: str
    model: str
    http: httpx.Client = field(repr=False)
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def returns_ids(self) -> bool:
        """Whether prompts are compared token by token, not by their number alone."""
        return self.kind != OTHER

    def prompt(self, messages: Sequence[Mapping[str, Any]], tools: Any, kwargs: Mapping[str, Any]) -> Prompt:
        """The prompt for the next answer, generation prompt included.

        Raises:
            Refused: the server refuses the conversation. ServerError: it answers with something else than a prompt.
        """
        body = self._body(messages, tools, kwargs)
        if self.kind == "vLLM":
            return _prompt(self._post("/tokenize", {**body, "add_generation_prompt": True}, _Tokenized).tokens)
        if self.kind == "TGI":
            templated = self._post("/chat_tokenize", body, _ChatTokenized)
            return _prompt([token.id for token in templated.tokenize_response], templated.templated_text)
        if self.kind == "llama.cpp":
            text = self._post("/apply-template", body, _Templated).prompt
            # As its chat route: a template's text with the tokenizer's own bos, and control tokens recognised.
            asked = {"content": text, "add_special": True, "parse_special": True}
            return _prompt(self._post("/tokenize", asked, _Tokenized).tokens, text)
        found = self._chat(body, 1, {"return_prompt_token_ids": True} if self.kind == "SGLang" else {})
        if ids := found.choices[0].prompt_token_ids or found.prompt_token_ids:
            return _prompt(ids)
        if found.usage is None:
            raise ServerError(self.root, 200, "an answer without usage.prompt_tokens; no prompt can be compared")
        return Prompt(found.usage.prompt_tokens)

    def answer(self, messages: Sequence[Mapping[str, Any]], tools: Any, kwargs: Mapping[str, Any], most: int) -> Choice:
        """A completion of at most `most` tokens.

        Raises:
            Refused, ServerError: as `prompt`.
        """
        more = {"return_token_ids": True} if self.kind == "vLLM" else {}
        return self._chat(self._body(messages, tools, kwargs), most, more).choices[0]

    def stops_at(self, token: int) -> bool:
        """Whether the server ends an answer at this token: it is made the likeliest of all by `logit_bias`.

        Raises:
            Refused, ServerError: as `prompt`.
        """
        body = self._body([{"role": "user", "content": "Hello"}], None, {})
        bias = {"logit_bias": {str(token): 100.0}}
        return self._chat(body, 2, bias).choices[0].finish_reason == "stop"

    def _body(self, messages: Sequence[Mapping[str, Any]], tools: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        options = {"model": self.model, "tools": tools, "chat_template_kwargs": {**self.kwargs, **kwargs}}
        # What is not set is left out, for servers that do not know these fields; one model needs no name.
        set_ones = {name: value for name, value in options.items() if value}
        return {"messages": [as_sent(message) for message in messages], **set_ones}

    def _chat(self, body: Mapping[str, Any], most: int, more: Mapping[str, Any]) -> _Chat:
        return self._post("/v1/chat/completions", {**body, "max_tokens": most, "temperature": 0, **more}, _Chat)

    def _post(self, path: str, body: Mapping[str, Any], expected: type[M]) -> M:
        status, content = _request(self.http, "POST", self.root + path, body)
        # 400 and 422 are what servers answer to conversations that a template refuses; llama.cpp and transformers: 500.
        if status in (400, 422, 500):
            raise Refused(excerpt(content))
        if status != 200:
            raise ServerError(self.root + path, status, f"{excerpt(content)}{_HINTS.get(status, '')}")
        return _read(self.root + path, content, expected)


_HINTS: Final = {
    401: "; pass api_key= (--api-key)",
    403: "; pass api_key= (--api-key)",
    404: "; the server does not have this route: is the URL the server's root, and is it new enough?",
}


def connect(url: str, *, api_key: str | None = None, kwargs: Mapping[str, Any] | None = None) -> Server:
    """The server at a URL, `http://host:8000` or `http://host:8000/v1`.

    Raises:
        UsageError: no such URL. MissingExtra: httpx is not installed. ServerError: no answer, or of no such server.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UsageError(f"the server is {url!r}; expected its URL, as http://localhost:8000")
    check_library("httpx")
    import httpx

    root = url.rstrip("/").removesuffix("/v1")
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    # A connection for each request: some servers close one after an error.
    limits = httpx.Limits(max_keepalive_connections=0)
    http = httpx.Client(headers=headers, timeout=_TIMEOUT, limits=limits, trust_env=False)
    status, content = _request(http, "GET", f"{root}/v1/models")
    if status in (401, 403):
        raise ServerError(f"{root}/v1/models", status, f"{excerpt(content)}{_HINTS[status]}")
    listed = _read(f"{root}/v1/models", content, _Models).data if status == 200 else []
    kind, model = (_OWNERS.get(listed[0].owned_by or "", OTHER), listed[0].id) if listed else (OTHER, "")
    if kind == OTHER:
        status, content = _request(http, "GET", f"{root}/info")
        about = _read(f"{root}/info", content, _About) if status == 200 else _About()
        if about.router and about.model_id:
            kind, model = "TGI", about.model_id
    return Server(root, kind, model, http, dict(kwargs or {}))


def as_sent(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as clients send it: arguments as JSON text, reasoning under both of its names, nothing of ours."""
    sent = {key: message[key] for key in ("role", "content", "name", "tool_call_id") if key in message}
    if message.get("reasoning_content"):
        # Servers read one of the two: vLLM `reasoning` since 0.12, SGLang and llama.cpp `reasoning_content`.
        sent["reasoning"] = sent["reasoning_content"] = message["reasoning_content"]
    if message.get("tool_calls"):
        sent["tool_calls"] = [_call(call) for call in message["tool_calls"]]
        if not sent["content"]:
            sent["content"] = None
    return sent


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    given = function["arguments"]
    arguments = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    found = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
    return {"id": call["id"], **found} if call.get("id") else found


def _request(http: httpx.Client, method: str, url: str, body: Mapping[str, Any] | None = None) -> tuple[int, bytes]:
    import httpx

    try:
        found = http.request(method, url, json=body)
    except httpx.HTTPError as error:
        raise ServerError(url, None, f"{type(error).__name__}: {error}") from error
    if found.is_redirect:
        raise ServerError(
            url, found.status_code, f"it sends on to {found.headers.get('location')}; name the URL that answers itself"
        )
    return found.status_code, found.content


def _read(url: str, content: bytes, expected: type[M]) -> M:
    try:
        return expected.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ServerError(url, 200, f"{where}: {first['msg'].lower()}; the server says {excerpt(content)}") from error


def _prompt(ids: list[int], text: str | None = None) -> Prompt:
    return Prompt(len(ids), ids, text)
