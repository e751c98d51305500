"""Whatever a command was doing when it was killed: nothing half-written has a name, and the same command again ends
in the same files with the same bytes, and in no others.

A process that has loaded everything forks a child for each order.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import signal
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra 'hub' is not installed")
pytest.importorskip("fsspec", reason="the extra 'remote' is not installed")

from niels_gpt.samples import notes_dir
from tests.killing import Ordered, chosen_points
from tests.preferences.made import pairs, write_rows
from tests.scale.builds import write_chats

SCRIPT = """
import contextlib, json, os, resource, signal, sys
from pathlib import Path
import pandas, pyarrow.parquet, fsspec.implementations.local
import niels_gpt.doctor.run, niels_gpt.export.registry, niels_gpt.imports.run, niels_gpt.tokenizer.training
import niels_gpt.recipes.run, niels_gpt.export.preferences
import niels_gpt.preferences.build, niels_gpt.sources.curation.duplicates
import niels_gpt.builds.units, niels_gpt.cli.catalogue, niels_gpt.cli.corpora, niels_gpt.cli.exchange
import niels_gpt.cli.recipes, niels_gpt.cli.show, niels_gpt.doctor.sarif, niels_gpt.doctor.show
from niels_gpt.cache.build_all import Target
from niels_gpt.cli.main import main
from niels_gpt.config import TrainingConfig
from niels_gpt.episodes import GPTEpisodeDataLoader
from niels_gpt.sources.text_files import roam_notes
from tests.killing import count_and_kill
import niels_gpt.cache.build_all
from niels_gpt.cli import corpora, terminal
from niels_gpt.interrupts import interruptible


def run(command):
    if command[0] == "loader":
        config = TrainingConfig(batch_size=2, block_size=128)
        GPTEpisodeDataLoader(config, None, command[1], pad_token_id=0, packing=True, too_long="head")
        return 0
    if command[0] == "stub":  # what --with-gutenberg does, without the hub
        notes, command = roam_notes(Path(command[1])), command[2:]
        limits = {"max_train_tokens": 1 << 40, "max_val_tokens": 1 << 40, "val_frac": 0.1}
        niels_gpt.cache.build_all.plan = lambda settings: [Target("gutenberg", "pretrain/gutenberg", notes, limits)]
    sys.argv = ["niels-gpt", *command]
    try:
        if command[0] == "build-all":
            interruptible(lambda: terminal.run(lambda: corpora.app(command)))
        main()
    except SystemExit as left:
        return left.code or 0
    return 0


for line in sys.stdin:
    order = json.loads(line)
    reading, log = os.pipe()  # not a file, which a limit of sizes would cut too
    child = os.fork()
    if child == 0:
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # no files any more
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if order["limit"]:
            resource.setrlimit(resource.RLIMIT_FSIZE, (order["limit"], order["limit"]))
        steps = count_and_kill(order["out"], order["point"], order["signal"])
        code = run(order["command"])
        os.write(log, f"\\nsteps {steps()}".encode())
        os._exit(code)
    os.close(log)
    with open(reading, "rb") as said:
        Path(order["log"]).write_bytes(said.read())
    status = os.waitpid(child, 0)[1]
    print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)
