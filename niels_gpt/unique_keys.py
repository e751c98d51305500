"""A decoder of JSON that refuses objects with a repeated key, for the rows of users' files.

JSON does not forbid `{"content": "a", "content": "b"}`, but readers disagree on which value counts; Python's would
return the last one and lose the others. The module imports little, because commands load it before they print help.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Final

from niels_gpt.errors import MessageError, shown


def with_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these keys and values.

    Raises:
        MessageError: a key is repeated (`repeated_key`).
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        # The message names the key; rows without a fault need no counting.
        repeated, times = next((name, n) for name, n in Counter(name for name, _ in pairs).items() if n > 1)
        raise MessageError(
            "repeated_key",
            f"an object has the key {shown(repeated)} {times} times, and readers of JSON disagree on "
            "which value counts; expected each key once. Remove the others",
        )
    return found


UNIQUE_KEYS: Final = json.JSONDecoder(object_pairs_hook=with_unique_keys)
