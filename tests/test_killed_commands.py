"""Whatever a command was doing when it was killed: nothing half-written has a name, and the same command again ends
in the same files with the same bytes, and in no others.

As in `tests/test_crash.py` a process that has loaded everything forks a child for each order.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra 'hub' is not installed")
pytest.importorskip("fsspec", reason="the extra 'remote' is not installed")

from niels_gpt.samples import notes_dir
from tests.killing import Ordered, chosen_points
from tests.scale.builds import write_chats

SCRIPT = """
import json, os, sys
from pathlib import Path
import pandas, pyarrow.parquet, fsspec.implementations.local
import niels_gpt.doctor.run, niels_gpt.export.registry, niels_gpt.imports.run, niels_gpt.tokenizer.training
from niels_gpt.cache.build_all import Target
from niels_gpt.cli.main import main
from niels_gpt.config import TrainingConfig
from niels_gpt.episodes import GPTEpisodeDataLoader
from niels_gpt.sources.roam import RoamNotes
from tests.killing import count_and_kill
import niels_gpt.cache.build_all


def run(command):
    if command[0] == "loader":
        config = TrainingConfig(batch_size=2, block_size=128)
        GPTEpisodeDataLoader(config, None, command[1], pad_token_id=0, packing=True, too_long="head").keep_counts()
        return 0
    if command[0] == "stub":  # what --with-gutenberg does, without the hub
        notes, command = RoamNotes(Path(command[1])), command[2:]
        limits = {"max_train_tokens": 1 << 40, "max_val_tokens": 1 << 40, "val_frac": 0.1}
        niels_gpt.cache.build_all.plan = lambda settings: [Target("gutenberg", "pretrain/gutenberg", notes, limits)]
    sys.argv = ["niels-gpt", *command]
    try:
        main()
    except SystemExit as left:
        return left.code or 0
    return 0


for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if child == 0:
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        steps = count_and_kill(order["out"], order["point"])
        code = run(order["command"])
        os.write(log, f"\\nsteps {steps()}".encode())
        os._exit(code)
    status = os.waitpid(child, 0)[1]
    print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)
"""


@dataclass(frozen=True)
class Command:
    """A command line, `{out}` in it where it writes and `{given}` where its inputs are; `first` ran undisturbed."""

    line: str
    first: str = ""
    code: int = 0


BUILD_ALL = "cache build-all --cache-dir {out}/cache --tokenizer {given}/tokenizer --roam-dir {given}/notes"
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
        "episodes build {given}/chats.jsonl --out {out}/chats --tokenizer {given}/tokenizer --metadata --mask float32"
    ),
    "episodes pack": Command("episodes pack {given}/episodes --out {out}/packed --block-size 256 --too-long head"),
    "plans and counts": Command("loader {out}/episodes", "copy {given}/episodes {out}/episodes"),
    "export": Command("export {given}/episodes --to hf --out {out}/hf --overwrite"),
    "export of several files": Command(
        "export {given}/episodes --to mds --out {out}/mds --overwrite --shard-tokens 2000",
        "export {given}/episodes --to mds --out {out}/mds",
    ),
    "import": Command("import {given}/megatron --from megatron --out {out}/imported --overwrite"),
    "publish": Command("publish {given}/episodes file://{out}/remote"),
    "publish another": Command(
        "publish {given}/episodes file://{out}/remote --overwrite", "publish {given}/cache file://{out}/remote"
    ),
    "fetch": Command("fetch file://{given}/published --to {out}/fetched"),
    "fetch and evict": Command(
        "fetch file://{given}/published --to {out}/fetched --max-bytes 80000",
        "fetch file://{given}/other_published --to {out}/fetched",
    ),
    "doctor": Command("doctor {given}/chats.jsonl --json --out {out}/report.json --workers 1"),
}


GIVEN = (
    "tokenizer train {given}/words.txt --out {given}/other --vocab-size 300",
    "episodes build {given}/chats.jsonl --out {given}/episodes --tokenizer {given}/tokenizer",
    "cache build-sft {given}/chats.jsonl --out {given}/cache --tokenizer {given}/tokenizer",
    "export {given}/episodes --to megatron --out {given}/megatron",
    "publish {given}/episodes file://{given}/published",
    "publish {given}/cache file://{given}/other_published",
)


class Runner(Ordered):
    """Runs command lines on order, and kills them on order."""

    def __init__(self, given: Path, log: Path) -> None:
        self._given, self.log = given, log
        super().__init__(SCRIPT)

    def run(self, line: str, out: Path, point: int = 0) -> int:
        """The exit code; -9 if it was killed at its `point`-th step (0: never)."""
        command = line.format(given=self._given, out=out).split()
        if command[0] == "copy":
            shutil.copytree(*command[1:])
            return 0
        return self.order(command=command, out=str(out / "x"), point=point, log=str(self.log))

    def begin(self, command: Command, out: Path) -> Path:
        """A new directory in which what has to be there is there."""
        out.mkdir()
        if command.first:
            assert self.run(command.first, out) == 0, self.log.read_text()
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


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("number", [1, pytest.param(10**6, marks=pytest.mark.slow)], ids=["sample", "every point"])
def test_killed_anywhere_and_run_again(runner: Runner, tmp_path: Path, name: str, number: int) -> None:
    command = COMMANDS[name]
    prepared = runner.begin(command, tmp_path / "prepared")
    undisturbed = shutil.copytree(prepared, tmp_path / "undisturbed")
    before = contents(undisturbed)
    assert runner.run(command.line, undisturbed) == command.code, runner.log.read_text()
    steps, whole = runner.steps(), contents(undisturbed)
    assert whole != before
    allowed = named(before) | named(whole)
    for point in chosen_points(steps, number, last=2):
        out = shutil.copytree(prepared, tmp_path / f"at{point}")
        code = runner.run(command.line, out, point)
        assert code in (-9, command.code), f"point {point} of {steps}: {runner.log.read_text()}"
        assert named(contents(out)) <= allowed, f"killed at step {point} of {steps}"
        again = runner.run(command.line, out)
        assert again == command.code, f"killed at step {point} of {steps}, then: {runner.log.read_text()}"
        assert contents(out) == whole, f"killed at step {point} of {steps}, then run again"
        shutil.rmtree(out)
