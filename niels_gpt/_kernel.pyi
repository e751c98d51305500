"""What `_kernel.c` offers; see `niels_gpt.tokenizer.layout`."""

from collections.abc import Mapping
from typing import Any

def layout(texts: list[list[str]], facts: list[list[int]], frames: Mapping[str, bytes]) -> tuple[bytes, ...]: ...
def attribute(
    ids: Any,
    lengths: Any,
    edges: Any,
    pieces: Any,
    control_at: Any,
    control_ids: Any,
) -> tuple[bytes, bytes, bytes, bool]: ...
