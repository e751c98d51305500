"""Golden readings of completions: what a model wrote, and below it what is read.

`completions/READER.txt` is for one family or pair of parsers::

    # Completions that are read as qwen3 reads them.
    options      | {"renderer": "qwen3"}
    completion   | Here.<tool_call>{"name": "f", "arguments": {}}</tool_call>
    content      | Here.
    call         | ok f {}

    prompt       | <think>\\n
    completion   | hm</think>so
    ...

`spelled` is text whose tags are no tokens; `prompt` is the end of the prompt, where it is given; `tool` declares one.
For a new case, write its inputs down; `python -m tests.golden update completions` adds what is read.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from niels_gpt.renderers.completions.parsed import ParsedResponse
from niels_gpt.renderers.template.renderer import TemplateRenderer
from tests.golden import FOLDER, block, blocks
from tests.renderers.small import CHATML
from tests.renderers.tiny_families import Tokens, byte_level, renderer_of

COMPLETIONS = FOLDER / "completions"
INPUTS = ("options", "prompt", "completion", "spelled", "tool")


def cases_of(text: str) -> Iterator[tuple[list[tuple[str, str]], Any, list[int], dict[str, Any]]]:
    """The cases of a file: its blocks, the renderer, the completion's ids, and keywords of `parse_response`."""
    renderer: Any = None
    for is_input, run in groupby(blocks(text.partition("\n")[2]), lambda one: one[0] in INPUTS):
        if not is_input:
            continue
        given = [*run]
        for margin, inside in given:
            renderer = _reader(json.loads(inside)) if margin == "options" else renderer
        prompt = [inside for margin, inside in given if margin == "prompt"]
        tools = [json.loads(inside) for margin, inside in given if margin == "tool"]
        parts = [(inside, margin == "completion") for margin, inside in given if margin in ("completion", "spelled")]
        ids = _ids(renderer, [text for text, _ in parts], [is_markup for _, is_markup in parts])
        options = {"prompt_ids": _ids(renderer, prompt, [True])} if prompt else {}
        yield given, renderer, ids, {**options, "tools": tools or None}


def _ids(renderer: Any, texts: list[str], markup: list[bool]) -> list[int]:
    ids: list[int] = renderer.encoder.encode_pieces(texts, markup)[0].tolist()
    return ids


def _reader(options: dict[str, Any]) -> Any:
    if "renderer" in options:
        return renderer_of(options.pop("renderer"), *options.items())
    controls, added = ("<|im_end|>", "<|im_start|>"), tuple(options.pop("added", ()))
    return TemplateRenderer(byte_level(Tokens(controls, added)), template=CHATML, stops=controls[:1], **options)


def read(text: str) -> str:
    """The text of a file with what is read now in the place of what it holds."""
    found = [text.partition("\n")[0]]
    for given, renderer, ids, options in cases_of(text):
        for margin, inside in given:
            found += block(margin, inside) or [f"{margin:12} | "]
        found += [*_lines(renderer.parse_response(ids, **options)), ""]
    return "\n".join(found)


def _lines(parsed: ParsedResponse) -> Iterator[str]:
    yield from block("content", parsed.content) or ["content      | "]
    yield from block("reasoning", parsed.reasoning_content or "")
    for call in parsed.tool_calls:
        arguments = "none" if call.arguments is None else json.dumps(call.arguments, ensure_ascii=False)
        known = "" if call.id is None else f" {call.id}"
        yield from block("call", f"{call.status.value} {call.name or '-'}{known} {arguments}")


def update() -> None:
    """Write what is read now into all files."""
    for file in sorted(COMPLETIONS.glob("*.txt")):
        file.write_text(read(file.read_bytes().decode()), encoding="utf-8", newline="\n")


def difference(file: Path) -> str:
    """What is read otherwise than a file says, as a diff; "" for nothing."""
    old = file.read_bytes().decode()
    return "\n".join(difflib.unified_diff(old.splitlines(), read(old).splitlines(), file.name, "read", n=3))
