"""RendererPool with real threads."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.errors import UsageError
from niels_gpt.renderers.base import Renderer, RendererPool, create_renderer_pool, is_multimodal
from niels_gpt.renderers.families.qwen3 import Qwen3Renderer
from tests.renderers.small import assistant, conversation, family, user
from tests.renderers.tiny_families import folder_of


def new() -> Renderer:
    return Qwen3Renderer(folder_of("qwen3"))


@pytest.mark.parametrize("threads", [8])
def test_many_threads(threads: int) -> None:
    """50 renderings, parsings and bridges in each, at once and equal to what a renderer alone makes of them."""
    rng, alone = random.Random(threads), family("qwen3")
    chats = [conversation(rng) for _ in range(50)]
    expected = [alone.render(messages) for messages in chats]
    stop = alone.get_stop_token_ids()[0]
    answers = [[*made.token_ids[-9:], stop] for made in expected]
    parsed = [alone.parse_response(ids) for ids in answers]
    bridged = [alone.bridge_to_next_turn(made.token_ids, [stop], [user()]) for made in expected]
    pool = RendererPool(new, 4)
    assert pool.size == 4
    assert isinstance(pool, Renderer)
    assert not is_multimodal(pool)

    def work(first: int) -> int:
        begin.wait()
        for at in [*range(first, 50), *range(first)]:
            assert pool.render(chats[at]) == expected[at]
            assert pool.render_ids(chats[at], add_generation_prompt=True)[: len(expected[at].token_ids)]
            assert pool.parse_response(answers[at]) == parsed[at]
            assert pool.bridge_to_next_turn(expected[at].token_ids, [stop], [user()]) == bridged[at]
            assert pool.get_stop_token_ids() == alone.get_stop_token_ids()
        return 50

    begin = threading.Barrier(threads)
    with ThreadPoolExecutor(threads) as executor:
        assert list(executor.map(work, range(0, 3 * threads, 3))) == [50] * threads


def test_a_pool_by_name() -> None:
    pool = create_renderer_pool(str(folder_of("qwen3")), "qwen3", size=2, preserve_all_thinking=True)
    messages = [user(), assistant(reasoning_content="x"), user()]
    assert pool.size == 2
    assert pool.render(messages) == family("qwen3", preserve_all_thinking=True).render(messages)
    assert pool.render(messages) != family("qwen3").render(messages)
    with pool.checkout() as one, pool.checkout() as other:
        assert isinstance(one, Qwen3Renderer)
        assert one is other
    with pytest.raises(UsageError, match=r"qwen33.*did you mean 'qwen3'"):
        create_renderer_pool(str(folder_of("qwen3")), "qwen33", size=2)
