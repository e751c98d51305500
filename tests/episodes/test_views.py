"""The same batches from torch's loaders and from a background thread, which end when they should."""

from __future__ import annotations

import copy
import gc
import itertools
import multiprocessing
import pickle
import re
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from niels_gpt.episodes.batch import Batch
from niels_gpt.episodes.episode_loader import GPTEpisodeDataLoader
from niels_gpt.episodes.order.sampling import Sampling
from niels_gpt.episodes.order.states import Place
from niels_gpt.episodes.source import EpisodeSource
from niels_gpt.errors import CacheError, UsageError
from tests.conftest import REPOSITORY, run_python
from tests.episodes.made import assert_all_equal, open_loader, write_dataset

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # this machine may have fewer cores
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata 0.11 calls it
]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("views") / "data")


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No thread and no process outlives a test."""
    before = set(threading.enumerate())
    yield
    gc.collect()
    left = [thread for thread in threading.enumerate() if thread not in before]
    for thread in left:  # the threads of torch's queues end a moment after their processes
        thread.join(timeout=60)
    assert [thread.name for thread in left if thread.is_alive()] == []
    assert multiprocessing.active_children() == []


def in_order(dataset: Path, n: int, **options: Any) -> list[Batch]:
    loader = open_loader(dataset, **options)
    return [loader.next_batch() for _ in range(n)]


def torch_loader(
    loader: GPTEpisodeDataLoader, *, epochs: int | None = None, kind: Any = torch.utils.data.DataLoader, **options: Any
) -> Any:
    """A DataLoader over the loader's source and places."""
    places = loader.places(epochs=epochs)
    return kind(loader.batch_source("train"), sampler=places, batch_size=None, **options)


def prefetching() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("niels_gpt-prefetch")]


# Prefetch


def test_prefetch_gives_what_next_batch_gives(dataset: Path) -> None:
    for depth in (1, 7):
        with open_loader(dataset).prefetch(depth=depth) as batches:
            assert_all_equal(list(itertools.islice(batches, 30)), in_order(dataset, 30))


def test_prefetch_begins_where_the_loader_stands_and_takes_it_along(dataset: Path) -> None:
    """By what was handed out, not by what waits: whoever saves the loader's state saves the right one."""
    loader = open_loader(dataset)
    loader.next_batch()
    state = loader.state_dict()
    with loader.prefetch() as batches:
        assert batches.state_dict() == state
        assert_all_equal([next(batches)], in_order(dataset, 2)[1:])
        assert loader.state_dict() == batches.state_dict() != state
    assert_all_equal([loader.next_batch()], in_order(dataset, 3)[2:])


def test_dropping_it_ends_the_thread(dataset: Path) -> None:
    """Who breaks out of a loop and forgets the iterator keeps no thread and no dataset."""
    batches = open_loader(dataset).prefetch()
    next(batches)
    gone = weakref.ref(batches)
    del batches
    assert gone() is None


def test_python_exits_with_the_thread_at_work(dataset: Path) -> None:
    program = (
        "import sys; from tests.episodes.made import open_loader\n"
        "batches = open_loader(sys.argv[1]).prefetch(depth=1)\nnext(batches)\nprint('read')"
    )
    ended = run_python("-c", program, dataset, cwd=REPOSITORY, fresh=True)
    assert (ended.returncode, ended.stdout) == (0, "read\n")
    assert all(line.startswith("[EpisodeLoader] split=train") for line in ended.stderr.splitlines()), ended.stderr


@pytest.mark.parametrize(
    ("error", "good", "depth"), [(CacheError("bad token"), 4, 3), (MemoryError(), 0, 8), (SystemExit(3), 1, 1)]
)
def test_an_error_comes_where_its_batch_would_have(
    dataset: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, good: int, depth: int
) -> None:
    loader, expected, made = open_loader(dataset), in_order(dataset, good + 1), EpisodeSource.__getitem__

    def failing(source: EpisodeSource, place: Place) -> Batch:
        if place.position == 2 * good:  # batches have two rows
            raise error
        return made(source, place)

    monkeypatch.setattr(EpisodeSource, "__getitem__", failing)
    batches = loader.prefetch(depth=depth)
    assert_all_equal([next(batches) for _ in range(good)], expected[:good])
    state = batches.state_dict()
    with pytest.raises(type(error)) as caught:
        next(batches)
    assert caught.value is error
    assert batches.state_dict() == state
    assert prefetching() == []
    with pytest.raises(StopIteration):
        next(batches)
    monkeypatch.undo()
    loader.load_state_dict(state)  # what came before the error is not lost
    assert_all_equal([loader.next_batch()], expected[good:])


