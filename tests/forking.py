"""Forks of a process whose other threads render; for a process of its own: `python -m tests.forking FAMILY FORKS`.

Three threads render without a pause: one by one, in batches, and through a pool of two. Each child renders in the same
three ways, must come to the ids of a process that never forked, and ends with 0. A child that waits for ever shows
where it waits, and ends.
"""

from __future__ import annotations

import faulthandler
import os
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from niels_gpt.renderers.base import RendererPool
from niels_gpt.renderers.registry import FAMILIES
from niels_gpt.tokenizer.encoder import TokenizerAdapter
from tests.renderers.small import conversation, family
from tests.renderers.tiny_families import folder_of

PATIENCE = 60.0  # seconds; a child needs a hundredth of a second
WRONG_IDS, FAILED = 3, 4


def renderer(name: str) -> Any:
    """A family's renderer; "tokenizers" is Qwen3's without gigatoken."""
    if name == "tokenizers":
        return FAMILIES["qwen3"](TokenizerAdapter.load(folder_of("qwen3"), engine="tokenizers"))
    return family(name)


def chats_of(name: str, count: int) -> list[list[dict[str, Any]]]:
    if name != "ngpt":
        rng = random.Random(7)
        return [conversation(rng) for _ in range(count)]
    texts = ("hello", "the quick brown fox jumps over the lazy dog, twice. ", "x + 1")
    roles = ("user", "assistant")
    return [[{"role": role, "content": texts[k % 3] * (1 + k % 9)} for role in roles] for k in range(count)]


class Ways:
    """Three ways to the ids of some conversations."""

    def __init__(self, name: str) -> None:
        self.chats = chats_of(name, 90)
        self._one = renderer(name)
        self._pool = RendererPool(lambda: renderer(name), 2)
        self._long = [[{"role": "user", "content": str(k) + " hello world" * 300}] for k in range(3)]

    def one_by_one(self) -> list[list[int]]:
        return [list(self._one.render_ids(chat)) for chat in self.chats[:12]]

    def together(self) -> list[list[int]]:
        made = self._one.render_many([*self.chats, *self._long])
        ends = np.cumsum([0, *made.lengths[:12]])
        return [made.ids[a:b].tolist() for a, b in pairwise(ends)]

    def by_pool(self) -> list[list[int]]:
        with self._pool.checkout() as first, self._pool.checkout() as second:
            return [list((first, second)[k % 2].render(chat).token_ids) for k, chat in enumerate(self.chats[:12])]

    def all(self) -> list[Callable[[], list[list[int]]]]:
        return [self.one_by_one, self.together, self.by_pool]


def child(ways: Ways, expected: list[list[int]]) -> None:
    """Render in every way, and end."""
    faulthandler.dump_traceback_later(PATIENCE, exit=True)  # ends with 1
    try:
        right = all(way() == expected for way in ways.all())
    except BaseException:  # this process has the parent's stack below it
        traceback.print_exc()
        os._exit(FAILED)
    os._exit(0 if right else WRONG_IDS)


def main(name: str, forks: int) -> None:
    ways = Ways(name)
    expected = ways.one_by_one()
    assert ways.together() == ways.by_pool() == expected
    rounds = [0, 0, 0]

    def work(index: int) -> None:
        while True:
            assert ways.all()[index]() == expected
            rounds[index] += 1

    for index in range(3):
        threading.Thread(target=work, args=(index,), daemon=True).start()
    number, deadline = 0, time.monotonic() + PATIENCE
    # A thread's first round may take longer than all forks: a template's certificate renders a hundred conversations.
    while number < forks or (not min(rounds) and time.monotonic() < deadline):
        number += 1
        process = os.fork()
        if process == 0:
            child(ways, expected)
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if status:
            print(f"child {number} ended with {status}")
            break
    else:
        alive = threading.active_count() - 1
        print(f"all children were right, {alive} threads render, all did rounds: {min(rounds) > 0}")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
