"""Recipes as commands and functions: what is built, that a lock makes the same bytes, and that killed builds go on."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import signal
import subprocess
import sys
import time
import unicodedata
from pathlib import Path
from typing import Any

import pytest

import niels_gpt as ng
from niels_gpt.builds.executor import LocalRunner, UnitExecutor
from niels_gpt.episodes.build import build_episodes
from niels_gpt.errors import CacheError, DataError, InputError, Mismatch, NielsError, OutputExists, UsageError
from niels_gpt.recipes import build_recipe, open_recipe, read_lock, read_recipe
from niels_gpt.recipes import inputs as recipe_inputs
from niels_gpt.sources.chat_files import chat_files
from niels_gpt.sources.curation.ngrams import RULE
from niels_gpt.store.manifest import with_manifest_hash
from niels_gpt.store.staging import StagedDirectory
from niels_gpt.tokenizer import load_tokenizer
from tests.assets import ASSETS, needs_assets
from tests.conftest import REPOSITORY, run_cli

WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "while",
    "seven",
    "more",
    "words",
    "follow",
]


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
    for part in range(2):
        rows = [
            {
                "messages": [
                    {"role": "user", "content": text(n, 3 + n % 9)},
                    {"role": "assistant", "content": text(n + 1, 5 + n % 30)},
                ]
            }
            for n in range(part * 60, part * 60 + 60)
        ]
        write_rows(tmp_path / f"chats/{part}.jsonl", rows)
    answers = ["As an AI I cannot" if n % 5 == 0 else text(n, 12) for n in range(50)]
    write_rows(tmp_path / "pairs.jsonl", [{"instruction": text(n, 4), "output": a} for n, a in enumerate(answers)])
    (tmp_path / "recipe.toml").write_text(RECIPE)
    return tmp_path


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "packing" not in path.parts  # plans are made where a loader needs them
    }


def test_all_that_a_recipe_says(folder: Path) -> None:
    built = build_recipe(read_recipe(folder / "recipe.toml"))
    assert built.manifests["pairs"]["dropped"] == {"excluded": 10}
    # A source is what `build_episodes` makes of the same files.
    source = chat_files([str(folder / "chats/*.jsonl")])
    encoder = load_tokenizer(folder / "tokenizer")
    build_episodes(
        source, folder / "alone", encoder=encoder, seed=5, source_name="chats", source_config=source.config()
    )
    assert digests(folder / "alone") == digests(folder / "made/sources/chats")
    parts = {part.name: part for part in built.mixture.parts}
    (phase,) = built.mixture.phases
    tokens = {name: rows * parts[name].tokens / parts[name].rows for name, rows in phase.items()}
    row = max(part.tokens / part.rows for part in parts.values())
    assert abs(tokens["chats"] - 3 * tokens["pairs"]) <= 4 * row
    assert max(rows / parts[name].rows for name, rows in phase.items()) <= 2 + 1 / parts["pairs"].rows
    assert json.loads((folder / "made/exports/hf/pairs/export.json").read_text())["format"] == "hf"


def test_a_loader_reads_the_mixture(folder: Path) -> None:
    built = build_recipe(read_recipe(folder / "recipe.toml"))
    (phase,) = built.mixture.phases
    loader = ng.loader(folder / "made", batch_size=1, num_workers=0)
    batches = list(loader)
    assert len(batches) == sum(phase.values())
    assert batches[0].x.shape == (1, 128)
    with pytest.raises(UsageError, match=r"sequence_length is 64, but .*counts rows with sequence_length 128"):
        ng.loader(folder / "made", batch_size=1, sequence_length=64)
    with pytest.raises(UsageError, match="packing is False"):
        ng.loader(folder / "made", batch_size=1, packing=False)
    with pytest.raises(UsageError, match="sequence_length is missing"):
        ng.loader(folder / "made/sources/chats", batch_size=1)


def test_the_second_build_does_nothing_and_a_changed_input_is_refused(folder: Path) -> None:
    loaded = read_recipe(folder / "recipe.toml")
    build_recipe(loaded)
    before = {path: path.stat().st_mtime_ns for path in (folder / "made/sources").rglob("*.bin")}
    build_recipe(loaded)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    write_rows(folder / "pairs.jsonl", [{"instruction": "a", "output": "b"}] * 9)
    with pytest.raises(Mismatch, match="holds a cache built from other inputs"):
        build_recipe(loaded)
    assert build_recipe(loaded, overwrite=True).manifests["pairs"]["train_episodes"] > 0


@pytest.mark.parametrize("workers", [1, 2])
def test_a_lock_makes_the_same_bytes_elsewhere(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, workers: int
) -> None:
    build_recipe(read_recipe(folder / "recipe.toml"))
    wanted = digests(folder / "made")
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "copy"
    shutil.copytree(folder, elsewhere)
    shutil.rmtree(elsewhere / "made")
    (elsewhere / "recipe.toml").unlink()
    loaded, lock = read_lock(elsewhere / "recipe.lock.json")
    built = build_recipe(loaded, locked=lock, executor=UnitExecutor(LocalRunner(workers), slice_bytes=2000))
    assert built.lock is None
    assert digests(elsewhere / "made") == wanted


def test_a_lock_that_does_not_fit(folder: Path) -> None:
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
    lock.write_text(lock.read_text().replace('"seed": 5', '"seed": 6'))
    with pytest.raises(DataError, match="edited or damaged"):
        read_lock(lock)
    lock.write_text("{}")
    with pytest.raises(InputError, match="not a lock of version 1"):
        read_lock(lock)


def test_a_killed_build_goes_on(folder: Path) -> None:
    recipe = folder / "recipe.toml"
    build_recipe(read_recipe(recipe, ["out=whole"]))
    command = [sys.executable, "-m", "niels_gpt", "build", str(recipe), "--unit-bytes", "500"]
    for seconds in (0.6, 0.9, 1.2):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        process.wait()
    subprocess.run(command, check=True, capture_output=True)
    assert digests(folder / "made") == digests(folder / "whole")


def test_a_damaged_manifest_of_an_export_is_named(folder: Path) -> None:
    build_recipe(read_recipe(folder / "recipe.toml"))
    path = folder / "made/exports/hf/pairs/export.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"seed": 1}))
    with pytest.raises(CacheError, match="edited or damaged"):
        build_recipe(read_recipe(folder / "recipe.toml"))


@pytest.mark.parametrize(
    ("options", "split", "expected"),
    [
        ("{max_length=32,too_long='head'}", None, "arrangement.max_length 64, now 32"),
        ("{max_length=64,too_long='tail'}", None, "arrangement.too_long 'head', now 'tail'"),
        ("{max_length=64,too_long='head',assistant_masks=true}", None, "options.assistant_masks False, now True"),
        ("{max_length=64,too_long='head',shard_tokens=999}", None, "shard_tokens"),
        ("{max_length=64,too_long='head',binary=true}", None, "binary False, now True"),
        ("{max_length=64,too_long='head'}", "val", "splits ['train', 'val'], now ['val']"),
    ],
)
def test_an_export_with_other_options_is_not_kept(folder: Path, options: str, split: str | None, expected: str) -> None:
    first = ["mixture.max_epochs=2", "exports.0.options={max_length=64,too_long='head'}"]
    build_recipe(read_recipe(folder / "recipe.toml", first))
    before = digests(folder / "made/exports")
    build_recipe(read_recipe(folder / "recipe.toml", first))  # the same ones are kept
    changed = [first[0], f"exports.0.options={options}", *([f"exports.0.split={split}"] if split else [])]
    with pytest.raises(Mismatch, match=re.escape(expected)):
        build_recipe(read_recipe(folder / "recipe.toml", changed))
    assert digests(folder / "made/exports") == before
    build_recipe(read_recipe(folder / "recipe.toml", changed), overwrite=True)
    assert digests(folder / "made/exports") != before


def test_limits_of_some_sources_without_weights(folder: Path) -> None:
    start, end = RECIPE.split("weights = {")
    (folder / "recipe.toml").write_text(start + "max_epochs = { pairs = 0.5 }" + end.split("max_epochs = 2")[1])
    (phase,) = build_recipe(read_recipe(folder / "recipe.toml")).mixture.phases
    assert 0 < phase["pairs"] < phase["chats"]


@pytest.mark.parametrize("damage", [b"", b"[]", b"{", b"[" * 100_000, b"{}", b'{"tables": {}, "sha256": 5}', b"\xff"])
@pytest.mark.parametrize("name", ["looked_for.json", "chats.npy"])
def test_damaged_records_of_duplicates_are_made_again(folder: Path, name: str, damage: bytes) -> None:
    recipe = read_recipe(folder / "recipe.toml", ["duplicates.exact=true"])
    open_recipe(recipe)
    before = digests(folder / "made")
    (folder / "made/duplicates" / name).write_bytes(damage)
    open_recipe(recipe)
    assert digests(folder / "made") == before


def test_duplicates_are_searched_again_where_the_words_are_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = read_recipe(folder / "recipe.toml", ["duplicates.exact=true"])
    open_recipe(recipe)
    recorded = folder / "made/duplicates/looked_for.json"
    before = recorded.read_bytes()
    open_recipe(recipe)
    assert recorded.read_bytes() == before
    monkeypatch.setattr(recipe_inputs, "RULE", RULE + 1)
    open_recipe(recipe)
    assert json.loads(recorded.read_bytes())["in"]["rule"] == [RULE + 1, unicodedata.unidata_version]


def test_other_options_of_duplicates_and_a_search_that_was_killed(folder: Path) -> None:
    """The directory is whole or absent, and made by one process at a time."""
    open_recipe(read_recipe(folder / "recipe.toml", ["duplicates.exact=true"]))
    before = digests(folder / "made")
    aside = folder / "made/.duplicates.partial"
    aside.mkdir()
    (aside / "left_out.jsonl").write_text("half")
    recipe = read_recipe(folder / "recipe.toml", ["duplicates.roles=['user']"])
    open_recipe(recipe)
    assert not aside.exists()
    assert digests(folder / "made") != before
    with StagedDirectory(folder / "made/duplicates", manifest="looked_for.json", overwrite=True):
        open_recipe(recipe)  # nothing is left to be done
        with pytest.raises(OutputExists, match="another process is building here right now"):
            open_recipe(read_recipe(folder / "recipe.toml", ["duplicates.exact=true"]))


def test_a_curriculum(folder: Path) -> None:
    more = """
