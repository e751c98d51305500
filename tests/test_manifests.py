"""A manifest is told from an edited one, and the names in it stay below its directory."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch

from niels_gpt.cache.build_cache import build_pretrain_cache, build_sft_cache
from niels_gpt.cache.meta import sha256_file
from niels_gpt.cache.pretrain_dataset import PretrainTokenStreamDataset
from niels_gpt.cache.sft_dataset import SFTExampleDataset
from niels_gpt.episodes import build_episodes
from niels_gpt.errors import CacheError
from niels_gpt.export import export
from niels_gpt.imports import import_episodes
from niels_gpt.scale.publish import publish
from niels_gpt.store.kinds import open_manifest, open_meta
from niels_gpt.store.manifest import HASH_KEY, check_file_names, check_manifest_hash, with_manifest_hash
from niels_gpt.store.verify import verify_dataset
from niels_gpt.tokenizer import SentencePieceTokenizer
from tests.test_bad_input import DATA, Niels, runner
from tests.test_sft_cache_roundtrip import CHATS

MANIFESTS: Final = {"sft": "meta.json", "text": "meta.json", "episodes": "episodes.json"}
CHECKS: Final[dict[str, Callable[[Path], Any]]] = {"sft": open_meta, "text": open_meta, "episodes": open_manifest}


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory, tokenizer: SentencePieceTokenizer) -> Path:
    folder = tmp_path_factory.mktemp("pristine")
    config = {"inputs": [{"name": "chats.jsonl"}]}
    build_sft_cache(
        CHATS, str(folder / "sft"), tokenizer=tokenizer, val_frac=0.2, seed=42, source_name="c", source_config=config
    )
    build_pretrain_cache(
        [f"text {number} " * 20 for number in range(60)],
        str(folder / "text"),
        tokenizer=tokenizer,
        max_train_tokens=3000,
        max_val_tokens=1000,
        shard_bytes=2000,
        seed=42,
        shuffle_buffer=None,
        source_name="t",
    )
    build_episodes(CHATS, folder / "episodes", encoder=tokenizer, source_name="e")
    export(folder / "episodes", to="hf", out=folder / "exported")
    return folder


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    shutil.copytree(pristine, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture
def niels(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tokenizer_dir: Path, folder: Path
) -> Niels:
    monkeypatch.chdir(folder)
    return runner(capsys, monkeypatch, tokenizer_dir)


def change(path: Path, **fields: Any) -> None:
    """Edit fields of a manifest as a person would; `None` takes one out."""
    held = json.loads(path.read_bytes()) | fields
    out = [key for key, value in fields.items() if value is None]
    path.write_text(json.dumps({key: value for key, value in held.items() if key not in out}, indent=1))


# ---- the hash of a manifest


@pytest.mark.parametrize("kind", MANIFESTS)
@pytest.mark.parametrize("edit", [{"seed": 43}, {"comment": "x"}, {HASH_KEY: "0" * 64}], ids=str)
def test_an_edit_is_found(folder: Path, niels: Niels, kind: str, edit: dict[str, Any]) -> None:
    path = folder / kind / MANIFESTS[kind]
    change(path, **edit)
    with pytest.raises(CacheError, match="edited or damaged since it was written"):
        CHECKS[kind](folder / kind)
    result = niels("verify", folder / kind)
    assert (result.code, "edited or damaged since it was written" in result.err) == (DATA, True)
    with pytest.raises(CacheError, match="edited or damaged"):
        publish(folder / kind, f"file://{folder}/there")


@pytest.mark.parametrize("kind", MANIFESTS)
def test_a_manifest_without_hash_is_accepted_and_verify_says_so(folder: Path, niels: Niels, kind: str) -> None:
    """As earlier versions wrote them, and as one edits a manifest on purpose."""
    verify = ("verify", folder / kind)
    before = niels(*verify)
    assert (before.code, "not judged" in before.out) == (0, False)
    change(folder / kind / MANIFESTS[kind], **{HASH_KEY: None, "seed": 43})
    CHECKS[kind](folder / kind)
    result = niels(*verify)
    assert result.code == 0
    assert f"not judged: {MANIFESTS[kind]} itself: no manifest_sha256 in it" in result.out
    assert json.loads(niels(*verify, "--json").out)["not_judged"] != []


@pytest.mark.parametrize("kind", MANIFESTS)
def test_other_white_space_and_another_order_are_the_same_manifest(folder: Path, kind: str) -> None:
    path = folder / kind / MANIFESTS[kind]
    held = json.loads(path.read_bytes())
    path.write_text(json.dumps(dict(reversed(held.items()))))
    CHECKS[kind](folder / kind)


def test_the_hash_is_of_the_manifest_as_json_has_it(tmp_path: Path) -> None:
    written = with_manifest_hash({"b": (1, 2), 10: 0.1, 9: float("inf"), "a": None})
    assert list(written)[-1] == HASH_KEY
    again = json.loads(json.dumps(written))
    check_manifest_hash(tmp_path, again)
    assert with_manifest_hash(again) == again
    with pytest.raises(CacheError, match="edited"):
        check_manifest_hash(tmp_path, again | {"10": 0.2})


def test_an_edited_export_is_not_imported(folder: Path) -> None:
    source = json.loads((folder / "exported/export.json").read_bytes())["source"]
    change(folder / "exported/export.json", source=source | {"vocab_size": 7_000_000})
    with pytest.raises(CacheError, match=r"export.json: edited or damaged"):
        import_episodes(folder / "exported", "hf", folder / "back")


# ---- names

OUTSIDE: Final = ("../secret.txt", "/etc/passwd", "", "./meta2.json", "a//b", "a/", "train/.part", "a\0b", "a\x1b[2Jb")
ODD: Final = ("a\\b", "\ud800", "x" * 300, "x/" * 600 + "x", "x" * 500_000)


@pytest.mark.parametrize("name", [*OUTSIDE, *ODD], ids=lambda name: repr(name[:20]))
@pytest.mark.parametrize("kind", MANIFESTS)
def test_a_name_that_leaves_the_directory_is_refused(folder: Path, niels: Niels, kind: str, name: str) -> None:
    (folder / "secret.txt").write_text("secret")
    record = {"bytes": 6, "sha256": sha256_file(str(folder / "secret.txt"))}
    path = folder / kind / MANIFESTS[kind]
    held = json.loads(path.read_bytes())
    path.write_text(json.dumps(with_manifest_hash(held | {"files": held["files"] | {name: record}})))
    with pytest.raises(CacheError, match="do not trust this dataset") as error:
        CHECKS[kind](folder / kind)
    assert len(str(error.value)) < 1000
    with pytest.raises(CacheError, match="do not trust this dataset"):
        publish(folder / kind, f"file://{folder}/there")
    assert not (folder / "there").exists()
    result = niels("verify", folder / kind)
    assert (result.code, "do not trust this dataset" in " ".join(result.err.split())) == (DATA, True)


def test_names_of_files(tmp_path: Path) -> None:
    check_file_names(tmp_path / "meta.json", ["train/shard_00000.bin", "rejected.jsonl", "a b/é.bin", "a..b"])
    with pytest.raises(CacheError, match=r"lists 'meta.json'"):
        check_file_names(tmp_path / "meta.json", ["meta.json"])


# ---- caches of other programs, whose meta has the basic keys alone


def as_the_original_writes_it(cache: Path, *, nested: bool) -> dict[str, Any]:
    """Replace a cache's meta by one with exactly the keys that every meta.json must have."""
    meta = json.loads((cache / "meta.json").read_bytes())
    names = ["dataset_name", "split_rule", "seed", "token_dtype", "tokenizer_sha256", "vocab_size", "special_token_ids"]
    own = {name: meta[name] for name in names} | {"dataset_config": "CC-MAIN-2024-10"}
    kinds = {"sft": ("train_examples", "val_examples"), "pretrain": ("train_tokens", "val_tokens")}
    totals = {name: meta["totals"][name] for name in kinds[meta["kind"]]}
    if meta["kind"] == "pretrain":
        own["shard_bytes"] = meta["shard_bytes"]
    own |= {"totals": totals} if nested else totals
    (cache / "meta.json").write_text(json.dumps(own))
    (cache / "rejected.jsonl").unlink(missing_ok=True)
    return own