def test_a_batch_that_the_device_refuses_is_not_lost(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who frees some memory and asks again gets it, from the loader, or from where it then stands."""
    first, second = list(itertools.islice(open_loader(dataset).batches(), 2))
    loader, to, fails = open_loader(dataset), Batch.to, [False, True, False, True]

    def full(batch: Batch, device: Any) -> Batch:
        if fails and fails.pop(0):
            raise torch.OutOfMemoryError("no room")
        return to(batch, device)

    monkeypatch.setattr(Batch, "to", full)
    assert_all_equal([loader.next_batch()], [first])
    with pytest.raises(torch.OutOfMemoryError):
        loader.next_batch()
    assert loader.rows_read() == 2
    loader.seek(0)
    with loader.prefetch() as batches:
        assert_all_equal([next(batches)], [first])
        with pytest.raises(torch.OutOfMemoryError):
            next(batches)
    assert batches.state_dict() == loader.state_dict() == first.state
    assert_all_equal([loader.next_batch()], [second])


# torch's DataLoader


def test_numbers_that_cannot_be(dataset: Path) -> None:
    with pytest.raises(UsageError, match="depth is 0"):
        open_loader(dataset).prefetch(depth=0)
    with pytest.raises(UsageError, match="epochs is 0"):
        open_loader(dataset).as_dataloader(epochs=0)


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_iterating_again_goes_on_with_the_next_epoch(dataset: Path, workers: int, persistent: bool) -> None:
    """Also in new workers: the place is in the main process."""
    loader = open_loader(dataset, batch_size=5)
    door = torch_loader(loader, epochs=1, num_workers=workers, persistent_workers=persistent)
    expected = in_order(dataset, 3 * loader.steps_per_epoch(), batch_size=5)
    assert_all_equal([batch for _ in range(3) for batch in door], expected)


def test_a_pass_has_a_length_if_it_ends(dataset: Path) -> None:
    loader = open_loader(dataset, batch_size=5)
    assert len(loader.as_dataloader(epochs=2)) == 2 * len(loader) == 2 * len(list(loader))
    with pytest.raises(TypeError, match="never ends"):
        len(loader.as_dataloader(epochs=None))


@pytest.mark.parametrize("workers", [0, 3])
def test_passes_over_a_mixture_repeat_no_row(tmp_path: Path, workers: int) -> None:
    """Its batches cross the ends of epochs: the last one of a pass holds the first rows of the next epoch."""
    folders = [write_dataset(tmp_path / name, [6] * 9) for name in "ab"]
    options: dict[str, Any] = {"batch_size": 7, "sampling": Sampling(phases=[dict.fromkeys(folders, 8)])}
    loader = open_loader(folders, **options)
    expected = [open.next_batch() for open in [open_loader(folders, **options)] for _ in range(7)]
    door = torch_loader(loader, epochs=1, num_workers=workers)
    passes = [list(door) for _ in range(3)]
    assert_all_equal([batch for batches in passes for batch in batches], expected)
    assert list(map(len, passes)) == [3, 2, 2]  # 21, 14 and 14 rows, in which epochs begin at rows 0, 16 and 32


def test_random_batches_have_no_epochs(dataset: Path) -> None:
    loader = open_loader(dataset, batch_sampling_mode="random")
    with pytest.raises(UsageError, match="'random', which has no epochs"):
        loader.places().set_epoch(1)
    for door in (loader.places, loader.as_dataloader):
        with pytest.raises(UsageError, match="batch_sampling_mode is 'random', which has no epochs"):
            door(epochs=1)
    found = list(itertools.islice(torch_loader(loader, num_workers=3), 10))
    assert_all_equal(found, in_order(dataset, 10, batch_sampling_mode="random"))


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_workers_in_the_usual_training_loop(dataset: Path, workers: int) -> None:
    """Every pass is an epoch; a pass after a break gives the rest; the loader goes along; nothing lost or repeated."""
    loader = open_loader(dataset, batch_size=5)
    epochs = [list(open_loader(dataset, batch_size=5).batches(epoch=epoch)) for epoch in range(3)]
    door = loader.as_dataloader(num_workers=workers)
    assert_all_equal(list(door), epochs[0])
    assert_all_equal(list(itertools.islice(door, 2)), epochs[1][:2])
    assert door.state_dict() == loader.state_dict() == epochs[1][1].state
    assert_all_equal(list(door), epochs[1][2:])
    assert_all_equal(list(door), epochs[2])
    door.load_state_dict(epochs[0][0].state)
    assert_all_equal(list(door), epochs[0][1:])


@pytest.mark.parametrize("options", [{}, {"num_workers": 0}, {"num_workers": 1}, {"pin_memory": False}])
def test_a_pass_draws_one_random_number_whatever_makes_its_batches(dataset: Path, options: dict[str, Any]) -> None:
    """Otherwise dropout would be another one with worker processes than without, although the batches are the same."""
    loader = open_loader(dataset, batch_size=5)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        next(iter(torch.utils.data.DataLoader([0])))
        expected = torch.rand(3)
        torch.manual_seed(7)
        list(loader.as_dataloader(**options))
        assert torch.equal(torch.rand(3), expected)


def test_spawned_workers_give_the_same(dataset: Path) -> None:
    """They receive the source pickled, unlike forked ones."""
    # Read to the end: a spawned worker that ends while its thread still sends a batch may be aborted by Python 3.11.
    found = list(torch_loader(open_loader(dataset), epochs=2, num_workers=2, multiprocessing_context="spawn"))
    assert len(found) > 8
    assert_all_equal(found, in_order(dataset, len(found)))


def test_pickles_carry_no_tokens(tmp_path: Path) -> None:
    """A dataset of terabytes is opened by a worker, not sent to it."""
    sizes = []
    for n in (10, 1000):
        folder = write_dataset(tmp_path / str(n), [10] * n)
        loader = open_loader(folder)
        data = pickle.dumps(loader.batch_source("train"))
        for copied in (pickle.loads(data), copy.deepcopy(loader.batch_source("train"))):
            found = [copied[place] for place in itertools.islice(loader.places(), 3)]
            assert_all_equal(found, in_order(folder, 3))
        sizes.append(len(data))
    assert sizes[1] < sizes[0] + 100


@pytest.mark.parametrize("workers", [1, 3])
def test_an_error_in_a_worker_reaches_the_loop(tmp_path: Path, workers: int) -> None:
    folder = write_dataset(tmp_path / "data")
    loader = open_loader(folder, vocab_size=1500)  # later episodes hold larger ids
    seen, message = read_until_error(torch_loader(loader, num_workers=workers))
    assert re.search(r"record \d+: token 0 .*outside the vocabulary of 1,500", message)
    assert_all_equal(seen, in_order(folder, len(seen)))


def read_until_error(door: Any) -> tuple[list[Batch], str]:
    """What came, and the message."""
    seen: list[Batch] = []
    batches: Any = iter(door)
    try:
        for batch in batches:
            seen.append(batch)
    except CacheError as error:
        return seen, str(error)
    finally:
        batches._shutdown_workers()  # left to the garbage collector, which an error needs, torch takes seconds
    raise AssertionError("no error came")


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("kind", [torch.utils.data.DataLoader, StatefulDataLoader])
def test_breaking_off_ends_the_workers(dataset: Path, workers: int, kind: Any) -> None:
    door = torch_loader(open_loader(dataset), kind=kind, num_workers=workers)
    for batch in door:
        assert batch.x.shape == (2, 12)
        break
    del door, batch
    gc.collect()
    assert multiprocessing.active_children() == []
