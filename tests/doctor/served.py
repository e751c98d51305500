"""Inference servers for `doctor serving`: stand-ins that implement the documented routes, and llama.cpp's own.

A stand-in renders with transformers, on messages that are read as vLLM reads them: arguments are decoded, text parts
are joined by a newline, contents that are missing are empty.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

KINDS = {"vLLM": "vllm", "SGLang": "sglang", "llama.cpp": "llamacpp", "TGI": "a-company", "OpenAI-compatible": "you"}


@dataclass
class Served:
    """How a stand-in differs from the tokenizer's own rendering.

    Attributes:
        template: in place of the tokenizer's.
        before: ids put before each prompt.
        stops: where it ends an answer; the others are sampled on.
        sampled: the answer that it always samples.
    """

    folder: Path
    kind: str = "vLLM"
    template: str | None = None
    before: tuple[int, ...] = ()
    stops: tuple[int, ...] = ()
    sampled: str = "Blue"
    drop_reasoning: bool = False
    refuses: str = ""

    def __post_init__(self) -> None:
        from transformers import AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(self.folder)

    def text(self, body: dict[str, Any]) -> str:
        messages = [self._read(message) for message in body["messages"]]
        if self.refuses and any(self.refuses in str(message) for message in messages):
            raise ValueError(f"found {self.refuses}")
        return str(
            self.tokenizer.apply_chat_template(
                messages,
                tools=body.get("tools"),
                add_generation_prompt=True,
                tokenize=False,
                chat_template=self.template,
                **body.get("chat_template_kwargs", {}),
            )
        )

    def ids(self, text: str) -> list[int]:
        return [*self.before, *self.tokenizer.encode(text, add_special_tokens=False)]

    def _read(self, message: dict[str, Any]) -> dict[str, Any]:
        content = message.get("content") or ""
        if isinstance(content, list):
            content = "\n".join(part["text"] for part in content)
        read = {**message, "content": content}
        if self.drop_reasoning:
            read.pop("reasoning", None), read.pop("reasoning_content", None)
        if message.get("tool_calls"):
            read["tool_calls"] = [
                {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
                for call in message["tool_calls"]
            ]
        return read

    def get(self, path: str) -> dict[str, Any] | None:
        if path == "/v1/models":
            return {"data": [{"id": "tiny", "object": "model", "owned_by": KINDS[self.kind]}]}
        return (
            {"router": "text-generation-router", "model_id": "tiny"} if (path, self.kind) == ("/info", "TGI") else None
        )

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        if (path, self.kind) == ("/tokenize", "vLLM"):
            ids = self.ids(self.text(body))
            return {"count": len(ids), "max_model_len": 4096, "tokens": ids}
        if (path, self.kind) == ("/chat_tokenize", "TGI"):
            text = self.text(body)
            return {
                "templated_text": text,
                "tokenize_response": [{"id": token, "text": ""} for token in self.ids(text)],
            }
        if (path, self.kind) == ("/apply-template", "llama.cpp"):
            return {"prompt": self.text(body)}
        if (path, self.kind) == ("/tokenize", "llama.cpp"):
            return {"tokens": self.ids(body["content"])}
        return self._chat(body) if path == "/v1/chat/completions" else None

    def _chat(self, body: dict[str, Any]) -> dict[str, Any]:
        ids = self.ids(self.text(body))
        bias = [int(token) for token in body.get("logit_bias", {})]
        choice: dict[str, Any] = {
            "message": {"role": "assistant", "content": self.sampled},
            "finish_reason": "stop" if set(bias) & set(self.stops) else "length",
        }
        if body.get("return_prompt_token_ids"):
            choice["prompt_token_ids"] = ids
        if body.get("return_token_ids"):
            choice["token_ids"] = self.tokenizer.encode(self.sampled, add_special_tokens=False)
        return {"choices": [choice], "usage": {"prompt_tokens": len(ids), "completion_tokens": 1}}


@contextmanager
def running(served: Served) -> Iterator[str]:
    """The URL at which a stand-in answers."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None: ...

        def do_GET(self) -> None:
            self._reply(lambda: served.get(self.path))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._reply(lambda: served.post(self.path, body))

        def _reply(self, made: Any) -> None:
            try:
                payload, status = made(), 200
            except Exception as error:  # a template refuses in any way it likes; servers answer with a status
                payload, status = {"error": {"message": str(error)}}, 400
            content = json.dumps(payload if payload is not None else {"detail": "Not Found"}).encode()
            self.send_response(404 if payload is None else status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
