"""Recipes as commands and functions: what is built, that a lock makes the same bytes, and that killed builds go on."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import niels_gpt as ng
from niels_gpt.builds.executor import LocalRunner, UnitExecutor
from niels_gpt.episodes.build import build_episodes
from niels_gpt.errors import DataError, Mismatch, NielsError
from niels_gpt.recipes import build_recipe, open_recipe, read_lock, read_recipe
from niels_gpt.sources.chat_files import chat_files
from niels_gpt.store.manifest import with_manifest_hash
from niels_gpt.tokenizer import load_tokenizer
from tests.assets import ASSETS, needs_assets
from tests.conftest import REPOSITORY, run_cli
from tests.test_cache_determinism import digests as all_digests

WORDS = [*"abcdefghijklmn"]


def text(number: int, words: int) -> str:
    return " ".join(WORDS[(number * 7 + word * word) % len(WORDS)] for word in range(words))


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


RECIPE = """\
out = "made"
seed = 5

[tokenizer]
path = "tokenizer"

[sequence]
length = 128

[[sources]]
name = "chats"
files = ["chats/*.jsonl"]

[[sources]]
name = "pairs"
files = ["pairs.jsonl"]
format = "alpaca"
filter = { exclude = "(?i)as an ai", role = "assistant" }

[mixture]
weights = { chats = 0.75, pairs = 0.25 }
max_epochs = 2

