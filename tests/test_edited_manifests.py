"""Manifests that someone edited, or that another tool wrote: every field of another type, missing, negative or huge.

Whatever a field holds, every command that reads it either works or says one line and ends with 3; no traceback.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

from niels_gpt.cache.build_cache import build_pretrain_cache, build_sft_cache
from niels_gpt.episodes import build_episodes
from niels_gpt.errors import DataError
from niels_gpt.explorer.dataset import Filter
from niels_gpt.explorer.renderer_list import RendererChoice
from niels_gpt.explorer.stored import StoredRows
from niels_gpt.export import export
from niels_gpt.samples import chats_file, notes_dir
from niels_gpt.sources.chat_files import chat_files
from niels_gpt.sources.text_files import text_files
from niels_gpt.tokenizer import SentencePieceTokenizer
from tests.test_bad_input import DATA, Niels, runner
from tests.test_manifests import as_the_original_writes_it

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
CASES = int(os.environ.get("NGPT_EDITS", "4"))  # of each manifest and command, drawn anew by the seed below
SEED, FOUND = 1, 1

ALL: Final = [
    "doctor {} --workers 1",
    "export {} --to hf --out out --overwrite",
    "fetch file://{} --out fetched",
    "EXPLORE",
]
CACHE: Final = ["info {}", "info {} --json", "verify {}", "show {} 0", *ALL]
EPISODES: Final = ["info {}", "info {} --json", "verify {}", "show {} 0", *ALL]
COMMANDS: Final = {
    "chats/meta.json": CACHE,
    "notes/meta.json": CACHE,
    "original/meta.json": CACHE,  # as other programs write it: the basic keys alone
    "episodes/episodes.json": EPISODES,
    "exported/export.json": ["import {} --from hf --out imported --overwrite"],
}
READERS: Final = [(manifest, command) for manifest, commands in COMMANDS.items() for command in commands]


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
    if value is MISSING:
        del holder[place[-1]]
    else:
        holder[place[-1]] = value
    return copy


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory, tokenizer: SentencePieceTokenizer) -> Path:
    """A cache of each kind, episodes, and an export of them."""
    folder = tmp_path_factory.mktemp("pristine")
    chats = chat_files([chats_file()])
    build_sft_cache(chats.iterate(), str(folder / "chats"), tokenizer=tokenizer, val_frac=0.1, seed=42)
    build_pretrain_cache(
        text_files([notes_dir()]).iterate(),
        str(folder / "notes"),
        tokenizer=tokenizer,
        max_train_tokens=3000,
        max_val_tokens=1000,
        shard_bytes=2000,
        seed=42,
        shuffle_buffer=None,
    )
    shutil.copytree(folder / "chats", folder / "original")
    as_the_original_writes_it(folder / "original", nested=True)
    build_episodes(chats.iterate(), folder / "episodes", encoder=tokenizer)
    export(folder / "episodes", to="hf", out=folder / "exported")
    return folder


@pytest.fixture
def niels(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    tokenizer_dir: Path,
    pristine: Path,
) -> Niels:
    """Runs a command line in `tmp_path`, beside copies of the datasets."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(pristine, tmp_path, dirs_exist_ok=True)
    return runner(capsys, monkeypatch, tokenizer_dir)


def explored(folder: Path) -> None:
    """What the page asks for at once."""
    rows = StoredRows(folder, [])
    for split in rows.splits:
        rows.about(split)
        rows.page(split, 0, 3, Filter())
        rows.detail(split, 0, RendererChoice("", ""), [])
    rows.close()


@pytest.mark.parametrize(("manifest", "command"), READERS)
def test_one_line_or_it_works(niels: Niels, manifest: str, command: str) -> None:
    path = Path(manifest).resolve()
    whole = json.loads(path.read_bytes())
    whole.pop("manifest_sha256", None)  # else every edit is refused by it alone; see test_manifests.py
    draw = random.Random(f"{SEED} {manifest} {command}")
    cases = [(place, value) for place in places(whole) for value in WRONG]
    for place, value in draw.sample(cases, min(CASES, len(cases))):
        path.write_text(json.dumps(edited(whole, place, value)))
        case = f"{'.'.join(place)} = {'missing' if value is MISSING else value!r}: {command}"
        if command == "EXPLORE":
            with suppress(DataError):
                explored(path.parent)
            continue
        shutil.rmtree("fetched", ignore_errors=True)  # `fetch` refuses a directory that holds something else
        try:
            result = niels(*command.format(path.parent).split())
        except Exception as error:  # what a reader raises for a wrong value may be anything; the failure names the case
            raise AssertionError(case) from error
        errors = [line for line in result.err.splitlines() if line.startswith("error:")]
        assert (result.code, len(errors)) in ((0, 0), (DATA, 1), (FOUND, 0)), f"{case}: {result}"
