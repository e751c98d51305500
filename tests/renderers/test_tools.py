"""What is remembered of tools is that of equal tools alone, and of none that a caller has changed since."""

from __future__ import annotations

import json
import pickle
from copy import copy, deepcopy
from typing import Any

import pytest

from niels_gpt.errors import MessageError
from niels_gpt.messages import Notes, read_tools
from niels_gpt.renderers.conversation import tools_of


def offered(default: Any, **more: Any) -> list[Any]:
    return [{"type": "function", "function": {"name": "f", "default": default, **more}}]


def texts(tools: Any) -> list[str]:
    made = tools_of(tools)
    assert made is not None
    return [*made.json_texts]


@pytest.mark.parametrize("turn", [1, -1])
def test_values_that_are_equal_for_python_alone_stay_apart(turn: int) -> None:
    values = [1, 1.0, True, 0, 0.0, -0.0, False, None, "1", [1], [1.0], {"a": 1, "b": 2}, {"b": 2, "a": 1}, 2**70]
    for value in [*values, *values][::turn]:
        assert texts(offered(value)) == [json.dumps(offered(value)[0])]


def test_tools_that_were_read_are_not_read_again_unless_they_were_changed() -> None:
    read = read_tools(offered({"a": [1]}), Notes())
    assert read is not None
    for same in (read, pickle.loads(pickle.dumps(read)), deepcopy(read), copy(read)):
        assert read_tools(same, Notes()) is tools_of(same) is same
    read[0]["function"]["default"]["a"].append(2)
    assert tools_of(read) is not read
    assert texts(read) == [json.dumps(read[0])]
    read[0]["function"]["parameters"] = "no schema"
    with pytest.raises(MessageError, match="expected JSON"):
        tools_of(read)