by = "rows"
phases = [ { weights = { chats = 1, pairs = 0 }, amount = 10 }, { weights = { chats = 1, pairs = 1 }, amount = 6 } ]
"""
    start, end = RECIPE.split("weights = { chats")
    (folder / "recipe.toml").write_text(start + more + end.split("max_epochs = 2")[1])
    built = build_recipe(read_recipe(folder / "recipe.toml"))
    assert list(built.mixture.phases) == [{"chats": 10, "pairs": 0}, {"chats": 3, "pairs": 3}]
    assert len(list(ng.loader(folder / "made", batch_size=1))) == 16


def test_a_dry_run_checks_and_writes_nothing(folder: Path) -> None:
    before = digests(folder)
    more = ["--set", "duplicates.exact=true", "--dry-run"]
    done = run_cli("build", "recipe.toml", *more, cwd=folder)
    assert (done.returncode, "nothing was built" in done.stdout) == (0, True), done.stderr
    done = run_cli("build", "recipe.toml", *more, "--json", cwd=folder)
    assert json.loads(done.stdout)["sources"] == ["chats", "pairs"]
    assert run_cli("build", "recipe.toml", "--dry-run", "--set", "tokenizer.path=./no", cwd=folder).returncode == 3
    assert digests(folder) == before


@pytest.mark.parametrize(
    ("setting", "code", "expected"),
    [
        ("sources.chats.files=['none/*.jsonl']", 3, "source chats:"),
        ("tokenizer.path=./nowhere", 3, "tokenizer.path is './nowhere': no such file or directory"),
        ("exports.0.options={assistant_mask=true}", 2, "exports: hf: hf has no option 'assistant_mask'; its options"),
        ("loss={on='last_message'}", 2, "loss is for renderers"),
        ("sequence.length=2", 2, "no conversation gives a row of training"),
        ("mixture.amount=1000000", 2, "are possible. Lower the epoch or the weight, or raise max_epochs"),
        ("sources.pairs.format=messages", 3, "no 'messages' in the row"),
    ],
)
def test_what_cannot_be_built_is_one_line(folder: Path, setting: str, code: int, expected: str) -> None:
    done = run_cli("build", "recipe.toml", "--set", setting, cwd=folder)
    assert (done.returncode, expected in " ".join(done.stderr.split())) == (code, True), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("setting", "code", "expected"),
    [
        ("exports.0.options={max_length=-1}", 2, "exports: hf: max_length is -1; expected at least 1"),
        ("exports=[{to='hf'},{to='hf'}]", 2, "two exports are 'hf', which have one directory"),
        ("mixture.max_epochs={zz=1}", 2, "the mixture names 'zz'; expected one of chats, pairs"),
        (f"out={'a' * 300}", 3, "File name too long; give a shorter path"),
        ("exports=5", 2, "found 5; expected a list"),
        ("tokenizer=5", 2, "found 5; expected a table"),
        ("sources=[]", 2, "found []; expected at least one"),
    ],
)
def test_what_is_refused_before_anything_is_built(folder: Path, setting: str, code: int, expected: str) -> None:
    with pytest.raises(NielsError, match=re.escape(expected)) as error:
        build_recipe(read_recipe(folder / "recipe.toml", [setting]))
    assert error.value.exit_code == code
    assert not (folder / "made").exists()


@needs_assets
@pytest.mark.parametrize("name", sorted(path.name for path in (REPOSITORY / "examples/recipes").iterdir()))
def test_the_example_recipes_build(folder: Path, name: str) -> None:
    """As they are, but for the tokenizer, which cannot be downloaded here."""
    shutil.copy(REPOSITORY / "examples/recipes" / name, folder / name)
    shutil.copy(folder / "chats/0.jsonl", folder / "chats.jsonl")
    shutil.copy(folder / "pairs.jsonl", folder / "instructions.jsonl")
    tokenizer = f"tokenizer.path={ASSETS / 'qwen3-8b'}"
    built = build_recipe(read_recipe(folder / name, [tokenizer]))
    assert all(sum(phase.values()) for phase in built.mixture.phases)
    assert next(iter(ng.loader(built.out, batch_size=1, pad_token_id=0))).x.shape[0] == 1
    loaded, lock = read_lock(built.lock or "", [f"out={folder / 'again'}"])
    build_recipe(loaded, locked=lock)
    assert digests(folder / "again") == digests(built.out)


def test_duplicates_and_benchmarks_in_a_recipe(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    rows = (folder / "chats/0.jsonl").read_text().splitlines(keepends=True)
    said = "which of these eight words is the odd one"
    asked = {"messages": [{"role": "user", "content": f"Say {said}!"}, {"role": "assistant", "content": "none"}]}
    rest = (folder / "chats/1.jsonl").read_text()
    (folder / "chats/1.jsonl").write_text("".join(rows[:10]) + json.dumps(asked) + "\n" + rest)
    write_rows(folder / "bench.jsonl", [{"question": said, "answer": "B"}])
    more = '[duplicates]\nexact = true\n[decontaminate]\nfiles = ["bench.jsonl"]\nwords = 8\n'
    (folder / "recipe.toml").write_text(RECIPE + more)
    built = build_recipe(read_recipe(folder / "recipe.toml"))
    dropped = built.manifests["chats"]["dropped"]
    assert dropped["duplicate"] >= 10
    assert dropped["contaminated"] == 1
    listed = [json.loads(line) for line in (folder / "made/duplicates/left_out.jsonl").read_text().splitlines()]
    assert {
        "where": f"{folder}/chats/1.jsonl:1",
        "duplicate_of": f"{folder}/chats/0.jsonl:1",
        "similarity": 1.0,
    } in listed
    before = (folder / "made/duplicates/left_out.jsonl").stat().st_mtime_ns
    build_recipe(read_recipe(folder / "recipe.toml"))
    assert (folder / "made/duplicates/left_out.jsonl").stat().st_mtime_ns == before, "not looked for again"
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "copy"
    shutil.copytree(folder, elsewhere, ignore=shutil.ignore_patterns("made"))
    loaded, lock = read_lock(elsewhere / "recipe.lock.json")
    build_recipe(loaded, locked=lock, executor=UnitExecutor(LocalRunner(2), slice_bytes=2000))
    assert digests(elsewhere / "made/sources") == digests(folder / "made/sources")


def test_a_mapping_in_a_recipe(folder: Path) -> None:
    rows = [{"q": text(n, 4), "a": text(n, 9)} for n in range(30)]
    write_rows(folder / "pairs.jsonl", rows)
    recipe = RECIPE.replace('format = "alpaca"\n', 'columns = { prompt = "q", completion = "a" }\n')
    (folder / "recipe.toml").write_text(recipe)
    built = build_recipe(read_recipe(folder / "recipe.toml"))
    assert sum(built.manifests["pairs"]["totals"].values()) == 30
    assert built.manifests["pairs"]["dataset_config"]["mapping"] == {"columns": {"prompt": "q", "completion": "a"}}
    (folder / "recipe.toml").write_text(recipe.replace('completion = "a"', 'answer = "a"'))
    with pytest.raises(UsageError, match=r"recipe\.toml: sources\.1: no column 'answer'; expected one of messages"):
        read_recipe(folder / "recipe.toml")


def test_a_build_of_unusable_rows(folder: Path) -> None:
    for part in range(2):
        with (folder / f"chats/{part}.jsonl").open("a") as file:
            file.write("{}\n" * 4)
    for limit, stops in (("0", True), ("6.2%", True), ("6.25%", False), ("all", False)):
        loaded = read_recipe(folder / "recipe.toml", [f"rows.max_bad_rows={limit}"])
        if stops:
            with pytest.raises(DataError, match=r"Unusable: 8 of all 128 rows"):
                build_recipe(loaded)
            assert not list(folder.glob("made/sources/*"))
    built = build_recipe(loaded)
    assert built.manifests["chats"]["bad_rows"] == {"left_out": 8, "of": 128}
    lines = [json.loads(line) for line in (folder / "made/sources/chats/rejected.jsonl").read_text().splitlines()]
    assert [line["where"] for line in lines] == [f"chats/{part}.jsonl:{n}" for part in (0, 1) for n in range(61, 65)]
    assert all(line["detail"].startswith(f"{line['where']}: ") for line in lines)


def test_a_dataset_that_is_built_already(folder: Path) -> None:
    """It is counted, mixed and exported as other sources are; the lock records its files."""
    build_recipe(read_recipe(folder / "recipe.toml"))
    shutil.move(folder / "made/sources/pairs", folder / "ready")
    shutil.rmtree(folder / "made")
    begin, end = RECIPE.split('files = ["pairs.jsonl"]')
    (folder / "recipe.toml").write_text(f'{begin}dataset = "ready"{end[end.index("[mixture]") - 1 :]}')
    loaded = read_recipe(folder / "recipe.toml")
    built = build_recipe(loaded)
    assert built.mixture.folders == {"chats": "sources/chats", "pairs": "../ready"}
    assert not (folder / "made/sources/pairs").exists()
    assert {path.name for path in (folder / "made/exports/hf").iterdir()} == {"chats", "pairs"}
    loader = ng.loader(folder / "made", batch_size=1)
    assert len(list(loader)) == built.mixture.rows("chats") + built.mixture.rows("pairs")
    wanted = digests(folder / "made")
    shutil.rmtree(folder / "made")
    locked, lock = read_lock(folder / "recipe.lock.json")
    build_recipe(locked, locked=lock)
    assert digests(folder / "made") == wanted
    data = bytearray((folder / "ready/episodes.json").read_bytes())
    other = json.loads(data)
    other["seed"] += 1
    (folder / "ready/episodes.json").write_text(json.dumps(with_manifest_hash(other)))
    with pytest.raises(Mismatch, match=r"sources\.pairs\.dataset\.manifest_sha256"):
        build_recipe(locked, locked=lock)


@pytest.mark.parametrize(
    ("source", "more", "said"),
    [
        ('files = ["pairs.jsonl"]\ndataset = "ready"', "", "found files and a dataset"),
        ("", "", "found neither files nor a dataset"),
        ('dataset = "ready"\nformat = "alpaca"', "", "found format and a dataset"),
        (
            'dataset = "ready"',
            "[duplicates]\nexact = true\n",
            "found duplicates or decontaminate, and the dataset 'pairs'",
        ),
        ('dataset = "nowhere"', "", "no such directory"),
        ('dataset = "chats"', "", "no episodes: expected"),
        ('dataset = "s3://bucket/x"', "", "niels-gpt fetch"),
        ('dataset = "other"', "", "expected one tokenizer for all sources"),
    ],
)
def test_datasets_that_do_not_fit(folder: Path, source: str, more: str, said: str) -> None:
    build_recipe(read_recipe(folder / "recipe.toml"))
    shutil.move(folder / "made/sources/pairs", folder / "ready")
    shutil.copytree(folder / "ready", folder / "other")
    manifest = json.loads((folder / "other/episodes.json").read_text()) | {"tokenizer_sha256": "0" * 64}
    (folder / "other/episodes.json").write_text(json.dumps(with_manifest_hash(manifest)))
    begin, end = RECIPE.split('files = ["pairs.jsonl"]')
    (folder / "recipe.toml").write_text(f"{begin}{source}{end[end.index('[mixture]') - 1 :]}{more}")
    with pytest.raises(NielsError, match=re.escape(said)):
        open_recipe(read_recipe(folder / "recipe.toml"))
