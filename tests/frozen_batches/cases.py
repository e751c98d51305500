"""What is frozen: datasets of every kind, loaders of every setting, and a digest of all that each batch holds.

`python -m tests.frozen_batches.cases` writes `batches.json` anew. Do that only for a change that an issue asks for: a
run that was begun with an older version continues with other rows then.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import torch

import niels_gpt as ng
from niels_gpt.cache.pretrain_dataset import PretrainTokenStreamDataset
from niels_gpt.cache.sft_dataset import SFTExampleDataset
from niels_gpt.episodes import EpisodeWriter, GPTDataLoader, GPTEpisodeDataLoader, Sampling
from niels_gpt.scale.publish import publish
from niels_gpt.store.schema import PlacedImage
from tests.episodes.made import with_sampling, write_manifest, write_split
from tests.export.sources import pretrain_cache, sft_cache
from tests.preferences.made import built, pairs, ranked

FROZEN = Path(__file__).with_name("batches.json")
POLICIES = ("head", "tail", "drop_partial_turn", "skip")
LABELS = ("chat", "code", "chat", "math")


def write_datasets(folder: Path) -> None:
    """Episodes with every kind of mask, packed on disk, mixed, in shards and in a store; caches; preferences."""
    draw = np.random.default_rng(44)
    for name, mask, segments, n in (
        ("plain", "u1", False, 61),
        ("weighted", "<f4", False, 37),
        ("bare", None, False, 29),
        ("texts", "u1", True, 31),
        ("other", "u1", False, 23),
    ):
        for split, count in (("train", n), ("val", 5)):
            lengths = draw.integers(1, 40, count).tolist()
            ids = [draw.integers(0, 900, length).tolist() for length in lengths]
            weights: Any = [draw.integers(0, 2, length).tolist() for length in lengths]
            if mask == "<f4":
                weights = [draw.choice([0, 0.25, 1, 2], length).tolist() for length in lengths]
            numbers = [np.sort(draw.integers(0, 4, length)).tolist() for length in lengths]
            write_split(
                folder / name / split,
                ids,
                None if mask is None else weights,
                mask_dtype=mask or "u1",
                segments=numbers if segments else None,
                shards=5 if name in ("plain", "texts") and split == "train" else 1,
                gap=2,
            )
        write_manifest(folder / name, mask_dtype={"u1": "uint8", "<f4": "float32", None: None}[mask])
    count = 0
    for shard in sorted((folder / "plain" / "train").iterdir()):
        n = len(np.fromfile(shard / "episodes.idx", "<u8")) // 2
        table = pyarrow.table({"type": [LABELS[(count + at) % 4] for at in range(n)]})
        pyarrow.parquet.write_table(table, shard / "episodes.parquet")
        count += n
    pretrain_cache(folder / "windows")
    sft_cache(folder / "sft")
    for name in ("plain", "texts", "windows"):
        publish(folder / name, f"file://{folder}/store/{name}")
    built(folder / "pairs", pairs(31), shard_bytes=2000)
    built(folder / "ranked", ranked(19), shard_bytes=2000)
    write_images(folder / "images", draw)


def write_images(folder: Path, draw: np.random.Generator) -> None:
    """Episodes of which every third has no image and the others one or two, in shards; there are no files of them."""
    writer = EpisodeWriter(folder, "train", shard_bytes=1500, with_images=True)
    for number in range(40):
        length = int(draw.integers(12, 30))
        images = [
            PlacedImage(5 * at, 4, 10 + number, 20, f"album/{number}-{at}.png", f"{number * 7 + at:064x}")
            for at in range(number % 3)
        ]
        ids = draw.integers(0, 900, length)
        writer.write(ids, np.array([length]), draw.integers(0, 2, length), images=[images])
    writer.close()


class Pictures:
    """As `StoredImages`: arrays that tell which image they are of, and where it was found."""

    def arrays(self, image: Any) -> dict[str, np.ndarray[Any, Any]]:
        facts = [image.episode, image.start, image.tokens, image.width, image.height, int(image.sha256, 16)]
        return {"pixel_values": np.full((image.tokens, 3), facts[-1], np.float32), "facts": np.array([facts])}


def cases() -> dict[str, Callable[[Path], Iterator[Any]]]:
    """Every case by its name; each gives batches, or tuples of tensors, from the datasets in a folder."""
    found: dict[str, Callable[[Path], Iterator[Any]]] = {}
    settings = itertools.product(("plain", "weighted", "bare", "texts"), (12, 30), (False, True), POLICIES)
    for number, (name, T, packing, policy) in enumerate(settings, 1):
        # The other settings take turns, so that each value meets each value of the four above.
        for world in (1, 4) if number % 3 == 0 else (1,):
            for rank in range(world):
                options = {"too_long": policy, "epoch_drop_last": number % 2 == 0, "epoch_seed": number}
                options |= {"rank": rank, "world_size": world, "packing": packing}
                label = f"{name} T={T} {'packed' if packing else 'padded'} {policy} rank {rank} of {world}"
                found[label] = episodes(name, T=T, B=(2, 3, 5)[number % 3] if world == 1 else 1, **options)
    for mode, packing in itertools.product(("epoch", "random"), (False, True)):
        for seed in range(10):
            options = {"batch_sampling_mode": mode, "packing": packing, "epoch_seed": seed, "too_long": "head"}
            found[f"{mode} seed {seed} packing {packing}"] = episodes("plain", T=16, B=4, **options)
    for packing, shuffle in itertools.product((False, True), (False, True)):
        options = {"packing": packing, "epoch_shuffle": shuffle, "too_long": "head"}
        label = f"packing {packing} shuffle {shuffle}"
        found[f"shards in windows, {label}"] = episodes("plain", T=16, B=4, shuffle_shards=2, **options)
        options = {"packing": packing, "too_long": "head"}
        for kind, sampling in samplings(shuffle).items():
            found[f"{kind} {label}"] = mixture(kind, sampling, T=16, B=4, **options)
    for split in ("train", "val"):
        for packing in (False, True):
            found[f"in order {split} packing {packing}"] = in_order(split, packing)
    for name in ("plain", "texts", "windows"):
        for world in (1, 4):
            found[f"streamed {name} on {world}"] = streamed(name, world)
    for packing, rank in itertools.product((False, True), (0, 1)):
        options = {"packing": packing, "rank": rank, "world_size": 2, "images": Pictures(), "epoch_drop_last": False}
        found[f"images packing {packing} rank {rank}"] = episodes("images", T=40, B=3, **options)
    for T in (5, 12):
        found[f"windows T={T}"] = opened("windows", T=T)
    for kind, options in (
        ("pairs", {"too_long": "tail"}),
        ("pairs", {"too_long": "head", "pad_to_multiple_of": 8}),
        ("ranked", {"too_long": "skip", "drop_last": False}),
    ):
        for rank in (0, 1):
            label = f"{kind} {options['too_long']} rank {rank}"
            found[label] = opened(f"{kind}/out", T=96 if kind == "ranked" else 24, rank=rank, world_size=2, **options)
    found |= {f"{name} of document 001": of_001(name) for name in ("windows", "sft")}
    found |= {f"stream of document 002, {name}": of_002(name) for name in ("plain", "weighted", "windows")}
    for workers in (0, 2):
        for packing in (False, True):
            found[f"{workers} workers packing {packing}"] = resumed(workers, packing)
    return found


def samplings(shuffle: bool) -> dict[str, Any]:
    """Mixtures and curricula of two datasets, and of the labels of one."""
    by_type: dict[str, Any] = {"weight_by": "type", "shuffle": shuffle}
    return {
        "weights": {"shuffle": shuffle, "weight_by": "dataset", "weights": (3, 1)},
        "random weights": {"mode": "random", "weight_by": "dataset", "weights": (3, 1)},
        "temperature": {"shuffle": shuffle, "temperature": 3.0},
        "one phase": {"shuffle": shuffle, "phases": ((50, 20),)},
        "curriculum": {"shuffle": shuffle, "phases": ((20, 3), (1, 30), (9, 0))},
        "types": {**by_type, "weights": {"chat": 1, "code": 2, "math": 0.5}},
        "random types": {**by_type, "mode": "random", "weights": {"chat": 1, "code": 2, "math": 0.5}},
    }


def episodes(name: str, *, T: int, B: int, **options: Any) -> Callable[[Path], Iterator[Any]]:
    """Two epochs and a batch, or 12 batches where there are no epochs."""

    def batches(folder: Path) -> Iterator[Any]:
        config = {"batch_size": B, "block_size": T, "device": "cpu"}
        loader = GPTEpisodeDataLoader(config, None, folder / name, pad_token_id=999, **with_sampling(options))
        n = 12 if options.get("batch_sampling_mode") == "random" else 2 * loader.steps_per_epoch() + 1
        return iter([loader.next_batch() for _ in range(n)])

    return batches


def mixture(kind: str, given: Any, *, T: int, B: int, **options: Any) -> Callable[[Path], Iterator[Any]]:
    """24 batches of two datasets, or of one by its labels."""

    def batches(folder: Path) -> Iterator[Any]:
        names = [str(folder / "plain")] if "types" in kind else [str(folder / "plain"), str(folder / "other")]
        values = dict(given)
        if isinstance(values.get("weights"), tuple):
            values["weights"] = dict(zip(names, values["weights"], strict=True))
        if "phases" in values:
            values["phases"] = [dict(zip(names, rows, strict=True)) for rows in values["phases"]]
        config = {"batch_size": B, "block_size": T, "device": "cpu"}
        loader = GPTEpisodeDataLoader(config, None, names, pad_token_id=999, sampling=Sampling(**values), **options)
        return iter([loader.next_batch() for _ in range(24)])

    return batches


def in_order(split: str, packing: bool) -> Callable[[Path], Iterator[Any]]:
    """Every row once, as an evaluation reads it."""

    def batches(folder: Path) -> Iterator[Any]:
        config = {"batch_size": 3, "block_size": 16, "device": "cpu"}
        options: dict[str, Any] = {"pad_token_id": 999, "packing": packing, "too_long": "tail"}
        loader = GPTEpisodeDataLoader(config, None, folder / "texts", **options)
        return iter([*loader.evaluation_batches(split), *loader.batches(split, epoch=3)])

    return batches


def streamed(name: str, world: int) -> Callable[[Path], Iterator[Any]]:
    """Two epochs from a store, of the last rank."""

    def batches(folder: Path) -> Iterator[Any]:
        options: dict[str, Any] = {"rank": world - 1, "world_size": world, "pad_token_id": 250, "epochs": 2}
        url, cache = f"file://{folder}/store/{name}", folder / f"cache-{world}"
        kind: dict[str, Any] = {} if name == "windows" else {"sampling": Sampling(shuffle_shards=2)}
        return iter(ng.loader(url, batch_size=2, sequence_length=9, cache_dir=cache, **kind, **options))

    return batches


def opened(name: str, *, T: int, **options: Any) -> Callable[[Path], Iterator[Any]]:
    """Two epochs by `ng.loader`."""

    def batches(folder: Path) -> Iterator[Any]:
        return iter(ng.loader(folder / name, batch_size=3, sequence_length=T, pad_token_id=7, epochs=2, **options))

    return batches


def resumed(workers: int, packing: bool) -> Callable[[Path], Iterator[Any]]:
    """Broken off and resumed within an epoch and over its end, from the state as JSON, by other numbers of workers."""

    def batches(folder: Path) -> Iterator[Any]:
        state = None
        for n, many in ((3, workers), (9, 0), (20, workers)):
            loader = ng.loader(
                folder / "plain",
                batch_size=3,
                sequence_length=16,
                packing=packing,
                pad_token_id=999,
                too_long="head",
                num_workers=many,
                epochs=3,
            )
            if state is not None:
                loader.load_state_dict(state)
            taken = list(itertools.islice(loader, n))
            yield from taken
            state = json.loads(json.dumps(loader.state_dict()))

    return batches


def of_001(name: str) -> Callable[[Path], Iterator[Any]]:
    """Random batches of the classes of document 001."""

    def batches(folder: Path) -> Iterator[Any]:
        generator = torch.Generator().manual_seed(5)
        if name == "windows":
            stream = PretrainTokenStreamDataset(str(folder / name / "train"), T=7, device="cpu")
            return iter([stream.get_batch(B=4, generator=generator) for _ in range(6)])
        special = json.loads((folder / name / "meta.json").read_text())["special_token_ids"]
        examples = SFTExampleDataset(
            str(folder / name / "train_tokens.bin"),
            str(folder / name / "train_idx.npy"),
            T=7,
            device="cpu",
            eot_id=special["eot"],
        )
        return iter([examples.get_batch(B=4, generator=generator) for _ in range(6)])

    return batches


def of_002(name: str) -> Callable[[Path], Iterator[Any]]:
    """Random windows of document 002's token streams."""

    def batches(folder: Path) -> Iterator[Any]:
        loader = GPTDataLoader({"batch_size": 3, "block_size": 6, "device": "cpu"}, None, folder / name, epoch_seed=9)
        return iter([loader.get_batch() for _ in range(8)])

    return batches


def digest(batches: Iterator[Any]) -> str:
    """A hash of all values of some batches; of states, the place, because a fingerprint is one of files."""
    found = hashlib.blake2b(digest_size=12)
    for batch in batches:
        if isinstance(batch, tuple):
            values: dict[str, Any] = {str(at): tensor for at, tensor in enumerate(batch)}
        else:
            values = {name: value for name, value in vars(batch).items() if value is not None and name != "state"}
            values |= values.pop("media", {})
            values |= {name: batch.state[name] for name in ("seed", "epoch", "position")}
        for name, value in sorted(values.items()):
            array = value.numpy() if isinstance(value, torch.Tensor) else value
            if isinstance(array, np.ndarray):
                found.update(f"{name} {array.dtype.str} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
            else:
                found.update(f"{name} {value!r}".encode())
    return found.hexdigest()


def main() -> None:
    """Write the digests of today's code."""
    with tempfile.TemporaryDirectory() as folder:
        write_datasets(Path(folder))
        digests = {}
        for name, batches in cases().items():
            digests[name] = digest(batches(Path(folder)))
    FROZEN.write_text(json.dumps(digests, indent=0) + "\n")
    print(len(digests), "cases", file=sys.stderr)


if __name__ == "__main__":
    main()
