"""docs/formats.md against real files: its own code reads what the package builds, without importing the package."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from niels_gpt.cache.build_cache import build_pretrain_cache, build_sft_cache
from niels_gpt.cache.formats import UNLIMITED_TOKENS
from niels_gpt.config import TrainingConfig
from niels_gpt.episodes import GPTEpisodeDataLoader, build_episodes
from niels_gpt.episodes.build import pack_episodes
from niels_gpt.format.sft import DEFAULT_SYSTEM_TEXT
from niels_gpt.preferences import build_preferences
from niels_gpt.samples import chats_file, notes_dir
from niels_gpt.sources.chat_files import chat_files
from niels_gpt.sources.preference_files import preference_files
from niels_gpt.sources.text_files import text_files
from niels_gpt.tokenizer import SentencePieceTokenizer
from tests.conftest import REPOSITORY
from tests.test_documentation import blocks

PAGE = REPOSITORY / "docs" / "formats.md"


@pytest.fixture
def names(tmp_path: Path, tokenizer: SentencePieceTokenizer, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the blocks of the page define and read, run where the datasets of the page are."""
    pytest.importorskip("tokenizers")
    from niels_gpt.renderers import create_renderer
    from tests.renderers.tiny_families import folder_of

    monkeypatch.chdir(tmp_path)
    chats, notes = chat_files([chats_file()]), text_files([notes_dir()])
    budgets = {"max_train_tokens": UNLIMITED_TOKENS, "max_val_tokens": UNLIMITED_TOKENS, "val_frac": 0.1}
    build_pretrain_cache(
        notes.iterate(),
        "cache/pretrain/notes",
        tokenizer=tokenizer,
        shard_bytes=8192,
        seed=1,
        shuffle_buffer=None,
        **budgets,
    )
    build_sft_cache(chats.iterate(), "cache/sft/chats", tokenizer=tokenizer, val_frac=0.1, seed=1)
    renderer = create_renderer(str(folder_of("qwen3")), "qwen3")
    build_sft_cache(chats.iterate(), "cache/sft/qwen3", tokenizer=renderer, val_frac=0.1, seed=1, token_dtype="uint32")
    build_episodes(chats.iterate(), "episodes/chats", encoder=tokenizer, seed=1)
    build_episodes(
        chats.iterate(), "episodes/sharded", encoder=tokenizer, seed=1, shard_bytes=20_000, mask_dtype="float32"
    )
    preferences = [{"prompt": f"Question {n}?", "chosen": "Yes.", "rejected": "No, never."} for n in range(8)]
    Path("pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in preferences), encoding="utf-8")
    build_preferences(preference_files(["pairs.jsonl"]), "preferences/pairs", encoder=renderer, val_frac=0)
    Path("pairs.jsonl").unlink()
    config = TrainingConfig(batch_size=2, block_size=2048, device="cpu")
    GPTEpisodeDataLoader(config, tokenizer, "episodes/chats", packing=True)  # leaves its packing plan

    found = blocks(PAGE)
    assert len(found) == 6
    assert "niels_gpt" not in "".join(found), "the page reads the files by their own rules"
    names: dict[str, Any] = {}
    for number, block in enumerate(found):
        exec(compile(block, f"docs/formats.md, block {number}", "exec"), names)
    return names | {"tokenizer": tokenizer, "chats": list(chats.iterate()), "renderer": renderer}


def serialised(messages: Any, tokenizer: SentencePieceTokenizer) -> list[int]:
    """A conversation as the page says: role, ids of the content, eot, and a system message first."""
    special = tokenizer.special_token_ids()
    roles = {"system": special["sys"], "user": special["usr"], "assistant": special["asst"]}
    if messages[0]["role"] != "system":
        messages = [{"role": "system", "content": DEFAULT_SYSTEM_TEXT}, *messages]
    parts = [[roles[one["role"]], *tokenizer.encode(one["content"]), special["eot"]] for one in messages]
    return [token for part in parts for token in part]


def test_the_page_reads_what_was_written(names: dict[str, Any]) -> None:
    """Ids, masks and texts that the page's code reads are those of the inputs."""
    tokenizer, renderer = names["tokenizer"], names["renderer"]
    special = tokenizer.special_token_ids()
    eot, documents = special["eot"], {document.text for document in text_files([notes_dir()]).iterate()}
    for stream in names["streams"].values():
        assert stream[-1] == eot
        texts = np.split(stream, np.flatnonzero(stream == eot)[:-1] + 1)
        documents -= {tokenizer.decode(ids[:-1].tolist()) for ids in texts}
    assert not documents

    expected = [serialised(chat.messages, tokenizer) for chat in names["chats"]]
    for ids, mask in zip(names["examples"], names["masks"], strict=True):
        assert ids.tolist() in expected
        assert mask.sum() > 0
        assert mask[0] == 0
    # The caches and the episodes hold the same conversations: same seed, same split.
    for stored in (names["episodes"], names["sharded"]):
        for (ids, mask), example, trained in zip(stored, names["examples"], names["masks"], strict=True):
            assert ids.tolist() == example.tolist()
            assert mask.tolist() == trained.tolist()

    rendered = [renderer.render(chat.messages, tools=chat.tools) for chat in names["chats"]]
    known = {tuple(one.token_ids): one.sampled_mask for one in rendered}
    for ids, mask in zip(names["rendered_examples"], names["rendered_masks"], strict=True):
        assert mask.astype(bool).tolist() == known[tuple(ids.tolist())]


def test_every_file_is_on_the_page(names: dict[str, Any]) -> None:
    """No build leaves a file whose name the page does not have."""
    text = PAGE.read_text(encoding="utf-8")
    for path in Path().rglob("*"):
        if path.is_file() and "packing" not in path.parts:
            generic = path.name.replace("val_", "train_")
            assert generic.replace("shard_00003", "shard_00001") in text or path.name.startswith("shard_"), path


@pytest.mark.parametrize(
    ("manifest", "place"),
    [("meta.json", "cache/pretrain/notes"), ("meta.json", "cache/sft/qwen3"), ("episodes.json", "episodes/sharded")],
)
def test_every_key_is_on_the_page(names: dict[str, Any], manifest: str, place: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    for key, value in json.loads(Path(place, manifest).read_bytes()).items():
        totals = key.startswith(("train_", "val_"))  # the page says that totals are repeated at the top level
        assert totals or f"`{key}`" in text or f"`{key}:" in text, f"{key} = {value!r} is not on the page"


def test_a_changed_byte_is_found(names: dict[str, Any]) -> None:
    """The page's own check refuses an edited manifest and a damaged file."""
    path = Path("episodes/chats/episodes.json")
    whole = path.read_text()
    path.write_text(whole.replace('"seed": 1,', '"seed": 2,'))
    with pytest.raises(AssertionError):
        names["open_manifest"](path)
    path.write_text(whole)
    tokens = Path("episodes/chats/train/tokens.bin")
    data = bytearray(tokens.read_bytes())
    data[100] ^= 1
    tokens.write_bytes(data)
    with pytest.raises(AssertionError):
        names["open_manifest"](path)


def test_packed_episodes_are_as_the_page_says(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    """Texts are numbered from 0 in every episode, and the manifest has those of the keys that the page names."""
    build_episodes(chat_files([chats_file()]).iterate(), tmp_path / "chats", encoder=tokenizer, seed=1)
    pack_episodes(tmp_path / "chats", tmp_path / "packed", block_size=2048)
    numbers = np.fromfile(tmp_path / "packed/train/segment_ids.bin", "<u2")
    for start, length in np.fromfile(tmp_path / "packed/train/episodes.idx", "<u8").reshape(-1, 2).tolist():
        row = numbers[start : start + length]
        assert np.unique(row).tolist() == list(range(row[-1] + 1))
    assert numbers.max() > 0
    manifest = json.loads((tmp_path / "packed/episodes.json").read_text())
    text = PAGE.read_text(encoding="utf-8")
    more, packed = text.split("More keys of `episodes.json`")[1].split("The manifest of `niels-gpt pack` has only ")
    named = set(re.findall(r"`(\w+)`", more))
    assert named & manifest.keys() == set(re.findall(r"`(\w+)`", packed.split("Readers:")[0])) - {"dataset_config"}
    assert {"block_size", "too_long", "shard_bytes"} <= manifest["dataset_config"].keys()
