"""generate: real clients against a real HTTP server on this machine."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import itertools
import json
import logging
import pickle
import ssl
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from niels_gpt.errors import DataError, MissingExtra, UsageError
from niels_gpt.renderers.base import MultiModalData, ParsedResponse, PlaceholderRange, RenderedTokens
from niels_gpt.renderers.client import Generated, OverlongPromptError, ServerError, generate
from niels_gpt.renderers.completions.parsed import ToolCallParseStatus
from niels_gpt.renderers.families.qwen3 import Qwen3Renderer

pytest.importorskip("tokenizers")
from tests.memory import shared
from tests.renderers.test_template import TOOLS, tokenizer_folder

httpx = pytest.importorskip("httpx")
openai = pytest.importorskip("openai")

CHAT: list[Any] = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
KINDS = ("httpx", "openai")
GENERATE, MODELS = "/inference/v1/generate", "/v1/models"
GOOD_CALL = '<tool_call>\n{"name": "get", "arguments": {"city": "Köln"}}\n</tool_call>'
BAD_CALL = '<tool_call>\n{"name": "get", "arguments": \n</tool_call>'
_numbers = itertools.count()  # limits are kept per process: every server serves a model of its own


@shared
def renderer() -> Qwen3Renderer:
    return Qwen3Renderer(tokenizer_folder())


def ids_of(text: str) -> list[int]:
    ids: list[int] = renderer().encoder.encode_pieces([text], [True])[0].tolist()
    return ids


def answer(text: str, **more: Any) -> dict[str, Any]:
    """What vLLM answers; `more` goes into the choice."""
    ids = ids_of(text)
    entries = [{"token": f"token_id:{token}", "logprob": -at / 8} for at, token in enumerate(ids)]
    choice = {"index": 0, "token_ids": ids, "logprobs": {"content": entries}, "finish_reason": "stop"}
    return {"request_id": "r7", "choices": [choice | more]}


Reply = tuple[int, bytes]


class Server(ThreadingHTTPServer):
    """Answers the two routes with what `on_generate` and `on_models` return, and remembers every request."""

    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.model = f"model-{next(_numbers)}"
        self.seen: list[tuple[str, dict[str, str], Any]] = []
        self.on_generate: Callable[[], Reply] = lambda: (200, json.dumps(answer("hello world<|im_end|>")).encode())
        self.on_models: Callable[[], Reply] = lambda: (200, self.card(4096))

    def card(self, limit: object) -> bytes:
        cards = [{"id": "other", "max_model_len": 1}, {"id": self.model, "max_model_len": limit}]
        return json.dumps({"object": "list", "data": cards}).encode()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def paths(self) -> list[str]:
        return [path for path, _, _ in self.seen]

    def says(self, payload: Any) -> None:
        self.on_generate = lambda: (200, payload if isinstance(payload, bytes) else json.dumps(payload).encode())


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.reply(None, self.server.on_models if self.path == MODELS else lambda: (404, b"no such route"))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.reply(body, self.server.on_generate if self.path == GENERATE else lambda: (404, b"no such route"))

    def reply(self, body: Any, make: Callable[[], Reply]) -> None:
        self.server.seen.append((self.path, {key.lower(): value for key, value in self.headers.items()}, body))
        status, content = make()
        try:
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        except ConnectionError:
            pass  # the client was cancelled

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@cache
def no_certificates() -> ssl.SSLContext:
    """Reading the system's certificates for every client would be most of the time that these tests take."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@asynccontextmanager
async def opened(kind: str, url: str) -> AsyncIterator[Any]:
    if kind == "httpx":
        async with httpx.AsyncClient(base_url=url, timeout=10, verify=no_certificates()) as client:
            yield client
    else:
        bare = openai.DefaultAsyncHttpxClient(verify=no_certificates())
        async with openai.AsyncOpenAI(
            base_url=url, api_key="key", max_retries=0, timeout=10, http_client=bare
        ) as client:
            yield client


def ask(server: Server, kind: str = "httpx", **more: Any) -> Generated:
    """One call with a client of its own."""

    async def run() -> Generated:
        async with opened(kind, server.url + "/v1") as client:
            return await generate(**{**basics(server, client), **more})

    return asyncio.run(run())


def basics(server: Server, client: Any) -> dict[str, Any]:
    return {"client": client, "renderer": renderer(), "messages": CHAT, "model": server.model}


