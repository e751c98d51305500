"""A build in units writes the bytes of a build without them, whatever the cuts, workers and faults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from niels_gpt.builds.executor import LocalRunner
from niels_gpt.builds.sentinel_encoder import SentinelEncoder
from niels_gpt.builds.units import units_path
from niels_gpt.episodes import build_episodes
from niels_gpt.errors import DataError, OutputExists, UsageError
from niels_gpt.progress import Progress
from niels_gpt.sources.chat_files import ChatFiles, chat_files
from niels_gpt.store.staging import StagedDirectory
from niels_gpt.tokenizer import SentencePieceTokenizer
from tests.scale.builds import KINDS, build, units, write_chats
from tests.test_cache_determinism import digests


class Notes(Progress):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> ChatFiles:
    """400 rows in about 130 kB, with bad ones."""
    return chat_files([write_chats(tmp_path_factory.mktemp("chats") / "chats.jsonl", 400)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("slice_bytes", [9_000, 1 << 30])
def test_units_give_the_bytes_of_a_build_without(
    tmp_path: Path, chats: ChatFiles, tokenizer: SentencePieceTokenizer, kind: str, slice_bytes: int
) -> None:
    build(kind, chats, tmp_path / "serial", tokenizer)
    build(kind, chats, tmp_path / "units", tokenizer, units(slice_bytes))
    whole = digests(tmp_path / "serial")
    assert "rejected.jsonl" in whole
    assert digests(tmp_path / "units") == whole
    assert {path.name for path in tmp_path.iterdir()} == {"serial", "units"}


def test_units_of_a_renderer(tmp_path: Path) -> None:
    """Rows that cannot be rendered, between rows that cannot be read: their order is that of the file."""
    pytest.importorskip("tokenizers")
    from niels_gpt.renderers.registry import RendererOptions
    from tests.renderers.tiny_families import folder_of

    path = tmp_path / "chats.jsonl"
    good = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    odd = {"messages": [{"role": "judge", "content": "a"}, {"role": "assistant", "content": "b"}]}
    silent = {"messages": [{"role": "user", "content": "a"}]}
    rows = [json.dumps(good), json.dumps(silent), "{", json.dumps(odd), json.dumps(good), "[", json.dumps(silent)] * 9
    path.write_text("\n".join(rows))
    renderer = RendererOptions("qwen3").open(folder_of("qwen3"))
    for name, executor in (("serial", {}), ("units", {"executor": units(200)}), ("pool", {"executor": units(900, 2)})):
        build("sft", chat_files([path]), tmp_path / name, renderer, token_dtype="uint32", **executor)
    assert digests(tmp_path / "units") == digests(tmp_path / "serial") == digests(tmp_path / "pool")
    wheres = [json.loads(line)["where"] for line in (tmp_path / "units" / "rejected.jsonl").read_text().splitlines()]
    assert wheres == [f"{path}:{number + 1}" for number, row in enumerate(rows) if row != json.dumps(good)]


@pytest.mark.parametrize(
    ("workers", "most"),
    [(1, 0), (1, 1), (1, 4), (2, 1), *(pytest.param(2, most, marks=pytest.mark.slow) for most in (0, 4))],
)
def test_bad_rows_count_over_all_units(
    tmp_path: Path, chats: ChatFiles, tokenizer: SentencePieceTokenizer, most: int, workers: int
) -> None:
    """The same row stops the build, with the same words."""
    said = []
    for name, executor in (("serial", {}), ("units", {"executor": units(6_000, workers)})):
        with pytest.raises(DataError) as caught:
            build("sft", chats, tmp_path / name, tokenizer, max_bad_rows=most, **executor)
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert not (tmp_path / "units").exists()


def test_a_build_in_this_process_continues_too(
    tmp_path: Path, chats: ChatFiles, tokenizer: SentencePieceTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an executor: the same units, and the same way."""
    monkeypatch.setattr("niels_gpt.builds.build.IN_THIS_PROCESS", units(13_000))
    given = {"encoder": tokenizer, "source_config": chats.config(), "source_name": chats.name}
    with pytest.raises(DataError):
        build_episodes(chats, tmp_path / "out", max_bad_rows=12, **given)
    assert len(list(units_path(tmp_path / "out").glob("*/unit_*"))) > 1
    progress = Notes()
    build_episodes(chats, tmp_path / "out", max_bad_rows="all", progress=progress, **given)
    assert any("continues with" in note for note in progress.notes)
    build_episodes(chats.iterate(), tmp_path / "whole", max_bad_rows="all", **given)
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")
    assert {path.name for path in tmp_path.iterdir()} == {"out", "whole"}


