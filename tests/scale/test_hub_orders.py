"""`build-all --order units` against a local hub: workers, kills, faults, and what is downloaded."""

from __future__ import annotations

import io
import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("datasets", reason="the extra 'hub' is not installed")
import pyarrow as pa
import pyarrow.parquet as pq

from niels_gpt.cache.meta import open_meta
from niels_gpt.sources.files.inputs import Document
from niels_gpt.sources.hub_corpora import articles
from niels_gpt.tokenizer import SentencePieceTokenizer
from tests.hub import Fault, Files, Hub, Repository, card, parquet, read_rows, wikitext
from tests.test_build_all import FILES, FINEWEB, WIKITEXT, Builder, hub_rows

SNAPSHOT, NUMBER = "CC-MAIN-2024-10", 12
ALL = ("--order", "units", "--skip", "roam", "--skip", "dolly15k", "--skip", "oasst1")
ONLY = ("--order", "units", "--only", "fineweb_edu", "--workers", 2)
PLACE = "pretrain/fineweb_edu"


def fineweb() -> Files:
    """Twelve files (two windows), each of two row groups that are units of their own because of a large column."""
    texts = [row["text"] for row in hub_rows(FINEWEB, f"data/{SNAPSHOT}")]
    files: Files = {"README.md": card({SNAPSHOT: {"train": f"data/{SNAPSHOT}/*"}})}
    for number in range(NUMBER):
        rows = [{"text": text, "url": "0" * (1 << 20)} for text in texts[number::NUMBER]]
        sink = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows), sink, row_group_size=5, use_dictionary=False)
        files[f"data/{SNAPSHOT}/train-{number:05d}-of-{NUMBER:05d}.parquet"] = sink.getvalue()
    return files


REPOSITORIES = {FINEWEB: Repository(fineweb()), WIKITEXT: Repository(FILES[WIKITEXT])}


class HastyHub(Hub):
    """Whose clients do not wait long for a stalled body."""

    def environment(self, home: Path, *, longest_sleep: float | None = None, **more: str) -> dict[str, str]:
        return super().environment(home, longest_sleep=longest_sleep, **more) | {"HF_HUB_DOWNLOAD_TIMEOUT": "1"}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with HastyHub(REPOSITORIES) as running:
        yield running


@pytest.fixture
def builder(tmp_path: Path, tokenizer_dir: Path) -> Builder:
    return Builder(tmp_path, tokenizer_dir)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Builder:
    """Built by one process without any trouble."""
    undisturbed = Builder(tmp_path_factory.mktemp("whole"), tokenizer_dir)
    with Hub(REPOSITORIES) as healthy:
        code, printed = undisturbed.run(healthy, *ALL)
    assert code == 0, printed
    return undisturbed


def fineweb_files(builder: Builder) -> dict[str, str]:
    return {name: digest for name, digest in builder.digests().items() if name.startswith(PLACE)}


def finished(builder: Builder) -> list[Path]:
    return sorted((builder.cache / "pretrain").glob(".fineweb_edu.units/*/unit_*/unit.json"))


def wait_for_units(builder: Builder, number: int) -> None:
    for _ in range(600):
        if len(finished(builder)) >= number:
            return
        time.sleep(0.05)
    raise AssertionError(f"fewer than {number} units in 30 s")


def data_range(part: dict[str, Any]) -> tuple[str, int, int]:
    """The file of a slice of row groups, and its bytes there."""
    name = part["path"].partition("/data/")[2]
    metadata = pq.ParquetFile(io.BytesIO(REPOSITORIES[FINEWEB].files[f"data/{name}"])).metadata
    groups = [metadata.row_group(number) for number in range(part["start"], part["stop"])]
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    start = min(column.data_page_offset for column in columns)
    return name, start, start + sum(column.total_compressed_size for column in columns)


def requested(hub: Hub) -> Iterator[tuple[str, int, int]]:
    """The ranges of bytes that were asked for, but for those at the end of a file, where the footer is."""
    for request in hub.requests:
        if "/resolve/" in request.path and request.range:
            name = request.path.partition("/data/")[2]
            first, last = request.range.removeprefix("bytes=").split("-")
            if int(last) + 1 < len(REPOSITORIES[FINEWEB].files[f"data/{name}"]):
                yield name, int(first), int(last) + 1


def test_every_document_once_in_a_random_order(whole: Builder, tokenizer: SentencePieceTokenizer) -> None:
    meta = open_meta(whole.cache / PLACE)
    assert meta["dataset_config"]["shuffle"] == {"order": "units", "seed": 42, "window_files": 8, "unit_bytes": 4 << 20}
    assert meta["dataset_config"]["revision"] == REPOSITORIES[FINEWEB].shas[-1]
    found = [part for split in ("train", "val") for part in whole.tokens(PLACE, split)]
    expected = [[*tokenizer.encode(row["text"]), 4] for row in hub_rows(FINEWEB, f"data/{SNAPSHOT}")]
    assert sorted(found) == sorted(expected)
    assert found != expected


def test_workers_and_the_size_of_units_do_not_show_in_the_bytes(whole: Builder, builder: Builder, hub: Hub) -> None:
    assert builder.run(hub, *ALL, "--workers", 2, "--unit-bytes", 900)[0] == 0
    assert builder.digests() == whole.digests()


