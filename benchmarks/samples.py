"""`python -m benchmarks.samples [--chats N]`: samples that share their beginning on disk, beside naive copies.

Conversations of three turns and more with reasoning (`corpus`), in Qwen3's format, which drops reasoning from history.
Naive expansion writes each sample of `build_training_samples` whole. Both builds train the same tokens.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.corpus import Corpus
from benchmarks.families import model_of
from niels_gpt.builds.conversation_encoders import as_encoder
from niels_gpt.episodes.build import build_episodes
from niels_gpt.episodes.loader import GPTEpisodeDataLoader
from niels_gpt.episodes.writer import EpisodeWriter
from niels_gpt.messages import normalise
from niels_gpt.renderers.masks import build_training_samples
from niels_gpt.renderers.registry import FAMILIES

TURNS = 3
WIDTH = 8192
BATCHES = 40
ROUNDS = 5


def conversations(n: int) -> list[Any]:
    """Conversations of at least so many answers, all with reasoning."""
    corpus, found = Corpus(), []
    while len(found) < n:
        for messages, _ in corpus.take(200, tools=0.0, reasoning=1.0):
            if sum(message["role"] == "assistant" for message in messages) >= TURNS:
                found.append(normalise(messages))
    return found[:n]


def naive(renderer: Any, chats: list[Any], folder: Path) -> None:
    """Every sample whole."""
    writer = EpisodeWriter(folder, "train")
    for chat in chats:
        for ids, mask in build_training_samples(renderer, chat):
            writer.write(np.array(ids), np.array([len(ids)]), np.array(mask))
    writer.close()


def shared(renderer: Any, chats: list[Any], folder: Path) -> None:
    """As `niels-gpt episodes build --samples auto` does it."""
    encoder = as_encoder(renderer, samples="auto")
    build_episodes(chats, folder, encoder=encoder, val_frac=0, overwrite=True, max_bad_rows="all")


def seconds(run: Callable[[], Any]) -> float:
    """Processor time of one call."""
    start = time.process_time()
    run()
    return time.process_time() - start


def batches(folder: Path, **options: Any) -> Iterator[Any]:
    """Batches without end."""
    config = {"batch_size": 8, "block_size": WIDTH, "device": "cpu"}
    loader = GPTEpisodeDataLoader(config, None, folder, pad_token_id=0, epoch_drop_last=False, **options)
    for epoch in itertools.count():
        yield from loader.batches(epoch=epoch)


def main() -> None:
    """Measure both builds, and read what they wrote."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chats", type=int, default=1000)
    chats = conversations(parser.parse_args().chats)
    renderer = FAMILIES["qwen3"](model_of("qwen3")[0])
    answers = sum(message["role"] == "assistant" for chat in chats for message in chat)
    print(f"{len(chats):,} conversations, {answers:,} answers")
    with tempfile.TemporaryDirectory() as name:
        ways = {"shared": shared, "naive": naive}
        places = {way: Path(name) / way for way in ways}
        taken = {
            way: seconds(lambda build=build, way=way: build(renderer, chats, places[way]))
            for way, build in ways.items()
        }
        for way, place in places.items():
            files = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
            trained = int(np.count_nonzero(np.fromfile(place / "train" / "mask.bin", np.uint8)))
            print(f"build, {way}: {taken[way]:.2f} s, {files / 1e6:.1f} MB, {trained:,} trained tokens")
        readers = {
            "shared": batches(places["shared"]),
            "naive": batches(places["naive"]),
            "shared, packed": batches(places["shared"], packing=True, too_long="head"),
            "naive, packed": batches(places["naive"], packing=True, too_long="head"),
            "a row for a conversation": batches(places["shared"], packing=True, too_long="head", share_prefixes=True),
        }
        times: dict[str, list[float]] = {way: [] for way in readers}
        for _ in range(ROUNDS):
            for way, reader in readers.items():
                times[way].append(seconds(lambda reader=reader: [next(reader) for _ in range(BATCHES)]) / BATCHES)
        for way, own in times.items():
            print(f"batches of 8 x {WIDTH}, {way}: {1000 * median(own):.2f} ms")
        for sharing in (False, True):
            config = {"batch_size": 1, "block_size": WIDTH, "device": "cpu"}
            options: dict[str, Any] = {"packing": True, "too_long": "head", "share_prefixes": sharing}
            loader = GPTEpisodeDataLoader(config, None, places["shared"], pad_token_id=0, **options)
            epoch = list(loader.evaluation_batches("train"))
            tokens, trained = (
                sum(getattr(batch, what) for batch in epoch) for what in ("num_tokens", "num_trained_tokens")
            )
            print(f"an epoch, share_prefixes={sharing}: {len(epoch):,} rows, {tokens:,} tokens, {trained:,} trained")


if __name__ == "__main__":
    main()
