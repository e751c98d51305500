"""Rendering in processes that were forked after rendering: `check(NAME)`, for a process of its own.

Each child must come to the ids of its parent, with the parent's renderer as the fork has it and with a pickled one.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from niels_gpt.forks import is_forked
from niels_gpt.renderers.registry import FAMILIES
from niels_gpt.tokenizer.encoder import TokenizerAdapter
from tests.renderers.small import conversation, family
from tests.renderers.tiny_families import folder_of

CHATS = 96
made: dict[str, Any] = {}  # the parent's renderer and conversations, which children find here


def renderer(name: str) -> Any:
    """A family's renderer; "tokenizers" is Qwen3's without gigatoken."""
    if name == "tokenizers":
        return FAMILIES["qwen3"](TokenizerAdapter.load(folder_of("qwen3"), engine="tokenizers"))
    return family(name, on_unwritten="drop") if name == "template" else family(name)  # ChatML writes no calls


def chats_of(name: str) -> list[list[dict[str, Any]]]:
    if name != "ngpt":
        rng = random.Random(7)
        return [conversation(rng) for _ in range(CHATS)]
    texts = ("hello", "the quick brown fox jumps over the lazy dog, twice. ", "x + 1")
    roles = ("user", "assistant")
    return [[{"role": role, "content": texts[k % 3] * (1 + k % 9)} for role in roles] for k in range(CHATS)]


def one_by_one(numbers: list[int], pickled: Any = None) -> list[list[int]]:
    return [list((pickled or made["renderer"]).render_ids(made["chats"][number])) for number in numbers]


def together(numbers: list[int], pickled: Any = None) -> list[list[int]]:
    batch = (pickled or made["renderer"]).render_many([made["chats"][number] for number in numbers])
    return [batch.ids[a:b].tolist() for a, b in pairwise(np.cumsum([0, *batch.lengths]))]


def rendered(batch: dict[str, list[int]], pickled: Any = None) -> dict[str, list[list[int]]]:
    """For `datasets.map`, with both ways of rendering in one child."""
    assert is_forked()
    ids = together(batch["number"], pickled)
    assert one_by_one(batch["number"], pickled) == ids
    return {"ids": ids}


def by_datasets(renders: Any) -> list[list[int]]:
    import datasets
    import multiprocess  # as `datasets` does

    multiprocess.set_start_method("fork", force=True)
    datasets.disable_progress_bars()
    rows = datasets.Dataset.from_dict({"number": list(range(CHATS))})
    mapped = rows.map(rendered, batched=True, batch_size=40, num_proc=2, fn_kwargs={"pickled": renders})
    return list(mapped["ids"])


def by_torch(collate: Callable[[list[int]], list[list[int]]]) -> list[list[int]]:
    from torch.utils.data import DataLoader

    def in_worker(numbers: list[int]) -> list[list[int]]:
        assert is_forked()
        return collate(numbers)

    numbers: Any = range(CHATS)
    loader = DataLoader(numbers, batch_size=7, num_workers=2, collate_fn=in_worker, multiprocessing_context="fork")
    return [ids for batch in loader for ids in batch]


def check(name: str) -> str:
    """Render in two threads, so that all that is loaded lazily is in use; then fork, and compare."""
    made.update(renderer=renderer(name), chats=chats_of(name))
    found: list[list[list[int]]] = []

    def work() -> None:
        found.extend(way(list(range(CHATS))) for way in (one_by_one, together))

    thread = threading.Thread(target=work)
    thread.start()
    work()
    thread.join()
    assert found == [found[0]] * 4
    ways = (
        lambda: by_torch(one_by_one),
        lambda: by_torch(together),
        lambda: by_datasets(None),  # these come last: `datasets` sets TOKENIZERS_PARALLELISM=false
        lambda: by_datasets(made["renderer"]),
    )
    assert [way() == found[0] for way in ways] == [True] * 4
    assert together(list(range(CHATS))) == found[0]  # the parent goes on
    return "equal"