def test_a_renderer_that_reads_whole_completions_only(server: Server) -> None:
    """Renderers of others have no `stream`; without it, and without `prompt_ids`, `generate` works as before."""
    own = renderer()
    names = ("render", "render_ids", "parse_response", "get_stop_token_ids", "bridge_to_next_turn")
    foreign = SimpleNamespace(**{name: getattr(own, name) for name in names})
    assert ask(server, renderer=foreign).content == "hello world"


def test_the_prompt_tells_whether_the_model_is_thinking(server: Server) -> None:
    """Qwen3's own prompt opens no think block; one that does makes what follows reasoning."""
    opened = [*renderer().render_ids(CHAT, add_generation_prompt=True), *ids_of("<think>\n")]
    for said, expected in (("hm", ("hm", "")), ("hm\n</think>\n\nok", ("hm", "ok"))):
        server.says(answer(said + "<|im_end|>"))
        result = ask(server, prompt_ids=opened)
        assert (result.reasoning_content, result.content) == expected


# ---- request and result


@pytest.mark.parametrize("kind", KINDS)
def test_the_request_and_the_result(server: Server, kind: str) -> None:
    sampling = {"temperature": 0.3, "max_tokens": 7, "stop_token_ids": [5, 1], "logprobs": 5}
    result = ask(server, kind, sampling_params=sampling, cache_salt="step-42", priority=0, extra_headers={"X-Id": "7"})
    rendered = renderer().render(CHAT, add_generation_prompt=True)
    stops = renderer().get_stop_token_ids()
    assert server.paths() == [MODELS, GENERATE]
    assert server.seen[1][2] == {
        "model": server.model,
        "token_ids": rendered.token_ids,
        "sampling_params": {
            "temperature": 0.3,
            "max_tokens": 7,
            "stop_token_ids": [5, 1, *[stop for stop in stops if stop not in (5, 1)]],
            "logprobs": 1,
            "skip_special_tokens": False,
        },
        "cache_salt": "step-42",
        "priority": 0,
    }
    assert server.seen[1][1]["x-id"] == "7"
    ids = ids_of("hello world<|im_end|>")
    assert result == {
        "request_id": "r7",
        "prompt_ids": rendered.token_ids,
        "completion_ids": ids,
        "completion_logprobs": [-at / 8 for at in range(len(ids))],
        "content": "hello world",
        "reasoning_content": None,
        "tool_calls": [],
        "finish_reason": "stop",
        "routed_experts": None,
        "multi_modal_data": None,
        "prompt_attribution": rendered,
        "parsed": ParsedResponse("hello world"),
    }
    assert sampling == {"temperature": 0.3, "max_tokens": 7, "stop_token_ids": [5, 1], "logprobs": 5}
    check_value(result)