"""


@dataclass(frozen=True)
class Command:
    """A command line, `{out}` in it where it writes and `{given}` where its inputs are; `first` ran undisturbed."""

    line: str
    first: str = ""
    code: int = 0


BUILD_ALL = "build-all --cache-dir {out}/cache --tokenizer {given}/tokenizer --roam-dir {given}/notes"
COMMANDS = {
    "tokenizer train": Command(
        "tokenizer train {given}/words.txt --out {out}/tokenizer --vocab-size 310 --overwrite",
        "tokenizer train {given}/words.txt --out {out}/tokenizer --vocab-size 300",
    ),
    "build-all": Command(f"{BUILD_ALL} --only roam --only gutenberg"),
    "build-all anew": Command(
        f"{BUILD_ALL} --only roam --only gutenberg --overwrite",
        f"{BUILD_ALL} --only roam --only gutenberg".replace("/tokenizer", "/other"),
    ),
    "build-all over a stub": Command(f"stub {{given}}/notes {BUILD_ALL}", f"{BUILD_ALL} --only gutenberg"),
    "episodes build": Command(
        "build {given}/chats.jsonl --out {out}/chats --tokenizer {given}/tokenizer --metadata --mask float32"
    ),
    "pack": Command("pack {given}/episodes --out {out}/packed --sequence-length 256 --too-long head"),
    "packing plans": Command("loader {out}/episodes", "copy {given}/episodes {out}/episodes"),
    "export": Command("export {given}/episodes --to hf --out {out}/hf --overwrite"),
    "import": Command("import {given}/megatron --from megatron --out {out}/imported --overwrite"),
    "publish": Command("publish {given}/episodes file://{out}/remote"),
    "publish another": Command(
        "publish {given}/episodes file://{out}/remote --overwrite", "publish {given}/cache file://{out}/remote"
    ),
    "fetch": Command("fetch file://{given}/published --out {out}/fetched"),
    "doctor": Command("doctor {given}/chats.jsonl --json --out {out}/report.json --workers 1"),
    "preferences build": Command(
        "build --kind preferences {given}/pairs.jsonl --out {out}/pairs --tokenizer {given}/tokenizer"
    ),
    "build of a recipe": Command("build {out}/recipe.toml", "copy {given}/recipe.toml {out}/recipe.toml"),
    "build of a recipe anew": Command(
        "build {out}/recipe.toml --overwrite --set seed=6",
        "copy {given}/recipe.toml {out}/recipe.toml && build {out}/recipe.toml",
    ),
    "doctor that repairs and reports": Command(
        "doctor {given}/rows.jsonl --fix {out}/repaired.jsonl --out {out}/report.md --workers 1",
        "doctor {given}/rows.jsonl --fix {out}/repaired.jsonl --out {out}/report.md --workers 1 --evidence 1",
    ),
    "export to trl-dpo": Command("export {given}/pairs --to trl-dpo --out {out}/dpo --overwrite"),
}
SLOW = [
    "build of a recipe anew",
    "doctor that repairs and reports",  # but interrupted in every run
]
# Of the others the same code handles signals and full disks.
INTERRUPTED = [
    *("build-all", "publish", "fetch", "build of a recipe", "export to trl-dpo"),
    "doctor that repairs and reports",
]


def cases(sample: int, many: int, names: Iterable[str], quick: Container[str]) -> list[Any]:
    """Each command with few points, some of them only in slow runs, and with many.

    Each point takes two runs of a command, of which one takes up to a second: all points of all commands take hours.
    """
    few = [pytest.param(name, sample, marks=() if name in quick else pytest.mark.slow) for name in names]
    return few + [pytest.param(name, many, marks=pytest.mark.slow) for name in names]


GIVEN = (
    "tokenizer train {given}/words.txt --out {given}/other --vocab-size 300",
    "build {given}/chats.jsonl --out {given}/episodes --tokenizer {given}/tokenizer",
    "build --kind sft {given}/chats.jsonl --out {given}/cache --tokenizer {given}/tokenizer",
    "export {given}/episodes --to megatron --out {given}/megatron",
    "publish {given}/episodes file://{given}/published",
    "build --kind preferences {given}/pairs.jsonl --out {given}/pairs --tokenizer {given}/tokenizer",
)


RECIPE = """
out = "made"
seed = 5
[tokenizer]
path = "{given}/tokenizer"
[sequence]
length = 128
packing = true
too_long = "head"
[[sources]]
name = "chats"
files = ["{given}/chats.jsonl"]
[[sources]]
name = "answers"
files = ["{given}/answers.jsonl"]
format = "prompt_completion"
[duplicates]
exact = true
[mixture]
weights = {{ chats = 0.75, answers = 0.25 }}
max_epochs = 2
[[exports]]
to = "megatron"
"""


class Runner(Ordered):
    """Runs command lines on order, and kills them on order."""

    def __init__(self, given: Path, log: Path) -> None:
        self._given, self.log = given, log
        super().__init__(SCRIPT)

    def run(self, line: str, out: Path, point: int = 0, number: int = signal.SIGKILL, limit: int = 0) -> int:
        """The exit code; negative if it was ended by signal `number` at its `point`-th step (0: never).

        Args:
            limit: the bytes that a file may have, 0 for no limit.
        """
        command = line.format(given=self._given, out=out).split()
        if command[0] == "copy":
            (shutil.copytree if Path(command[1]).is_dir() else shutil.copy)(*command[1:])
            return 0
        order = {"out": str(out / "x"), "point": point, "log": str(self.log), "signal": int(number), "limit": limit}
        return self.order(command=command, **order)

    def begin(self, command: Command, out: Path) -> Path:
        """A new directory in which what has to be there is there."""
        out.mkdir()
        for line in filter(None, command.first.split(" && ")):
            assert self.run(line, out) == 0, self.log.read_text()
        return out

    def steps(self) -> int:
        """Of the last command."""
        return int(self.log.read_text().rpartition("steps ")[2])


@pytest.fixture(scope="module")
def runner(tokenizer_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    given = tmp_path_factory.mktemp("given")
    shutil.copytree(tokenizer_dir, given / "tokenizer")
    shutil.copytree(notes_dir(), given / "notes")
    write_chats(given / "chats.jsonl", 40, bad=False)
    words = ["".join(random.Random(n).choices("aeioubdlmnrst", k=6)) for n in range(300)]
    (given / "words.txt").write_text("\n".join(words))  # a tokenizer of so little is trained at once
    write_rows(given / "pairs.jsonl", pairs(20))
    write_rows(given / "rows.jsonl", [{"input_ids": [n, n, 5, 6], "labels": [-100, -100, 5, 6]} for n in range(40)])
    answers = [{"prompt": row["prompt"], "completion": row["chosen"]} for row in pairs(20)]
    write_rows(given / "answers.jsonl", [*answers, *answers[:5]])
    (given / "recipe.toml").write_text(RECIPE.format(given=given))
    running = Runner(given, tmp_path_factory.mktemp("log") / "log")
    for line in GIVEN:
        assert running.run(line, given) == 0, running.log.read_text()
    yield running
    running.close()


def contents(folder: Path) -> dict[str, str]:
    """Every file below a directory and its sha256, every directory, and of a report what is no measured time."""
    found = {}
    for path in sorted(folder.rglob("*")):
        data = path.read_bytes() if path.is_file() else b"directory"
        if path.name == "build_report.json":
            report = json.loads(data)
            for source in report["sources"]:
                del source["seconds"], source["status"]
            data = json.dumps(report).encode()
        found[str(path.relative_to(folder))] = hashlib.sha256(data).hexdigest()
    return found


def named(found: dict[str, str]) -> set[tuple[str, str]]:
    """The files that people take for whole; a report grows while its command runs."""
    return {
        (path, digest)
        for path, digest in found.items()
        if not any(part.startswith(".") or part.endswith(".trash") for part in Path(path).parts)
        and not path.endswith("build_report.json")
    }


def left_over(found: dict[str, str]) -> set[str]:
    """The names of unfinished things; finished units are kept for the next run."""
    return {
        path
        for path in found
        if any(part.endswith((".partial", ".tmp", ".part", ".replaced")) for part in Path(path).parts)
    }


@pytest.mark.parametrize(("name", "number"), cases(1, 8, COMMANDS, set(COMMANDS) - set(SLOW)))
def test_disturbed_anywhere_and_run_again(runner: Runner, tmp_path: Path, name: str, number: int) -> None:
    """SIGKILL; of some also Ctrl-C, SIGTERM and a file that may not grow, after which nothing unfinished is left."""
    command, draw = COMMANDS[name], random.Random(name)
    prepared = runner.begin(command, tmp_path / "prepared")
    undisturbed = shutil.copytree(prepared, tmp_path / "undisturbed")
    before = contents(undisturbed)
    assert runner.run(command.line, undisturbed) == command.code, runner.log.read_text()
    steps, whole = runner.steps(), contents(undisturbed)
    assert whole != before
    allowed = named(before) | named(whole)
    sizes = sorted({path.stat().st_size for path in undisturbed.rglob("*") if path.is_file()} - {0})
    disturbed = [{"point": point} for point in chosen_points(steps, number, last=2)]
    for sent in (signal.SIGINT, signal.SIGTERM) if name in INTERRUPTED else ():
        disturbed += [{"point": draw.randint(1, steps), "number": sent} for _ in range(number)]
    disturbed += [{"limit": draw.choice(sizes) // 2 + 1} for _ in range(number) if name in INTERRUPTED]
    for case in disturbed:
        out = shutil.copytree(prepared, tmp_path / "disturbed")
        code, said = runner.run(command.line, out, **case), runner.log.read_text()
        ends = 3 if "limit" in case else 128 + case["number"] if "number" in case else -9
        assert code in (command.code, ends), f"{case} of {steps}: exit code {code}, {said}"
        assert "Traceback" not in said, f"{case}: {said}"
        assert code in (command.code, -9) or "nothing half-written remains" in said or "ulimit -f" in said, said
        assert named(contents(out)) <= allowed, f"{case} of {steps}"
        assert code == -9 or not left_over(contents(out)), case
        assert runner.run(command.line, out) == command.code, f"{case}, then: {runner.log.read_text()}"
        assert contents(out) == whole, f"{case}, then run again"
        shutil.rmtree(out)
