"""`build-all` against a real local hub: all five sources, faults, kills, workers."""

from __future__ import annotations

import hashlib
import io
import json
import random
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("datasets", reason="the extra 'hub' is not installed")
import pyarrow.parquet as pq

from niels_gpt.cache.build_all import NAMES
from niels_gpt.errors import CacheError
from niels_gpt.messages import Conversation
from niels_gpt.renderers import create_renderer
from niels_gpt.samples import notes_dir
from niels_gpt.sources.files.inputs import Document
from niels_gpt.sources.hub_corpora import articles
from niels_gpt.sources.oasst1 import threads
from niels_gpt.store.kinds import open_meta
from niels_gpt.store.verify import verify_dataset
from niels_gpt.tokenizer import SentencePieceTokenizer, train_tokenizer
from tests import hub as local
from tests.cli_server import Running
from tests.conftest import run_python, start_python
from tests.hub import Fault, Hub, Repository
from tests.renderers.small import CHATML
from tests.renderers.tiny_families import folder_of

FINEWEB, WIKITEXT = "HuggingFaceFW/fineweb-edu", "Salesforce/wikitext"
DOLLY, OASST1, GUTENBERG = "databricks/databricks-dolly-15k", "OpenAssistant/oasst1", "sedthh/gutenberg_english"
FILES = {
    FINEWEB: local.fineweb_edu(rows=120),
    WIKITEXT: local.wikitext(),
    DOLLY: local.dolly(),
    OASST1: local.oasst1(),
    GUTENBERG: local.gutenberg(),
}
PLACES = ("pretrain/fineweb_edu", "pretrain/roam", "pretrain/wikitext", "sft/dolly15k", "sft/oasst1")
OFFLINE = ("pretrain/roam",)  # their rows are not read over the network


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A healthy hub with all repositories."""
    with Hub({name: Repository(files) for name, files in FILES.items()}) as running:
        yield running


class Builder:
    """Runs `build-all` in a process of its own, against a hub, into one cache directory.

    `fresh`: in a new process, in which `datasets` imports torch, too, as it does where that is installed, for nothing
    that we use but a parent class. That takes seconds, so only some builds do, among them `whole`, with which the
    others are compared.
    """

    def __init__(self, home: Path, tokenizer_dir: Path, *, fresh: bool = False) -> None:
        self.home, self.cache, self.fresh = home, home / "cache", fresh
        self._tokenizer_dir = tokenizer_dir

    def start(self, hub: Hub, *options: object) -> Running | subprocess.Popen[str]:
        command = ["-m", "niels_gpt.cache.cli", "build-all", "--cache-dir", self.cache, "--seed", 42]
        command += ["--tokenizer", self._tokenizer_dir, "--roam-dir", notes_dir(), "--shard-bytes", 4096]
        environment = hub.environment(self.home / "hf", longest_sleep=0.02) | {"NO_COLOR": "1", "COLUMNS": "200"}
        environment |= {} if self.fresh else {"USE_TORCH": "0"}
        return start_python(*command, *options, environment=environment, fresh=self.fresh)

    def run(self, hub: Hub, *options: object) -> tuple[int, str]:
        """Exit code, and everything printed."""
        process = self.start(hub, *options)
        out, err = process.communicate(timeout=120)
        assert "Traceback" not in out + err, err
        return int(process.returncode or 0), out + err

    def report(self) -> dict[str, dict[str, Any]]:
        """The report's sources by name."""
        return {
            source["name"]: source for source in json.loads((self.cache / "build_report.json").read_text())["sources"]
        }

    def digests(self) -> dict[str, str]:
        """sha256 of every file of the caches; the report tells times and is left out."""
        files = sorted(path for path in self.cache.rglob("*") if path.is_file() and path.name != "build_report.json")
        return {str(path.relative_to(self.cache)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    def tokens(self, place: str, split: str) -> list[list[int]]:
        """What a cache holds, split at end-of-turns (pretrain) or by the index (SFT)."""
        folder = self.cache / place
        if place.startswith("sft"):
            stream = np.fromfile(folder / f"{split}_tokens.bin", dtype="<u2")
            cuts = np.load(folder / f"{split}_idx.npy")[1:]
        else:
            shards = sorted((folder / split).glob("*.bin"))
            stream = np.concatenate([np.fromfile(path, dtype="<u2") for path in shards])
            cuts = np.flatnonzero(stream == 4)[:-1] + 1
        return [part.tolist() for part in np.split(stream, cuts)]


@pytest.fixture
def builder(tmp_path: Path, tokenizer_dir: Path) -> Builder:
    return Builder(tmp_path, tokenizer_dir)


@pytest.fixture(scope="module")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of another tokenizer, trained on very little."""
    folder = tmp_path_factory.mktemp("other")
    words = ["".join(random.Random(n).choices("aeioubdlmnrst", k=6)) for n in range(300)]
    (folder / "words.txt").write_text("\n".join(words))
    return Path(train_tokenizer([folder / "words.txt"], folder / "tokenizer", vocab_size=300).model_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Builder:
    """All five sources built without any trouble: what every other build is compared with."""
    undisturbed = Builder(tmp_path_factory.mktemp("whole"), tokenizer_dir, fresh=True)
    with Hub({name: Repository(files) for name, files in FILES.items()}) as healthy:
        code, printed = undisturbed.run(healthy)
    assert code == 0, printed
    return undisturbed


def hub_rows(repo: str, prefix: str) -> list[dict[str, Any]]:
    """A repository's parquet rows in stored order, read without the hub's libraries."""
    names = sorted(name for name in FILES[repo] if name.startswith(prefix))
    return [row for name in names for row in pq.read_table(io.BytesIO(FILES[repo][name])).to_pylist()]


def test_the_layout_is_document_001_s(whole: Builder) -> None:
    found = {str(path.relative_to(whole.cache)) for path in whole.cache.rglob("*") if path.is_file()}
    expected = {f"{place}/meta.json" for place in (*PLACES, "pretrain/gutenberg")}
    expected |= {"tokenizer/spm.model", "tokenizer/meta.json", "build_report.json"}
    expected |= {f"{place}/{split}/shard_00000.bin" for place in PLACES[:3] for split in ("train", "val")}
    expected |= {
        f"{place}/{s}_{kind}" for place in PLACES[3:] for s in ("train", "val") for kind in ("tokens.bin", "idx.npy")
    }
    assert expected <= found
    assert all("/shard_" in extra or extra.endswith("/rejected.jsonl") for extra in found - expected)
    assert (whole.cache / "pretrain/gutenberg/val").is_dir()
    for place in PLACES:
        assert list(verify_dataset(whole.cache / place)) == []
        meta = open_meta(whole.cache / place)
        assert meta["streaming"] is (place not in OFFLINE)
        assert meta["seed"] == 42
    with pytest.raises(CacheError, match="a stub, marked as not built"):
        open_meta(whole.cache / "pretrain/gutenberg")


def test_every_document_and_conversation_is_there_once(whole: Builder, tokenizer: SentencePieceTokenizer) -> None:
    def encoded(texts: list[str]) -> list[list[int]]:
        return sorted([*tokenizer.encode(text), 4] for text in texts)

    def stored(place: str, *splits: str) -> list[list[int]]:
        return sorted(part for split in splits for part in whole.tokens(place, split))

    fineweb = [row["text"] for row in hub_rows(FINEWEB, "data/CC-MAIN-2024-10/")]
    assert stored("pretrain/fineweb_edu", "train", "val") == encoded(fineweb)
    for hub_split, split in (("train", "train"), ("validation", "val")):
        rows = hub_rows(WIKITEXT, f"wikitext-103-raw-v1/{hub_split}")
        found = articles((Document("", row["text"]) for row in rows), split)
        assert stored("pretrain/wikitext", split) == encoded([a.text for a in found if isinstance(a, Document)])
    counts = {place: open_meta(whole.cache / place)["totals"] for place in PLACES[3:]}
    assert sum(counts["sft/dolly15k"].values()) == 40
    chats = threads(hub_rows(OASST1, "data/train"), "r", english_only=True, max_messages=None)
    assert sum(counts["sft/oasst1"].values()) == sum(isinstance(chat, Conversation) for chat in chats)


def test_the_same_command_again_changes_nothing(whole: Builder, hub: Hub) -> None:
    before = whole.digests()
    times = {path: path.stat().st_mtime_ns for path in whole.cache.rglob("*.bin")}
    code, printed = whole.run(hub)
    assert code == 0
    assert printed.count("nothing to do") == len(PLACES)
    assert whole.digests() == before
    assert {path: path.stat().st_mtime_ns for path in whole.cache.rglob("*.bin")} == times


def test_workers_do_not_show_in_the_bytes(whole: Builder, builder: Builder, hub: Hub) -> None:
    assert builder.run(hub, "--workers", 2)[0] == 0
    assert builder.digests() == whole.digests()


RECOVERABLE = {
    "429 with Retry-After": Fault("GET */resolve/*", status=429, headers={"Retry-After": "1"}, at=[1, 4]),
    "a connection dropped in the middle": Fault("GET */resolve/*.parquet", drop_after=700, at=[2, 5]),
    "a connection reset": Fault("GET */resolve/*", drop_after=300, reset=True, at=[3]),
    "a server error": Fault("GET */resolve/*.jsonl", status=503, at=[1]),
}


def test_what_passes_is_waited_out_and_nothing_is_lost_or_doubled(whole: Builder, builder: Builder, hub: Hub) -> None:
    faults = [*RECOVERABLE.values()]
    hub.faults.extend(faults)
    code, printed = builder.run(hub)
    for kind, fault in RECOVERABLE.items():
        assert fault.seen > 0, f"{kind} was met"
    statuses = {request.status for request in hub.requests}
    assert statuses >= {fault.status for fault in faults if fault.status}, "no fault hid another"
    assert code == 0, printed
    assert builder.digests() == whole.digests()


def without_text(table: Any) -> Any:
    return table.select([name for name in table.column_names if name != "instruction" and name != "text"])


BROKEN: dict[str, tuple[str, Mapping[str, bytes], str]] = {
    "fineweb_edu": (
        FINEWEB,
        local.truncated(FILES[FINEWEB], "data/CC-MAIN-2024-10/train-00001-of-00003.parquet"),
        "reading from the hub failed",
    ),
    "wikitext": (
        WIKITEXT,
        local.reshaped(FILES[WIKITEXT], "wikitext-103-raw-v1/train-00001-of-00002.parquet", without_text),
        "",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_source_that_breaks_leaves_nothing_and_the_others_finish(
    whole: Builder, builder: Builder, hub: Hub, name: str
) -> None:
    """A truncated file and a shard of another schema; later the hub is repaired and the same command finishes."""
    repo, files, says = BROKEN[name]
    hub.repositories[repo] = Repository(files)
    code, printed = builder.run(hub)
    assert code == 3
    report = builder.report()
    assert {key: source["status"] for key, source in report.items() if source["status"] == "failed"} == {name: "failed"}
    assert says in report[name]["reason"]
    assert repo in report[name]["reason"]
    assert not (builder.cache / report[name]["place"]).exists()
    hub.repositories[repo] = Repository(FILES[repo])
    code, printed = builder.run(hub)
    assert code == 0, printed
    assert builder.digests() == whole.digests()


def test_missing_data_sets_and_a_hub_that_is_down_are_named(builder: Builder, hub: Hub) -> None:
    hub.repositories.pop(DOLLY)
    code, _ = builder.run(hub, "--only", "dolly15k", "--only", "roam")
    assert code == 3
    assert DOLLY in builder.report()["dolly15k"]["reason"]
    assert builder.report()["roam"]["status"] == "built"
    hub.faults.append(Fault("*", down=True, at=[3]))
    code, _ = builder.run(hub, "--only", "oasst1", "--only", "roam", "--only", "wikitext")
    assert code == 3
    failed = {name for name, source in builder.report().items() if source["status"] == "failed"}
    assert failed == {"oasst1", "wikitext"}
    assert not (builder.cache / "sft/oasst1").exists()


USAGE = {
    "--only oast1": "no source 'oast1'; known: fineweb_edu, roam",
    "--dataset wikitext": "expected NAME=REPO",
    "--val-frac 1e-9": "expected 0, or 0.000001 to 0.999999",
    "--shard-bytes 2 --token-dtype uint32": "shard_bytes is 2; expected at least 4",
    "--max-train-tokens 0 --max-val-tokens 0": "are both 0; nothing would be built",
    "--only roam --skip roam": "roam is named by --only and by --skip; leave one of them out",
    " ".join(f"--skip {name}" for name in NAMES): "--skip names every source",
}


@pytest.mark.parametrize("options", USAGE)
def test_errors_of_usage_exit_with_2_and_build_nothing(builder: Builder, hub: Hub, options: str) -> None:
    code, printed = builder.run(hub, *options.split())
    assert code == 2, printed
    assert USAGE[options] in printed
    assert hub.requests == []
    assert not builder.cache.exists()


def test_a_replaced_model_is_not_built_with(builder: Builder, hub: Hub, other_model: Path) -> None:
    """meta.json beside it records another: caches of two tokenizers would stand in one directory."""
    assert builder.run(hub, "--only", "roam")[0] == 0
    before, model = builder.digests(), builder.cache / "tokenizer/spm.model"
    kept = model.read_bytes()
    model.write_bytes(other_model.read_bytes())
    for options in ([], ["--tokenizer", str(other_model)], ["--tokenizer", str(builder.cache / "tokenizer")]):
        code, printed = builder.run(hub, "--only", "dolly15k", *options)
        assert code == 2, printed
        assert f"{model.parent}: holds another tokenizer, or its files were replaced" in printed
        assert not (builder.cache / "sft").exists()
    model.unlink()
    code, printed = builder.run(hub, "--only", "dolly15k")
    assert code == 2
    assert f"{model.parent}: holds another tokenizer, or its files were replaced" in printed
    model.write_bytes(kept)
    assert builder.digests() == before
    assert builder.run(hub, "--only", "dolly15k")[0] == 0


def test_overwriting_some_caches_with_another_tokenizer_is_refused(
    builder: Builder, hub: Hub, other_model: Path
) -> None:
    assert builder.run(hub, "--only", "roam")[0] == 0
    before = builder.digests()
    code, printed = builder.run(hub, "--only", "dolly15k", "--overwrite", "--tokenizer", other_model)
    assert code == 2
    assert "pass --overwrite without --only and --skip" in printed
    assert builder.digests() == before
    assert builder.run(hub, "--only", "roam", "--overwrite", "--tokenizer", other_model)[0] == 0
    meta = open_meta(builder.cache / "pretrain/roam")
    assert meta["tokenizer_sha256"] == hashlib.sha256(other_model.read_bytes()).hexdigest()


def test_without_the_usual_folder_of_notes_the_other_corpora_are_built(
    builder: Builder, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, printed = builder.run(hub, "--only", "roam", "--only", "dolly15k", "--roam-dir", "data/roam")
    assert code == 3
    assert builder.report()["dolly15k"]["status"] == "built"
    reason = builder.report()["roam"]["reason"]
    assert "--roam-dir" in reason
    assert "--skip roam" in reason
    assert "--skip roam" in printed


def test_a_new_commit_upstream_does_not_fail_what_is_built(builder: Builder, hub: Hub) -> None:
    assert builder.run(hub, "--only", "dolly15k")[0] == 0
    before, old = builder.digests(), Repository(FILES[DOLLY]).shas[-1]
    hub.repositories[DOLLY] = Repository(local.dolly(rows=41))
    new = hub.repositories[DOLLY].shas[-1]
    assert new != old
    code, printed = builder.run(hub, "--only", "dolly15k")
    assert code == 0, printed
    outcome = builder.report()["dolly15k"]
    assert outcome["status"] == "already built"
    assert outcome["counts"]["source"]["revision"] == old
    assert builder.digests() == before
    code, printed = builder.run(hub, "--only", "dolly15k", "--val-frac", 0.2)
    assert code == 3
    assert "val_frac" in builder.report()["dolly15k"]["reason"], "another recipe stays a mismatch"
    code, printed = builder.run(hub, "--only", "dolly15k", "--dataset", f"dolly15k={DOLLY}@{new}")
    assert code == 3
    assert "revision" in builder.report()["dolly15k"]["reason"], "who asks for a commit gets that one or an error"
    assert builder.run(hub, "--only", "dolly15k", "--overwrite")[0] == 0
    assert builder.report()["dolly15k"]["counts"]["source"]["revision"] == new


RESUME = """
import json, sys
from niels_gpt.sources.hub_corpora import FineWebEdu
source = FineWebEdu(seed=3, shuffle_buffer=7)
texts = [document.text for document in source.iterate()]
print(json.dumps([texts == [d.text for d in FineWebEdu(seed=3, shuffle_buffer=7).iterate()],
                  texts != [d.text for d in FineWebEdu(seed=4, shuffle_buffer=7).iterate()],
                  *(texts[n:] == [d.text for d in source.iterate(start=n)] for n in (1, 7, 60, len(texts))),
                  len(texts), source.revision]))
"""


def test_fineweb_goes_on_from_a_recorded_position(hub: Hub, tmp_path: Path) -> None:
    """The shuffled order is a function of commit and seed, so a position in it says all that is needed."""
    environment = hub.environment(tmp_path, longest_sleep=0.02, USE_TORCH="0")
    result = run_python("-c", RESUME, environment=environment)
    *equal, length, revision = json.loads(result.stdout)
    assert equal == [True] * 6
    assert length == len(hub_rows(FINEWEB, "data/CC-MAIN-2024-10/"))
    assert revision == Repository(FILES[FINEWEB]).shas[-1]


def test_conversations_by_another_tokenizer_are_in_its_own_format(tmp_path: Path, hub: Hub) -> None:
    """The ids and masks in the cache are those of the tokenizer's chat template."""
    folder = shutil.copytree(folder_of("qwen3"), tmp_path / "model")
    (folder / "chat_template.jinja").write_text(CHATML)
    builder = Builder(tmp_path, folder)
    code, printed = builder.run(hub, "--only", "dolly15k")
    assert code == 0, printed
    place = builder.cache / "sft/dolly15k"
    meta = json.loads((place / "meta.json").read_text())
    stored = np.fromfile(place / "train_tokens.bin", dtype="<u2" if meta["token_dtype"].startswith("uint16") else "<u4")
    mask = np.fromfile(place / "train_mask.bin", dtype="u1")
    cuts = np.load(place / "train_idx.npy")[1:]
    renderer = create_renderer(folder)
    parts = zip(np.split(stored, cuts), np.split(mask, cuts), strict=True)
    rows = [(renderer.encoder.decode(ids.tolist()), ids, trained) for ids, trained in parts if len(ids)]
    assert len(rows) > 3
    for text, ids, trained in rows:
        user, answer = re.fullmatch(
            r"<\|im_start\|>user\n(.*)<\|im_end\|>\n<\|im_start\|>assistant\n(.*)<\|im_end\|>\n", text, re.DOTALL
        ).groups()
        rendered = renderer.render([{"role": "user", "content": user}, {"role": "assistant", "content": answer}])
        assert rendered.token_ids == ids.tolist()
        assert [label != -100 for label in rendered.labels()] == trained.astype(bool).tolist()