def check_value(result: Generated) -> None:
    """A frozen value, which also reads as a mapping of its documented fields."""
    names = [field.name for field in dataclasses.fields(Generated)]
    assert list(result) == names
    assert len(result) == len(names)
    assert {name: result[name] for name in names} == {name: getattr(result, name) for name in names}
    assert result.get("kept_tokens") is None
    assert "well_formed_calls" not in result
    with pytest.raises(KeyError):
        result["well_formed_calls"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.content = "x"  # type: ignore[misc]
    documented = str(Generated.__doc__)
    assert all(name in documented for name in names)
    assert pickle.loads(pickle.dumps(result)) == result


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", ["", "/v1/"])
def test_the_route_lies_at_the_root(server: Server, kind: str, end: str) -> None:
    async def run() -> None:
        async with opened(kind, server.url + end) as client:
            await generate(**basics(server, client), max_prompt_len=100)

    asyncio.run(run())
    assert server.paths() == [GENERATE]


def test_tools_are_rendered_and_typed(server: Server) -> None:
    server.says(answer(f"ok\n{GOOD_CALL}<|im_end|>"))
    result = ask(server, tools=TOOLS)
    assert server.seen[1][2]["token_ids"] == renderer().render_ids(CHAT, tools=TOOLS, add_generation_prompt=True)
    (call,) = result["tool_calls"]
    assert call == {
        "id": "call_r7_0",
        "type": "function",
        "function": {"name": "get", "arguments": '{"city": "Köln"}'},
    }
    assert (call.id, call.name, call.arguments) == ("call_r7_0", "get", {"city": "Köln"})
    assert call.status is ToolCallParseStatus.OK
    assert result["completion_ids"][slice(*call.token_span)] == ids_of(GOOD_CALL)
    assert pickle.loads(pickle.dumps(call)).name == "get"
    assert (result["content"], result["finish_reason"]) == ("ok", "tool_calls")
    # The call goes back into the conversation as it is.
    reply = {"role": "assistant", "content": result["content"], "tool_calls": result["tool_calls"]}
    assert f"ok\n{GOOD_CALL}" in renderer().encoder.decode(renderer().render_ids([*CHAT, reply], tools=TOOLS))


def test_malformed_calls_stay_visible(server: Server) -> None:
    server.says(answer(f"{BAD_CALL}<|im_end|>"))
    result = ask(server, tools=TOOLS)
    assert (result.well_formed_calls, result["finish_reason"]) == ([], "stop")
    (attempt,), (shown,) = result["parsed"].tool_calls, result["tool_calls"]
    assert attempt.status is shown.status is ToolCallParseStatus.INVALID_JSON
    assert '{"name": "get", "arguments": ' in attempt.raw
    assert shown["function"] == {"name": None, "arguments": attempt.raw}


# ---- prompts that the caller brings


def test_a_bridged_prompt_keeps_its_attribution(server: Server) -> None:
    first = ask(server)
    bridged = renderer().bridge_to_next_turn(
        first["prompt_ids"], first["completion_ids"], [{"role": "user", "content": "x"}]
    )
    assert bridged is not None
    result = ask(server, messages=[], prompt_ids=bridged.token_ids, prompt_attribution=bridged)
    assert result["prompt_attribution"] is bridged
    assert server.seen[-1][2]["token_ids"] == result["prompt_ids"] == bridged.token_ids


IMAGES = MultiModalData({"image": ["h"]}, {"image": [PlaceholderRange(0, 1)]}, {"image": [{}]})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"prompt_ids": [1, 2], "prompt_attribution": RenderedTokens([1, 2, 3])}, "of 3 tokens .* the 2 of prompt_ids"),
        ({"prompt_ids": [1, 2], "prompt_attribution": RenderedTokens([1, 3])}, "differ"),
        ({"prompt_attribution": RenderedTokens([1, 3])}, "expected prompt_ids with them"),
        ({"multi_modal_data": MultiModalData()}, "expected prompt_ids with them"),
        ({"prompt_ids": [1.5]}, "prompt_ids is .*; expected token ids"),
        ({"prompt_ids": [1], "multi_modal_data": IMAGES}, "has image data; expected text only"),
        (
            {"prompt_ids": [1], "prompt_attribution": RenderedTokens([1], multi_modal_data=IMAGES)},
            "has image data; expected text only",
        ),
        ({"sampling_params": {"n": 2}}, "n=2; expected 1"),
    ],
)
def test_arguments_that_cannot_work(server: Server, given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ask(server, **given)
    assert server.seen == []


# ---- how long a prompt may be


def test_longer_than_the_caller_allows(server: Server) -> None:
    length = len(renderer().render_ids(CHAT, add_generation_prompt=True))
    with pytest.raises(OverlongPromptError) as caught:
        ask(server, max_prompt_len=length - 1)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.prompt_len, again.max_prompt_len, str(again)) == (length, length - 1, str(caught.value))
    assert isinstance(again, DataError)
    assert server.seen == []
    ask(server, max_prompt_len=length)
    assert server.paths() == [GENERATE]


@pytest.mark.parametrize("kind", KINDS)
def test_longer_than_the_model_takes(server: Server, kind: str) -> None:
    server.on_models = lambda: (200, server.card(4))
    for _ in range(2):
        with pytest.raises(OverlongPromptError, match="expected at most 4"):
            ask(server, kind)
    assert server.paths() == [MODELS]
    ask(server, kind, prompt_ids=[1, 2, 3, 4], messages=[])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reply", [(404, b"{}"), (200, b"<html>")])
def test_a_failed_question_is_said_and_asked_again(
    server: Server, kind: str, reply: Reply, caplog: pytest.LogCaptureFixture
) -> None:
    server.on_models = lambda: reply
    with caplog.at_level(logging.WARNING, logger="niels_gpt"):
        ask(server, kind)
        ask(server, kind)
    assert server.paths() == [MODELS, GENERATE] * 2
    (said,) = [record.getMessage() for record in caplog.records]
    assert server.model in said
    assert server.url in said
    assert "not checked" in said
    server.on_models = lambda: (200, server.card(4))
    with pytest.raises(OverlongPromptError):
        ask(server, kind)


