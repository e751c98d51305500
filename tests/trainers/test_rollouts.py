"""Sampled turns -> one row, through the client and a server on this machine, and back from a rendering."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from niels_gpt.renderers.client import generate
from niels_gpt.rollouts import trajectory
from tests.renderers.test_client import Server, answer, ids_of, renderer, server

httpx = pytest.importorskip("httpx")
__all__ = ["server"]

USER: list[Any] = [{"role": "user", "content": "hello"}]
NEXT: list[Any] = [{"role": "user", "content": "world"}]


def two_turns(server: Server) -> list[dict[str, Any]]:
    async def talk() -> list[dict[str, Any]]:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            first = await generate(client=client, renderer=renderer(), messages=USER, model=server.model)
            bridge = renderer().bridge_to_next_turn(first["prompt_ids"], first["completion_ids"], NEXT)
            assert bridge is not None
            second = await generate(
                client=client,
                renderer=renderer(),
                messages=[],
                model=server.model,
                prompt_ids=bridge.token_ids,
                prompt_attribution=bridge,
            )
            return [first, second]

    return asyncio.run(talk())


def test_a_rollout_is_what_rendering_the_conversation_gives(server: Server) -> None:
    """Same ids and the same sampled tokens as the finished conversation has, rendered at once."""
    said_by_model = ["hello world<|im_end|>", "<think>\n\n</think>\n\nhello world<|im_end|>"]  # history has no thinking
    replies = iter([json.dumps(answer(text)).encode() for text in said_by_model])
    server.on_generate = lambda: (200, next(replies))
    turns = two_turns(server)
    row = trajectory(turns)
    said = [{"role": "assistant", "content": turn["content"]} for turn in turns]
    whole = renderer().render([*USER, said[0], *NEXT, said[1]])
    n = len(row.ids)
    assert row.ids.tolist() == whole.token_ids[:n]
    sampled = [at for at in range(n) if whole.sampled_mask[at]]
    ours = [at for at in range(n) if row.mask[at]]
    assert ours[-len(turns[1]["completion_ids"]) :] == sampled[-len(turns[1]["completion_ids"]) :]
    assert [row.ids[at] for at in ours] == ids_of(said_by_model[0]) + ids_of(said_by_model[1])
    assert row.logprobs[ours[1]] == -1 / 8
    assert row.mask.sum() == len(ours)
