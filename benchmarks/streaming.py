"""A completion of Qwen3 read token by token, and at once; tml-renderers' parser, which takes whole completions only.

One core. The completion has reasoning, an answer and a call, some 2 600 tokens; the longer one has sixteen times the
answer. Qwen3's own tokenizer is needed (`tests/assets.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.pairs import Result, measure
from niels_gpt.renderers.families.qwen3 import Qwen3Renderer
from tests.assets import ASSETS

MODEL = ASSETS / "qwen3-8b"
ROUNDS = 15
REASONING = "First I look at the question, then I weigh what is known. " * 60
ANSWER = "Here is a paragraph with some Größe and numbers 12345, and code `x = 1`.\n" * 60
CALL = '{"name": "look", "arguments": {"city": "Paris", "note": "' + "a longer text that a model writes " * 40 + '"}}'


def run(folder: Path) -> list[Result]:
    """One token at a time, whose cost must not grow with the length of the completion; all at once."""
    del folder
    if not MODEL.is_dir():
        print(f"streaming: no tokenizer in {MODEL} (set NGPT_ASSETS); left out")
        return []
    renderer = Qwen3Renderer(MODEL)
    results = []
    for times in (1, 16):
        text = f"<think>\n{REASONING}\n</think>\n\n{ANSWER * times}\n<tool_call>\n{CALL}\n</tool_call><|im_end|>"
        ids = renderer.encoder.encode_pieces([text], [True])[0].tolist()
        ways = {
            "feed, one token at a time": _by_token(renderer, ids),
            "parse_response": partial(renderer.parse_response, ids),
        }
        if find_spec("tml_renderers") is not None:
            ways["tml-renderers' parse_tokens"] = _theirs(ids)
        case = f"{len(ids):,} tokens"
        results += measure("streaming", case, ways, amounts={"tokens": len(ids)}, rounds=ROUNDS)
    return results


def _by_token(renderer: Qwen3Renderer, ids: list[int]) -> Callable[[], Any]:
    prompt = renderer.render_ids([{"role": "user", "content": "hello"}], add_generation_prompt=True)

    def read() -> Any:
        parser = renderer.stream(prompt)
        for token in ids:
            parser.feed([token])
        return parser.result()

    return read


def _theirs(ids: list[int]) -> Callable[[], Any]:
    from benchmarks.tml import question, theirs

    asked = question("hello")
    return lambda: theirs("qwen3").render_for_completion(asked)[1].parse_tokens(ids)