@pytest.mark.parametrize("nested", [True, False])
def test_a_cache_of_the_original_system_opens(
    folder: Path, niels: Niels, nested: bool, tokenizer: SentencePieceTokenizer
) -> None:
    draw = torch.Generator
    files = [str(folder / "sft" / name) for name in ("train_tokens.bin", "train_idx.npy")]
    eot = tokenizer.special_token_ids()["eot"]
    chats = SFTExampleDataset(*files, T=32, device="cpu", eot_id=eot).get_batch(B=4, generator=draw().manual_seed(1))
    shards = str(folder / "text/train")
    texts = PretrainTokenStreamDataset(shards, T=8, device="cpu").get_batch(B=4, generator=draw().manual_seed(1))
    as_the_original_writes_it(folder / "sft", nested=nested)
    as_the_original_writes_it(folder / "text", nested=nested)
    opened = SFTExampleDataset(*files, T=32, device="cpu", eot_id=eot, tokenizer=tokenizer)
    for expected, found in zip(chats, opened.get_batch(B=4, generator=draw().manual_seed(1)), strict=True):
        assert expected.equal(found)
    again = PretrainTokenStreamDataset(shards, T=8, device="cpu", tokenizer=tokenizer)
    for expected, found in zip(texts, again.get_batch(B=4, generator=draw().manual_seed(1)), strict=True):
        assert expected.equal(found)
    for cache in ("sft", "text"):
        result = niels("verify", folder / cache)
        assert result.code == 0
        assert "not judged: meta.json records no checksums" in result.out
        assert niels("info", folder / cache).code == 0
        assert niels("show", folder / cache, "0").code == 0
        assert niels("doctor", folder / cache, "--workers", "1").code in ((0, 1) if cache == "sft" else (3,))
        export(folder / cache, to="hf", out=folder / f"{cache}-exported")
        with pytest.raises(CacheError, match="without the checksums"):
            publish(folder / cache, f"file://{folder}/there")