def test_units_of_another_build_are_removed(
    tmp_path: Path, chats: ChatFiles, tokenizer: SentencePieceTokenizer
) -> None:
    out = tmp_path / "out"
    with pytest.raises(DataError):
        build("sft", chats, out, tokenizer, units(13_000), max_bad_rows=12)
    build("sft", chats, out, tokenizer, units(13_000), default_system_text="Be brief.")
    build("sft", chats, tmp_path / "serial", tokenizer, default_system_text="Be brief.")
    assert digests(out) == digests(tmp_path / "serial")


def test_without_a_known_source_nothing_is_resumed(
    tmp_path: Path, chats: ChatFiles, tokenizer: SentencePieceTokenizer
) -> None:
    """Nothing says that the rows are the same, so an earlier run's units are not trusted."""
    out, progress = tmp_path / "out", Notes()
    with pytest.raises(DataError):
        build("sft", chats, out, tokenizer, units(13_000), max_bad_rows=12, source_config=None)
    assert not units_path(out).exists()
    build("sft", chats, out, tokenizer, units(13_000), source_config=None, progress=progress)
    assert not any("continues" in note for note in progress.notes)


@pytest.mark.parametrize("harm", ["flipped", "short", "half", "empty"])
def test_a_damaged_unit_is_built_again(
    tmp_path: Path, chats: ChatFiles, tokenizer: SentencePieceTokenizer, harm: str
) -> None:
    out, progress = tmp_path / "out", Notes()
    with pytest.raises(DataError):
        build("episodes", chats, out, tokenizer, units(13_000), max_bad_rows=12)
    unit = sorted(units_path(out).glob("*/unit_*"))[1]
    data = unit.read_bytes()
    at = len(data) // 2
    harmed = {"short": data[:-4], "half": data[:at], "flipped": data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]}
    unit.write_bytes(harmed.get(harm, b""))
    build("episodes", chats, out, tokenizer, units(13_000), progress=progress)
    assert harm == "empty" or any("the unit is built again" in note for note in progress.notes)
    build("episodes", chats, tmp_path / "serial", tokenizer)
    assert digests(out) == digests(tmp_path / "serial")


def test_a_finished_build_is_not_built_twice_and_leaves_no_units(
    tmp_path: Path, chats: ChatFiles, tokenizer: SentencePieceTokenizer
) -> None:
    out, progress = tmp_path / "out", Notes()
    build("sft", chats, out, tokenizer, units(13_000))
    (units_path(out) / "left").mkdir(parents=True)  # killed between the rename and the clearing up
    build("sft", chats, out, tokenizer, units(13_000), progress=progress)
    assert any("already built" in note for note in progress.notes)
    assert {path.name for path in tmp_path.iterdir()} == {"out"}


def test_a_second_build_at_once_leaves_the_units_of_the_first(
    tmp_path: Path, chats: ChatFiles, tokenizer: SentencePieceTokenizer
) -> None:
    out = tmp_path / "out"
    unit = units_path(out) / "recipe" / "unit_0000000"
    unit.parent.mkdir(parents=True)
    unit.touch()
    with StagedDirectory(out, manifest="meta.json"):
        with pytest.raises(OutputExists, match="another process is building here right now"):
            build("sft", chats, out, tokenizer, units(10_000))
        assert unit.is_file()


def test_what_cannot_be_cut_or_sent_is_refused(
    tmp_path: Path, chats: ChatFiles, tokenizer: SentencePieceTokenizer
) -> None:
    with pytest.raises(UsageError, match="chain cannot be cut into units; pass the source itself"):
        build_episodes(chats.iterate(), tmp_path / "out", encoder=tokenizer, executor=units(100))

    class Private(SentinelEncoder):
        refusal: Exception

        def __reduce__(self) -> Any:
            raise self.refusal

    for error in (TypeError("not for others"), ValueError("pointers")):  # as ctypes; libraries have errors of their own
        Private.refusal = error
        with pytest.raises(UsageError, match="cannot be sent to other processes"):
            build_episodes(chats, tmp_path / "out", encoder=Private(tokenizer), executor=units(100, 2))
    with pytest.raises(UsageError, match="workers is 0"):
        LocalRunner(0)
    assert list(tmp_path.iterdir()) == []
