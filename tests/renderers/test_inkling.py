"""Inkling's options, bridges and what is read; golden texts show what it writes."""

from __future__ import annotations

import pytest

pytest.importorskip("tokenizers")

from niels_gpt.errors import UsageError
from tests.renderers.small import assistant, call, family, result, user

ASKED = "<|message_user|><|content_text|>hello<|end_message|>"


def test_no_effort_and_efforts_that_there_are_not() -> None:
    assert family("inkling", thinking_effort=None).text([user()]) == ASKED
    for wrong in (1.0, -0.1, "high"):
        with pytest.raises(UsageError, match="thinking_effort"):
            type(family("inkling"))(family("inkling").encoder, thinking_effort=wrong)


def test_a_bridge_heads_results_by_what_was_sampled() -> None:
    renderer = family("inkling")
    asking = [user(), assistant("", tool_calls=[call("get", 0), call("put", 1)])]
    results = [result("get", 0), result("put", 1)]
    prompt = renderer.render_ids(asking[:1], add_generation_prompt=True)
    completion = renderer.render_ids(asking)[len(prompt) :]
    bridge = renderer.bridge_to_next_turn(prompt, completion, results)
    assert bridge is not None
    assert bridge.token_ids == renderer.render_ids([*asking, *results], add_generation_prompt=True)