def test_what_such_a_meta_says_is_checked(folder: Path) -> None:
    meta = as_the_original_writes_it(folder / "sft", nested=False)
    path = folder / "sft/meta.json"
    tokens = folder / "sft/train_tokens.bin"
    held = tokens.read_bytes()
    tokens.write_bytes(held[:-1])
    (finding,) = verify_dataset(folder / "sft")
    assert "is not a multiple of" in finding
    tokens.write_bytes(held)
    change(path, train_examples=meta["train_examples"] + 1)
    with pytest.raises(CacheError, match="but the files hold"):
        open_meta(folder / "sft")
    for key, value, told in [
        ("vocab_size", "many", "vocab_size is 'many'"),
        ("train_examples", -1, "train_examples is -1"),
        ("special_token_ids", {"eot": 3}, "special_token_ids lacks sys, usr, asst"),
        ("seed", None, "lacks seed"),
        ("token_dtype", "float", "token_dtype is 'float'"),
    ]:
        path.write_text(json.dumps(meta))
        change(path, **{key: value})
        with pytest.raises(CacheError, match=told):
            open_meta(folder / "sft")


# ---- an index's header


def test_every_flipped_byte_of_an_index_header_is_found(tmp_path: Path) -> None:
    """Of each byte some other values: refused in words, or the same offsets; numpy's reader has tracebacks here."""
    np.array([3, 7, 4] * 100).astype("<u2").tofile(tmp_path / "t.bin")
    path = tmp_path / "i.npy"
    np.save(path, np.arange(0, 300, 3))
    held = path.read_bytes()
    draw, refused = np.random.default_rng(1), 0
    for at in range(len(held) - 800):
        for value in {0, 255, 39, 40, 32, *draw.integers(0, 256, 4).tolist()} - {held[at]}:
            path.write_bytes(held[:at] + bytes([value]) + held[at + 1 :])
            try:
                data = SFTExampleDataset(str(tmp_path / "t.bin"), str(path), T=4, device="cpu", eot_id=4, asst_id=3)
            except CacheError:
                refused += 1
            else:
                assert len(data) == 100, (at, value)
    assert refused > 300


# ---- every field of another type, missing, negative or huge

MISSING: Final = object()
WRONG: Final = (
    MISSING,
    None,
    True,
    -1,
    0,
    1.5,
    2**70,
    1e400,
    "",
    "x",
    "../x",
    [],
    [1],
    ["x"],
    {},
    {"x": 1},
    {"x": None},
)
EDITS = int(os.environ.get("NGPT_EDITS", "4"))  # of each manifest and command
READERS: Final = ("info {}", "info {} --json", "verify {}", "show {} 0", "doctor {} --workers 1")
SENDERS: Final = ("export {} --to hf --out out --overwrite", "fetch file://{} --out fetched")
READ_BY: Final = {
    **dict.fromkeys(("sft/meta.json", "text/meta.json", "original/meta.json"), (*READERS, *SENDERS)),
    "episodes/episodes.json": (*READERS, *SENDERS),
    "exported/export.json": ("import {} --from hf --out imported --overwrite",),
}


def places(value: Any, at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every field."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*at, key)
            yield from places(inner, (*at, key))


def edited(manifest: dict[str, Any], place: tuple[str, ...], value: Any) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(manifest))
    holder = copy
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    if value is MISSING:
        del holder[place[-1]]
    return copy


@pytest.mark.parametrize(("manifest", "command"), [(name, line) for name, lines in READ_BY.items() for line in lines])
def test_a_wrong_field_is_one_line_or_works(folder: Path, niels: Niels, manifest: str, command: str) -> None:
    shutil.copytree(folder / "sft", folder / "original")  # as other programs write it: the basic keys alone
    as_the_original_writes_it(folder / "original", nested=True)
    path = folder / manifest
    whole = json.loads(path.read_bytes())
    whole.pop(HASH_KEY, None)  # else every edit is refused by it alone
    draw = random.Random(f"{manifest} {command}")
    for place, value in draw.sample([(place, value) for place in places(whole) for value in WRONG], EDITS):
        path.write_text(json.dumps(edited(whole, place, value)))
        case = f"{'.'.join(place)} = {'missing' if value is MISSING else value!r}: {command}"
        shutil.rmtree("fetched", ignore_errors=True)  # `fetch` refuses a directory that holds something else
        try:
            result = niels(*command.format(path.parent).split())
        except Exception as error:  # what a reader raises for a wrong value may be anything; the failure names the case
            raise AssertionError(case) from error
        errors = [line for line in result.err.splitlines() if line.startswith("error:")]
        assert (result.code, len(errors)) in ((0, 0), (DATA, 1), (1, 0)), f"{case}: {result}"
