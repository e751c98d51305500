"""RendererPool with real threads."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.errors import NielsError, UsageError
from niels_gpt.renderers.base import Renderer, RendererPool, create_renderer_pool, is_multimodal
from niels_gpt.renderers.families.qwen3 import Qwen3Renderer
from tests.renderers.small import assistant, conversation, family, user
from tests.renderers.tiny_families import folder_of

SOON, LATE = 0.2, 20.0  # seconds: what waits must still wait after SOON; what should happen must by LATE


def new() -> Renderer:
    return Qwen3Renderer(folder_of("qwen3"))


def in_thread(work: Callable[[], Any]) -> tuple[threading.Event, list[Any]]:
    """Start some work; `done` is set behind it."""
    done, found = threading.Event(), []

    def run() -> None:
        found.append(work())
        done.set()

    threading.Thread(target=run, daemon=True).start()
    return done, found


def test_streams_hold_no_renderer_of_the_pool() -> None:
    """Many completions may be read at once, more than there are renderers."""
    pool, alone = RendererPool(new, 1), family("qwen3")
    prompt = alone.render_ids([user()], add_generation_prompt=True)
    said = alone.render([user(), assistant("so")]).token_ids[-9:]
    parsers = [pool.stream(prompt) for _ in range(3)]
    for token in said:
        for parser in parsers:
            parser.feed([token])
    expected = alone.parse_response(said, prompt_ids=prompt)
    assert [parser.result() for parser in parsers] == [expected] * 3
    assert pool.parse_response(said, prompt_ids=prompt) == expected


def test_a_pool_of_renderers_that_cannot_stream() -> None:
    alone = family("qwen3")
    names = ("render", "render_ids", "parse_response", "get_stop_token_ids", "bridge_to_next_turn")
    pool = RendererPool(lambda: SimpleNamespace(**{name: getattr(alone, name) for name in names}), 1)
    assert pool.parse_response([], prompt_ids=[]) == alone.parse_response([])
    with pytest.raises(UsageError, match="SimpleNamespace has no stream"):
        pool.stream()


@pytest.mark.parametrize("size", [1, 4])
def test_many_threads(size: int) -> None:
    """16 threads of 50 renderings, parsings and bridges, each equal to what one renderer alone makes of it."""
    rng, alone = random.Random(size), family("qwen3")
    chats = [conversation(rng) for _ in range(50)]
    expected = [alone.render(messages) for messages in chats]
    stop = alone.get_stop_token_ids()[0]
    answers = [[*made.token_ids[-9:], stop] for made in expected]
    parsed = [alone.parse_response(ids) for ids in answers]
    bridged = [alone.bridge_to_next_turn(made.token_ids, [stop], [user()]) for made in expected]
    pool = RendererPool(new, size)
    assert pool.size == size
    assert isinstance(pool, Renderer)
    assert not is_multimodal(pool)

    def work(first: int) -> int:
        for at in [*range(first, 50), *range(first)]:
            assert pool.render(chats[at]) == expected[at]
            assert pool.render_ids(chats[at], add_generation_prompt=True)[: len(expected[at].token_ids)]
            assert pool.parse_response(answers[at]) == parsed[at]
            assert pool.bridge_to_next_turn(expected[at].token_ids, [stop], [user()]) == bridged[at]
            assert pool.get_stop_token_ids() == alone.get_stop_token_ids()
        return 50

    with ThreadPoolExecutor(16) as threads:
        assert list(threads.map(work, range(0, 48, 3))) == [50] * 16


def test_each_is_lent_to_one_at_a_time() -> None:
    pool = RendererPool(new, 3)
    lent: set[int] = set()
    most, lock = 0, threading.Lock()

    def work(_: int) -> None:
        nonlocal most
        with pool.checkout() as renderer:
            with lock:
                assert id(renderer) not in lent
                lent.add(id(renderer))
                most = max(most, len(lent))
            time.sleep(0.002)
            with lock:
                lent.remove(id(renderer))

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(work, range(200)))
    assert most == 3


def test_checkout_waits_for_a_free_renderer() -> None:
    pool = RendererPool(new, 2)
    with pool.checkout() as first, pool.checkout() as second:
        assert first is not second
        done, found = in_thread(lambda: pool.render_ids([user()]))
        assert not done.wait(SOON)
    assert done.wait(LATE)
    assert found == [family("qwen3").render_ids([user()])]


def test_a_renderer_comes_back_after_an_error() -> None:
    pool = RendererPool(new, 1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), pool.checkout():
            raise ZeroDivisionError
        with pytest.raises(NielsError):
            pool.render([{"role": "nobody", "content": ""}])
    done, found = in_thread(lambda: pool.render_ids([user(), assistant()]))
    assert done.wait(LATE)
    assert found == [family("qwen3").render_ids([user(), assistant()])]


def test_the_third_renderer_cannot_be_made() -> None:
    made, lock = 0, threading.Lock()

    def factory() -> Renderer:
        nonlocal made
        with lock:
            made += 1
            number = made
        if number == 3:
            raise OSError("the third")
        return new()

    def build() -> str:
        try:
            RendererPool(factory, 6)
        except OSError as error:
            return str(error)
        return "made"

    done, found = in_thread(build)
    assert done.wait(LATE)
    assert found == ["the third"]


@pytest.mark.parametrize("size", [0, -1, 2.5, "3", True])
def test_a_pool_of_none(size: Any) -> None:
    with pytest.raises(UsageError, match=f"the pool's size is {size!r}; expected"):
        RendererPool(new, size)


def test_a_pool_by_name() -> None:
    pool = create_renderer_pool(str(folder_of("qwen3")), "qwen3", size=2, preserve_all_thinking=True)
    messages = [user(), assistant(reasoning_content="x"), user()]
    assert pool.size == 2
    assert pool.render(messages) == family("qwen3", preserve_all_thinking=True).render(messages)
    assert pool.render(messages) != family("qwen3").render(messages)
    with pool.checkout() as one, pool.checkout() as other:
        assert isinstance(one, Qwen3Renderer)
        assert isinstance(other, Qwen3Renderer)
        assert one.encoder is not other.encoder
    with pytest.raises(UsageError, match=r"qwen33.*did you mean 'qwen3'"):
        create_renderer_pool(str(folder_of("qwen3")), "qwen33", size=2)