# ---- routed experts

DATA = base64.b64encode(bytes(range(24))).decode()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "written",
    [
        f'{{"data":"{DATA}","shape":[2,3,4],"start":5,"dtype":"uint8"}}',
        f'{{ "dtype" : "uint8",\n "shape": [2, 3, 4], "start": 5 ,"data" :\t"{DATA}" }}',
    ],
)
def test_routed_experts_in_any_order(server: Server, kind: str, written: str) -> None:
    trap = '"routed_experts":{"data":"no"}'
    payload = json.dumps({"note": trap, **answer("hello<|im_end|>", stop_reason=trap)})
    payload = payload.replace('"index": 0', f'"routed_experts": {written}, "index": 0')
    server.says(payload.encode())
    result = ask(server, kind)
    assert result["routed_experts"] == {"data": DATA.encode(), "shape": [2, 3, 4], "start": 5, "dtype": "uint8"}
    data = result["routed_experts"]["data"]
    assert isinstance(data, memoryview)
    assert base64.b64decode(data) == bytes(range(24))
    assert result["content"] == "hello"


# ---- servers that fail


def broken(**more: Any) -> dict[str, Any]:
    return answer("hello", **more)


BROKEN: dict[str, tuple[Any, str]] = {
    "no JSON": (b"<html>busy</html>", r"Invalid JSON.*busy"),
    "empty": (b"", "Invalid JSON"),
    "no choices": ({"error": "out of memory"}, "required at choices.*out of memory"),
    "no ids": (broken(token_ids=None), "at choices.0.token_ids"),
    "empty ids": (broken(token_ids=[], logprobs={"content": []}), "at choices.0.token_ids"),
    "no logprobs": (broken(logprobs=None), "at choices.0.logprobs"),
    "null logprob": (broken(token_ids=[1], logprobs={"content": [{"logprob": None}]}), "content.0.logprob"),
    "few logprobs": (broken(token_ids=[1, 2], logprobs={"content": [{"logprob": 0}]}), "found 1 logprobs for 2 tokens"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", BROKEN)
def test_answers_that_are_no_completion(server: Server, kind: str, name: str) -> None:
    payload, said = BROKEN[name]
    server.says(payload)
    with pytest.raises(ServerError, match=said) as caught:
        ask(server, kind)
    assert str(caught.value).startswith(f"{server.url}{GENERATE}: status 200: found ")
    assert len(str(caught.value)) < 600
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.url, again.status) == (str(caught.value), server.url + GENERATE, 200)


@pytest.mark.parametrize(("status", "kind"), [(400, "BadRequestError"), (500, "InternalServerError")])
def test_refusals_by_openai_stay_its_own(server: Server, status: int, kind: str) -> None:
    """Consumers catch openai's errors by kind; the url is a note on them."""
    server.on_generate = lambda: (status, b'{"detail": "prompt too odd"}')
    with pytest.raises(openai.APIStatusError, match=str(status)) as caught:
        ask(server, "openai")
    assert type(caught.value).__name__ == kind
    (note,) = caught.value.__notes__
    assert note.startswith(f"{server.url}{GENERATE}: status {status}: ")
    assert "prompt too odd" in note


def test_a_client_without_patience(server: Server) -> None:
    released = threading.Event()
    server.on_generate = lambda: (200 if released.wait(60) else 500, b"")
    patience = httpx.Timeout(60, read=0.1)  # a busy machine may need longer to connect

    async def run() -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=patience) as client:
            await generate(**basics(server, client), max_prompt_len=100)

    with pytest.raises(ServerError, match=r"no answer: .*ReadTimeout.*longer timeout"):
        asyncio.run(run())
    released.set()


# ---- optional libraries


def test_without_httpx(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with opened("openai", server.url) as client:
            monkeypatch.setitem(sys.modules, "httpx", None)
            try:
                await generate(**basics(server, client))
            finally:
                monkeypatch.undo()

    with pytest.raises(MissingExtra, match=r"pip install 'niels-gpt\[client\]'"):
        asyncio.run(run())
