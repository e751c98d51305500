"""What `_kernel.c` offers; see `niels_gpt.tokenizer.layout`, `niels_gpt.messages` and `niels_gpt.renderers.chat`."""

from collections.abc import Mapping
from typing import Any

VERSION: int

def layout(texts: list[list[str]], facts: list[list[int]], frames: Mapping[str, bytes]) -> tuple[bytes, ...]: ...
def attribute(
    ids: Any,
    lengths: Any,
    edges: Any,
    pieces: Any,
    control_at: Any,
    control_ids: Any,
) -> tuple[bytes, bytes, bytes, bool, bool]: ...
def encode(
    texts: list[list[str]],
    facts: list[list[int]],
    frames: Mapping[str, bytes],
    lengths: Any,
    backend: Any,
    doubtful: int,
) -> tuple[Any, Any, Any]: ...
def copied(messages: list[Any]) -> list[Any]: ...
def plain_roles(messages: list[Any], allowed: tuple[str, ...]) -> list[str] | None: ...
def json_text(value: Any) -> str | None: ...
def is_json(text: Any) -> bool: ...