def test_articles_go_on_over_row_groups_and_files(
    builder: Builder, hub: Hub, tokenizer: SentencePieceTokenizer
) -> None:
    """A unit has 16 lines; a line that is no text is named by its row in the split, as in the library's stream."""
    files = dict(wikitext(articles=20, seed=5))
    name = "wikitext-103-raw-v1/train-00001-of-00002.parquet"
    lines = pq.read_table(io.BytesIO(files[name])).to_pylist()
    lines[30] = {"text": None}
    files[name] = parquet(pa.Table.from_pylist(lines))
    hub.repositories[WIKITEXT] = Repository(files)
    assert builder.run(hub, "--only", "wikitext", "--unit-bytes", 1, "--max-bad-rows", 1)[0] == 0
    for hub_split, split in (("train", "train"), ("validation", "val")):
        rows = read_rows(files, f"wikitext-103-raw-v1/{hub_split}*")
        found = articles((Document("", row["text"]) for row in rows if row["text"] is not None), split)
        expected = [[*tokenizer.encode(one.text), 4] for one in found if isinstance(one, Document)]
        assert builder.tokens("pretrain/wikitext", split) == expected
    (rejected,) = (builder.cache / "pretrain/wikitext/rejected.jsonl").read_text().splitlines()
    before = len(read_rows(files, "wikitext-103-raw-v1/train-00000*"))
    assert json.loads(rejected)["where"] == f"{WIKITEXT} (wikitext-103-raw-v1) train row {before + 30}"


def test_a_killed_build_goes_on_and_downloads_nothing_finished_again(
    whole: Builder, builder: Builder, hub: Hub
) -> None:
    hub.faults.append(Fault("GET */resolve/*", pause=0.01))  # so that there is something to interrupt
    process = builder.start(hub, *ONLY)
    wait_for_units(builder, 5)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    time.sleep(0.5)  # its workers notice and end
    hub.faults.clear()
    hub.requests.clear()
    done = [data_range(json.loads(path.read_text())["slice"]) for path in finished(builder)]
    assert 5 <= len(done) < 24
    code, printed = builder.run(hub, *ONLY)
    assert code == 0, printed
    assert "continues with" in printed
    assert fineweb_files(builder) == fineweb_files(whole)
    ranges = list(requested(hub))
    assert len(ranges) >= 24 - len(done)
    again = [(name, start) for name, start, end in ranges for other, a, b in done if name == other and start < b < end]
    again += [one for one in ranges for other, a, b in done if one[0] == other and max(one[1], a) < min(one[2], b)]
    assert again == []


FAULTS: dict[str, Callable[[], Fault]] = {
    "429 with Retry-After": lambda: Fault("GET */resolve/*", status=429, headers={"Retry-After": "1"}, at=[1, 7]),
    "longer than the library waits": lambda: Fault("GET */resolve/*train-00003*", status=503, at=range(1, 9)),
    "the interface refuses": lambda: Fault("GET /api/*", status=429, at=[1, 4]),
    "a truncated body": lambda: Fault("GET */resolve/*", drop_after=700, at=[5, 12]),
    "a reset": lambda: Fault("GET */resolve/*", drop_after=300, reset=True, at=[9]),
    "a stalled body": lambda: Fault("GET */resolve/*", pause=2, at=[15]),
}


def test_what_passes_is_waited_out(whole: Builder, builder: Builder, hub: Hub) -> None:
    """All of them in one build, and a new commit while it runs."""
    faults = [make() for make in FAULTS.values()]
    hub.faults.extend(faults)
    process = builder.start(hub, *ONLY)
    wait_for_units(builder, 2)
    old = REPOSITORIES[FINEWEB]
    hub.repositories[FINEWEB] = Repository({"README.md": b"all is gone"}, history=[old.files])
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, out + err
    met = {name: fault.seen >= max(fault.at or ()) for name, fault in zip(FAULTS, faults, strict=True)}
    assert all(met.values()), met
    assert {429, 503} <= {request.status for request in hub.requests}
    assert fineweb_files(builder) == fineweb_files(whole)


def test_damaged_bytes_are_named_and_lose_nothing(whole: Builder, builder: Builder, hub: Hub) -> None:
    """Under the same commit, so no new name tells of it."""
    name = f"data/{SNAPSHOT}/train-00005-of-00012.parquet"
    good = REPOSITORIES[FINEWEB]
    _, start, _ = data_range({"path": f"/{name}", "start": 1, "stop": 2})
    damaged = good.files[name][:start] + bytes(200) + good.files[name][start + 200 :]
    hub.repositories[FINEWEB] = Repository({**good.files, name: damaged})
    hub.repositories[FINEWEB].__dict__["shas"] = good.shas
    code, printed = builder.run(hub, *ONLY)
    assert code == 3
    assert "train-00005-of-00012.parquet: cannot be read" in builder.report()["fineweb_edu"]["reason"]
    assert not (builder.cache / PLACE).exists()
    hub.repositories[FINEWEB] = good
    code, printed = builder.run(hub, *ONLY)
    assert code == 0, printed
    assert fineweb_files(builder) == fineweb_files(whole)