[[exports]]
to = "hf"
"""


@pytest.fixture
def folder(tmp_path: Path, tokenizer_dir: Path) -> Path:
    shutil.copytree(tokenizer_dir, tmp_path / "tokenizer")
    (tmp_path / "chats").mkdir()
    turns = [
        [{"role": "user", "content": text(n, 3 + n % 9)}, {"role": "assistant", "content": text(n + 1, 5 + n % 30)}]
        for n in range(120)
    ]
    for part in range(2):
        rows = [{"messages": messages} for messages in turns[part * 60 : part * 60 + 60]]
        write_rows(tmp_path / f"chats/{part}.jsonl", rows)
    answers = ["As an AI I cannot" if n % 5 == 0 else text(n, 12) for n in range(50)]
    write_rows(tmp_path / "pairs.jsonl", [{"instruction": text(n, 4), "output": a} for n, a in enumerate(answers)])
    (tmp_path / "recipe.toml").write_text(RECIPE)
    return tmp_path


def digests(folder: Path) -> dict[str, str]:
    """Without the plans of packing, which are made where a loader needs them."""
    return {name: digest for name, digest in all_digests(folder).items() if "packing" not in Path(name).parts}


def test_sources_mixture_exports_and_loader_agree(folder: Path) -> None:
    built = build_recipe(read_recipe(folder / "recipe.toml"))
    assert built.manifests["pairs"]["dropped"] == {"excluded": 10}
    # A source is what `build_episodes` makes of the same files.
    source = chat_files([str(folder / "chats/*.jsonl")])
    given = {"source_name": "chats", "source_config": source.config(), "seed": 5}
    build_episodes(source, folder / "alone", encoder=load_tokenizer(folder / "tokenizer"), **given)
    assert digests(folder / "alone") == digests(folder / "made/sources/chats")
    assert json.loads((folder / "made/exports/hf/pairs/export.json").read_text())["format"] == "hf"
    (phase,) = built.mixture.phases
    batches = list(ng.loader(folder / "made", batch_size=1, num_workers=0))
    assert len(batches) == sum(phase.values())
    assert batches[0].x.shape == (1, 128)


@pytest.mark.parametrize(
    ("place", "options", "expected"),
    [
        ("made", {"sequence_length": 64}, r"sequence_length is 64, but .*counts rows with sequence_length 128"),
        ("made", {"packing": False}, "packing is False"),
        ("made/sources/chats", {}, "sequence_length is missing"),
    ],
)
def test_a_loader_that_contradicts_the_recipe_is_refused(
    folder: Path, place: str, options: dict[str, Any], expected: str
) -> None:
    build_recipe(read_recipe(folder / "recipe.toml", ["exports=[]"]))
    with pytest.raises(NielsError, match=expected):
        ng.loader(folder / place, batch_size=1, **options)


def test_the_second_build_keeps_sources_and_refuses_changed_inputs(folder: Path) -> None:
    loaded = read_recipe(folder / "recipe.toml")
    build_recipe(loaded)
    before = {path: path.stat().st_mtime_ns for path in (folder / "made/sources").rglob("*.bin")}
    build_recipe(loaded)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    changed = ["exports.0.options={max_length=32,too_long='head'}"]
    exported = digests(folder / "made/exports")
    build_recipe(read_recipe(folder / "recipe.toml", changed))
    assert digests(folder / "made/exports") != exported
    write_rows(folder / "pairs.jsonl", [{"instruction": "a", "output": "b"}] * 9)
    with pytest.raises(Mismatch, match="holds a cache built from other inputs"):
        build_recipe(loaded)
    assert build_recipe(loaded, overwrite=True).manifests["pairs"]["train_episodes"] > 0


def test_a_lock_makes_the_same_bytes_elsewhere(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """With duplicates and a benchmark, in one process and in two."""
    rows = (folder / "chats/0.jsonl").read_text().splitlines(keepends=True)
    said = "which of these eight words is the odd one"
    asked = {"messages": [{"role": "user", "content": f"Say {said}!"}, {"role": "assistant", "content": "none"}]}
    rest = (folder / "chats/1.jsonl").read_text()
    (folder / "chats/1.jsonl").write_text("".join(rows[:10]) + json.dumps(asked) + "\n" + rest)
    write_rows(folder / "bench.jsonl", [{"question": said, "answer": "B"}])
    more = '[duplicates]\nexact = true\n[decontaminate]\nfiles = ["bench.jsonl"]\nwords = 8\n'
    (folder / "recipe.toml").write_text(RECIPE + more)
    dropped = build_recipe(read_recipe(folder / "recipe.toml")).manifests["chats"]["dropped"]
    assert (dropped["duplicate"] >= 10, dropped["contaminated"]) == (True, 1)
    first = {"where": f"{folder}/chats/1.jsonl:1", "duplicate_of": f"{folder}/chats/0.jsonl:1", "similarity": 1.0}
    first |= {"source": "chats", "reason": "duplicate"}
    left_out = (folder / "made/duplicates/left_out.jsonl").read_text()
    assert first in map(json.loads, left_out.splitlines())
    wanted = {name: sha for name, sha in digests(folder / "made").items() if "left_out" not in name}
    for workers in (1, 2):
        elsewhere = tmp_path_factory.mktemp("elsewhere") / "copy"
        shutil.copytree(folder, elsewhere, ignore=shutil.ignore_patterns("made", "recipe.toml"))
        loaded, lock = read_lock(elsewhere / "recipe.lock.json")
        built = build_recipe(loaded, locked=lock, executor=UnitExecutor(LocalRunner(workers), slice_bytes=2000))
        assert built.lock is None
        found = digests(elsewhere / "made")
        assert {name: sha for name, sha in found.items() if "left_out" not in name} == wanted


def test_a_lock_that_does_not_fit_is_refused(folder: Path) -> None:
    build_recipe(read_recipe(folder / "recipe.toml"))
    lock = folder / "recipe.lock.json"
    loaded, locked = read_lock(lock, ["out=again"])
    line = (folder / "pairs.jsonl").read_text()
    (folder / "pairs.jsonl").write_text(line + "\n")
    with pytest.raises(Mismatch, match=r"inputs are not those of the lock: sources\.pairs\.inputs\.0\.bytes"):
        build_recipe(loaded, locked=locked)
    assert not (folder / "again").exists(), "nothing is built"
    (folder / "pairs.jsonl").write_text(line)
    wrong = json.loads(json.dumps(locked.outputs))
    wrong["sources/pairs/episodes.json"]["train/tokens.bin"] = "0" * 64
    damaged = type(locked)(locked.recipe, locked.sources, locked.encoder, wrong, {**locked.made_with, "numpy": "0.1"})
    with pytest.raises(Mismatch, match=r"differs from the lock: sources/pairs.*Versions: numpy '0\.1', now"):
        build_recipe(loaded, locked=damaged)
    for content, expected in (
        (lock.read_text().replace('"seed": 5', '"seed": 6'), "edited or damaged"),
        ("{}", "not a lock of version 1"),
    ):
        lock.write_text(content)
        with pytest.raises(DataError, match=expected):
            read_lock(lock)


def test_a_killed_build_goes_on(folder: Path) -> None:
    recipe = folder / "recipe.toml"
    build_recipe(read_recipe(recipe, ["out=whole", "duplicates.exact=true"]))
    command = [sys.executable, "-m", "niels_gpt", "build", str(recipe), "--unit-bytes", "500"]
    command += ["--set", "duplicates.exact=true"]
    for seconds in (0.6, 0.9, 1.2):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        process.wait()
    subprocess.run(command, check=True, capture_output=True)
    assert digests(folder / "made") == digests(folder / "whole")


MIXTURE = RECIPE[: RECIPE.index("weights")]
PHASES = "[{ weights = { chats = 1, pairs = 0 }, amount = 10 }, { weights = { chats = 1, pairs = 1 }, amount = 6 }]"


@pytest.mark.parametrize(
    ("mixture", "expected"),
    [
        ("max_epochs = { pairs = 0.5 }", None),
        (f'by = "rows"\nphases = {PHASES}', [{"chats": 10, "pairs": 0}, {"chats": 3, "pairs": 3}]),
    ],
)
def test_epochs_are_those_of_the_mixture(folder: Path, mixture: str, expected: Any) -> None:
    (folder / "recipe.toml").write_text(MIXTURE + mixture)
    built = build_recipe(read_recipe(folder / "recipe.toml"))
    phases = [*built.mixture.phases]
    assert phases == expected if expected else 0 < phases[0]["pairs"] < phases[0]["chats"]
    assert len(list(ng.loader(folder / "made", batch_size=1))) == sum(sum(phase.values()) for phase in phases)


def test_a_dry_run_checks_and_writes_nothing(folder: Path) -> None:
    before = digests(folder)
    more = ["--set", "duplicates.exact=true", "--dry-run"]
    done = run_cli("build", "recipe.toml", *more, cwd=folder)
    assert (done.returncode, "nothing was built" in done.stdout) == (0, True), done.stderr
    done = run_cli("build", "recipe.toml", *more, "--json", cwd=folder)
    assert json.loads(done.stdout)["sources"] == ["chats", "pairs"]
    assert digests(folder) == before


@pytest.mark.parametrize(
    ("setting", "code", "expected"),
    [
        ("sources.chats.files=['none/*.jsonl']", 3, "source chats:"),
        ("tokenizer.path=./nowhere", 3, "nowhere"),
        ("exports.0.options={assistant_mask=true}", 2, "exports: hf: hf has no option 'assistant_mask'; its options"),
        ("exports.0.options={max_length=-1}", 2, "exports: hf: max_length is -1; expected at least 1"),
        ("exports=[{to='hf'},{to='hf'}]", 2, "two exports are 'hf', which have one directory"),
        ("loss={on='last_message'}", 2, "loss is for renderers"),
        ("mixture.max_epochs={zz=1}", 2, "the mixture names 'zz'; expected one of chats, pairs"),
        ("sources.pairs.columns={answer='a'}", 2, "sources.1: no column 'answer'; expected one of messages"),
    ],
)
def test_what_cannot_be_built_is_refused_first(folder: Path, setting: str, code: int, expected: str) -> None:
    with pytest.raises(NielsError, match=re.escape(expected)) as error:
        build_recipe(read_recipe(folder / "recipe.toml", [setting]))
    assert error.value.exit_code == code
    assert not (folder / "made").exists()


@pytest.mark.parametrize(
    ("setting", "code", "expected"),
    [
        ("sequence.length=2", 2, "no conversation gives a row of training"),
        ("mixture.amount=1000000", 2, "are possible. Lower the epoch or the weight, or raise max_epochs"),
        ("sources.pairs.format=messages", 3, "no 'messages' in the row"),
    ],
)
def test_what_rows_do_not_give_is_one_line(folder: Path, setting: str, code: int, expected: str) -> None:
    done = run_cli("build", "recipe.toml", "--set", setting, cwd=folder)
    assert (done.returncode, expected in " ".join(done.stderr.split())) == (code, True), done.stderr
    assert "Traceback" not in done.stderr


@needs_assets
@pytest.mark.parametrize("name", sorted(path.name for path in (REPOSITORY / "examples/recipes").iterdir()))
def test_the_example_recipes_build(folder: Path, name: str) -> None:
    """As they are, but for the tokenizer, which cannot be downloaded here."""
    shutil.copy(REPOSITORY / "examples/recipes" / name, folder / name)
    shutil.copy(folder / "chats/0.jsonl", folder / "chats.jsonl")
    shutil.copy(folder / "pairs.jsonl", folder / "instructions.jsonl")
    built = build_recipe(read_recipe(folder / name, [f"tokenizer.path={ASSETS / 'qwen3-8b'}"]))
    assert all(sum(phase.values()) for phase in built.mixture.phases)
    assert next(iter(ng.loader(built.out, batch_size=1, pad_token_id=0))).x.shape[0] == 1


def test_a_mapping_reads_other_columns(folder: Path) -> None:
    write_rows(folder / "pairs.jsonl", [{"q": text(n, 4), "a": text(n, 9)} for n in range(30)])
    recipe = RECIPE.replace('format = "alpaca"\n', 'columns = { prompt = "q", completion = "a" }\n')
    (folder / "recipe.toml").write_text(recipe)
    built = build_recipe(read_recipe(folder / "recipe.toml"))
    assert sum(built.manifests["pairs"]["totals"].values()) == 30
    assert built.manifests["pairs"]["dataset_config"]["mapping"] == {"columns": {"prompt": "q", "completion": "a"}}


def test_unusable_rows_stop_a_build_above_the_limit(folder: Path) -> None:
    for part in range(2):
        with (folder / f"chats/{part}.jsonl").open("a") as file:
            file.write("{}\n" * 4)
    with pytest.raises(DataError, match=r"Unusable: 8 of all 128 rows"):
        build_recipe(read_recipe(folder / "recipe.toml", ["rows.max_bad_rows=6.2%"]))
    assert not list(folder.glob("made/sources/*"))
    built = build_recipe(read_recipe(folder / "recipe.toml", ["rows.max_bad_rows=6.25%"]))
    assert built.manifests["chats"]["bad_rows"] == {"left_out": 8, "of": 128}
    lines = [json.loads(line) for line in (folder / "made/sources/chats/rejected.jsonl").read_text().splitlines()]
    assert [line["where"] for line in lines] == [f"chats/{part}.jsonl:{n}" for part in (0, 1) for n in range(61, 65)]


def with_dataset(folder: Path, source: str, more: str = "") -> Path:
    """The recipe with a dataset in place of the files of pairs: `ready`; `other` has another tokenizer."""
    build_recipe(read_recipe(folder / "recipe.toml", ["exports=[]"]))
    shutil.move(folder / "made/sources/pairs", folder / "ready")
    shutil.rmtree(folder / "made")
    shutil.copytree(folder / "ready", folder / "other")
    manifest = json.loads((folder / "other/episodes.json").read_text()) | {"tokenizer_sha256": "0" * 64}
    (folder / "other/episodes.json").write_text(json.dumps(with_manifest_hash(manifest)))
    begin, end = RECIPE.split('files = ["pairs.jsonl"]')
    (folder / "recipe.toml").write_text(f"{begin}{source}{end[end.index('[mixture]') - 1 :]}{more}")
    return folder / "recipe.toml"


def test_a_finished_dataset_is_mixed_and_locked(folder: Path) -> None:
    built = build_recipe(read_recipe(with_dataset(folder, 'dataset = "ready"')))
    assert built.mixture.folders == {"chats": "sources/chats", "pairs": "../ready"}
    assert {path.name for path in (folder / "made/exports/hf").iterdir()} == {"chats", "pairs"}
    rows = built.mixture.rows("chats") + built.mixture.rows("pairs")
    assert len(list(ng.loader(folder / "made", batch_size=1))) == rows
    other = json.loads((folder / "ready/episodes.json").read_bytes())
    other["seed"] += 1
    (folder / "ready/episodes.json").write_text(json.dumps(with_manifest_hash(other)))
    locked, lock = read_lock(folder / "recipe.lock.json")
    with pytest.raises(Mismatch, match=r"sources\.pairs\.dataset\.manifest_sha256"):
        build_recipe(locked, locked=lock)


@pytest.mark.parametrize(
    ("source", "more", "said"),
    [
        ('files = ["pairs.jsonl"]\ndataset = "ready"', "", "found files and a dataset"),
        ("", "", "found neither files nor a dataset"),
        ('dataset = "ready"\nformat = "alpaca"', "", "and a dataset, whose rows are built already"),
        ('dataset = "ready"', "[duplicates]\nexact = true\n", "found duplicates or decontaminate, and the dataset"),
        ('dataset = "nowhere"', "", "no such directory"),
        ('dataset = "chats"', "", "no episodes: expected"),
        ('dataset = "s3://bucket/x"', "", "niels-gpt fetch"),
        ('dataset = "other"', "", "expected one tokenizer for all sources"),
    ],
)
def test_datasets_that_do_not_fit_are_refused(folder: Path, source: str, more: str, said: str) -> None:
    recipe = with_dataset(folder, source, more)
    with pytest.raises(NielsError, match=re.escape(said)):
        open_recipe(read_recipe(recipe))
