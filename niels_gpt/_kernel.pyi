"""Types of the native kernel, which `tokenizer.fast_path` calls.

Each function has a counterpart in Python or numpy with equal results; the C files describe them.
"""

from collections.abc import Mapping
from typing import Any

VERSION: int

# The fields of `fast_path.BatchLayout` as bytes.
def layout(texts: list[list[str]], facts: list[list[int]], controls_of: Mapping[str, bytes]) -> tuple[bytes, ...]: ...

# The fields of `fast_path.Attribution`, arrays as bytes.
def attribute(
    ids: Any,
    lengths: Any,
    edges: Any,
    pieces: Any,
    control_at: Any,
    control_ids: Any,
) -> tuple[bytes, bytes, bytes, bool, bool]: ...

# See `fast_path.encode_with_kernel`.
def encode(
    texts: list[list[str]],
    facts: list[list[int]],
    controls_of: Mapping[str, bytes],
    lengths: Any,
    encode: Any,
    unsafe_class: int,
) -> tuple[Any, Any, Any]: ...
