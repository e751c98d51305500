"""The commands as a user gives them: a command line, its exit code, and what it prints.

One table, `LINES`: they run one after the other in one folder, so that what one builds another reads. Below it are
promises that no line shows: help pages, what is imported, closed streams.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import typer

pytest.importorskip("torch")

from niels_gpt.cli import options
from niels_gpt.cli.main import COMMANDS, function_of
from niels_gpt.cli.paths import EXISTING_TOKENIZER, in_home
from niels_gpt.samples import chats_file, notes_dir
from tests.assets import ASSETS, needs_assets
from tests.conftest import REPOSITORY, cli_here, run_cli
from tests.test_ranges import commands, told

PROGRAM = Path(sys.executable).parent / "niels-gpt"
OUT = "--tokenizer tok --out o"
# Command line, exit code, and a part of what it prints: on stdout where the code is 0 or 1, else as the one line of the
# error. "(empty)" is an empty argument.
LINES = [
    # A user's own data, from files to a verified dataset that others read.
    ("tokenizer train notes chats.jsonl --vocab-size 900 --out tok --json", 0, '"vocab_size": 900'),
    ("build chats.jsonl --tokenizer tok --out ep", 0, "ep is complete. Look at it: niels-gpt show ep 0"),
    ("build chats.jsonl --tokenizer tok --out ep", 0, "ep is complete"),
    ("build chats.jsonl --tokenizer tok --kind sft --out sft --json", 0, '"examples": 90'),
    ("build notes --tokenizer tok --out pre --val-frac 0.1 --shuffle-buffer 8 --shard-bytes 9000", 0, "documents"),
    ("build pairs.jsonl --tokenizer tok --out pref", 0, "completions"),
    ("info ep --sequence-length 64", 0, "in rows of 64 inputs"),
    ("info pre --json", 0, '"kind": "pretrain"'),
    ("verify ep", 0, "all as they were written"),
    ("verify sft --json", 0, '"ok": true'),
    ("show ep 3 --packed --sequence-length 64 --tokenizer tok", 0, "trained"),
    ("show sft 5 --sequence-length 20 --json --tokenizer tok", 0, '"target_trained"'),
    ("show pre 1 --split val --sequence-length 20", 0, "tokens 20 to 40"),
    ("show chats.jsonl 2", 0, "add --tokenizer"),
    ("pack ep --out packed --sequence-length 256 --too-long head", 0, "read it with block_size 256"),
    ("export ep --to hf --out hf --sequence-length 64 --too-long head --seed 3", 0, "hf is complete"),
    ("import hf --from hf --out back --json", 0, '"splits"'),
    ("publish ep file://{}/there", 0, "0 were there"),
    ("fetch file://{}/there --out here", 0, "here"),
    ("doctor ep --tokenizer tok --workers 1", 0, "1 warning"),
    ("doctor chats.jsonl --tokenizer tok --workers 1 --validation ~/chats.jsonl", 1, "validation-leak"),
    ("doctor tok tok --chats ~/chats.jsonl", 0, ""),
    # Names that are none, answered before a tokenizer is loaded.
    ("shwo", 2, "No such command 'shwo'. Did you mean 'show'"),
    ("cache build-pretrain x", 2, "No such command 'cache'. Did you mean 'build'?"),
    ("episodes verify x", 2, "No such command 'episodes'. Did you mean 'verify'?"),
    ("build --kind sft chats.jsonl --out o --sed 3", 2, "No such option: --sed (Possible options: --seed, --set)"),
    ("show ep 1 --splt val", 2, "No such option: --splt"),
    ("show x --split tain", 2, "'tain' is not one of 'train', 'val'."),
    ("export ep --out o", 2, "Missing option '--to'."),
    ("export", 2, "Missing argument 'DATASET'."),
    ("rules a b", 2, "(b)"),
    ("rendr", 2, "No such command 'rendr'. Did you mean 'render'"),
    ("render chats.jsonl --tokenizer x --renderer quen3", 2, "did you mean 'qwen3'"),
    ("show chats.jsonl --tokenizer x --renderer qwen3 --renderer-option enable_thinkin=1", 2, "enable_thinking'"),
    ("show chats.jsonl --tokenizer x --renderer-option enable_thinking", 2, "`niels-gpt renderers NAME`"),
    ("show chats.jsonl --tokenizer x --loss-on last_mesage", 2, "did you mean 'last_message'"),
    ("doctor chats.jsonl --tokenizer x --format sharegtp", 2, "did you mean 'sharegpt'"),
    ("doctor chats.jsonl --json --sarif", 2, "one form of report at a time"),
    ("export ep --to hf --out o --option assistant_masks", 2, "options of hf: assistant_masks"),
    ("export ep --to megatron --out o --option x", 2, "megatron has no options of its own"),
    ("export ep --out o --to trll", 2, "did you mean 'trl'"),
    ("export ep --out o --to trl --too-long taill", 2, "did you mean 'tail'"),
    ("import hf --out o --from megatorn", 2, "did you mean 'megatron'"),
    ("renderers qwen33", 2, "did you mean 'qwen3"),
    # Options that do not go together.
    (f"build notes {OUT} --samples auto", 2, "--samples is for episodes, and this builds pretrain; leave it out"),
    (f"build chats.jsonl {OUT} --dry-run", 2, "--dry-run is for recipe, and this builds episodes; leave it out"),
    (f"build chats.jsonl {OUT} --loss-on last_message", 2, "our own sentinels train every assistant turn"),
    (f"build chats.jsonl {OUT} --ray-address auto", 2, "--ray-address is for Ray; add --engine ray, or leave it out"),
    ("build chats.jsonl --tokenizer tok", 2, "Missing option '--out'."),
    ("tokenizer train notes --kind byte-bpe --model-type bpe --out o", 2, "are for --kind sentencepiece"),
    ("show chats.jsonl 0 --packed", 2, "--packed and --sequence-length are for datasets"),
    ("show ep 0 --renderer qwen3", 2, "its rows were rendered when it was built"),
    ("doctor chats.jsonl --fix r --out r", 2, "--fix and --out both write r"),
    # What a shell makes of `--out "$OUT"` where OUT is not set.
    ("build chats.jsonl --out (empty)", 2, "--out is empty; expected a value (is a shell variable unset?)"),
    ("build chats.jsonl --out=", 2, "--out is empty; expected a value (is a shell variable unset?)"),
    ("doctor (empty)", 2, "an argument is empty"),
    # Files that are none.
    ("doctor blank.jsonl --tokenizer tok", 3, "blank.jsonl: contains no rows"),
    ("show chats.jsonl --tokenizer tok --template binary", 3, "binary:1: invalid UTF-8 at byte 0"),
    ("show chats.jsonl --tokenizer tok --template empty", 3, "the file is empty; expected a Jinja chat template"),
    ("info chats.jsonl", 3, "chats.jsonl: a file; expected a dataset, which is a directory. Build first: "),
    ("show notes", 3, "notes"),
    ("export chats.jsonl --to hf --out o", 3, "a file; expected a dataset, which is a directory. Build first: "),
    ("import ep --from hf --out o", 2, "ep: a dataset of ours, which needs no import; look at it: niels-gpt info ep"),
    ("import raw.bin --from hf --out o", 3, "raw.bin: bare ids (tokens); expected rows. Pass --from tokens"),
    ("import data/missing --from megatron --out o", 3, "data/missing"),
    ("doctor chats.jsonl --out .", 3, "expected a file to write"),
    ("doctor chats.jsonl --fix nowhere/x.jsonl", 3, "expected a file to write"),
    *((f"{command} pipe", 3, "pipe: a pipe or device; expected a regular file") for command in (
        "doctor", f"build {OUT}", f"build --kind pretrain {OUT}", "tokenizer train --out o", "render --tokenizer tok",
    )),
    # Manifests that somebody edited.
    ("info edited", 3, "vocab_size is 'x'; expected a whole number"),
    ("verify edited", 3, "vocab_size is 'x'; expected a whole number"),
    ("show edited", 3, "vocab_size is 'x'; expected a whole number"),
    ("export edited --to hf --out o", 3, "vocab_size is 'x'; expected a whole number"),
]  # fmt: skip


def problem(done: subprocess.CompletedProcess[str], code: int, expected: str) -> str:
    """What is wrong with the answer of a command; empty if nothing is."""
    if done.returncode != code:
        return f"exit code {done.returncode}: {done.stderr[-400:]}"
    if code < 2:
        return "" if expected in done.stdout else f"printed {done.stdout[-400:]}"
    errors = [each for each in done.stderr.splitlines() if each.startswith("error: ")]
    if len(errors) != 1 or "Traceback" in done.stderr:
        return f"no single error: {done.stderr}"
    return "" if expected in " ".join(done.stderr.split()) else done.stderr


def test_every_line_ends_and_says_as_the_table_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copy(chats_file(), "chats.jsonl")
    shutil.copytree(notes_dir(), "notes")
    pair = {"prompt": "a", "chosen": "b", "rejected": "c"}
    Path("pairs.jsonl").write_text("".join(json.dumps(pair | {"chosen": f"b {n}"}) + "\n" for n in range(30)))
    for name, content in (
        ("empty", b""),
        ("blank.jsonl", b"\n\n"),
        ("binary", bytes(range(128, 256))),
        ("raw.bin", b"\1\0" * 9),
    ):
        Path(name).write_bytes(content)
    os.mkfifo("pipe")
    niels = cli_here(capsys, monkeypatch)
    wrong = []
    for line, code, expected in LINES:
        if line.startswith("info edited"):
            shutil.copytree("sft", "edited")
            meta = json.loads(Path("edited/meta.json").read_text())
            Path("edited/meta.json").write_text(json.dumps(meta | {"vocab_size": "x"}))
        before = sorted(Path().iterdir())
        done = niels(*("" if word == "(empty)" else word for word in line.format(tmp_path).split()))
        said = problem(done, code, expected)
        left = "something is left behind" if code > 1 and sorted(Path().iterdir()) != before else ""
        wrong += [f"{line}\n    {text}" for text in (said, left) if text]
    assert not wrong, "\n".join(wrong)


# Loading any of these takes longer than the whole answer may.
HEAVY = [
    "tokenizers",
    "gigatoken",
    "transformers",
    "datasets",
    "huggingface_hub",
    "pyarrow",
    "torch",
    "jinja2",
    "starlette",
    "ray",
]
MISSING = """
tokenizer train NOTHING --out o
build --kind sft NOTHING --tokenizer . --out o
build CHATS --tokenizer . --template NOTHING --out o
build CHATS --tokenizer . --images NOTHING --out o
build NOTHING.toml
info NOTHING
verify NOTHING
pack NOTHING --out o --sequence-length 64
show NOTHING
show NOTHING.jsonl --tokenizer .
render NOTHING --tokenizer .
show CHATS --tokenizer ./NOTHING
show CHATS --tokenizer . --template NOTHING
explore NOTHING
explore CHATS --findings NOTHING
doctor NOTHING --tokenizer .
doctor CHATS --tokenizer . --template NOTHING
doctor CHATS --tokenizer . --validation NOTHING
doctor . ./NOTHING
doctor . . --chats NOTHING
doctor template ./NOTHING
doctor template . --template NOTHING
export NOTHING --to hf --out o
import NOTHING --from hf --out o
publish NOTHING s3://bucket/x
"""
# Each command in a process of its own, forked from one that has imported the modules of commands; these import none of
# the heavy libraries themselves, which is checked first.
FORKED = """
import json, os, sys
from niels_gpt.cli.main import main
import niels_gpt.cli.build, niels_gpt.cli.catalogue, niels_gpt.cli.exchange, niels_gpt.cli.datasets, niels_gpt.cli.show
heavy, lines = json.loads(sys.argv[1])
assert not set(heavy) & set(sys.modules)
for line in lines:
    sys.stdout.flush()
    if child := os.fork():
        os.waitpid(child, 0)
        continue
    os.dup2(1, 2)
    sys.argv[1:] = line.split()
    try:
        main()
    except SystemExit as end:
        print(json.dumps([line, end.code, sorted(set(heavy) & set(sys.modules))]), flush=True)
    os._exit(0)
"""


def test_a_missing_path_is_refused_before_heavy_libraries_are_loaded(tmp_path: Path) -> None:
    lines = MISSING.replace("CHATS", str(chats_file())).strip().splitlines()
    command = [sys.executable, "-c", FORKED, json.dumps([HEAVY, lines])]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    printed = done.stdout.splitlines()
    errors = [line for line in printed if line.startswith("error: ")]
    assert [json.loads(line) for line in printed if line.startswith("[")] == [[line, 3, []] for line in lines]
    assert len(errors) == len(lines)
    assert all("NOTHING" in line.partition(":")[2].partition(":")[0] for line in errors), errors
    assert not list(tmp_path.iterdir()), "nothing is left behind"


@pytest.mark.parametrize("line", ["shwo", "info nowhere", "show x --split tain", "build x --out="])
def test_with_json_the_error_is_json_as_well(line: str) -> None:
    done = run_cli(*line.split(), "--json")
    assert json.loads(done.stdout) == {"error": done.stderr[len("error: ") : -1], "exit_code": done.returncode}


def test_a_path_below_home_is_what_the_shell_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of --out=~/x a directory called ~ was created."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "other.jsonl").touch()
    other = f"{tmp_path}/other.jsonl"
    assert in_home(["~/other.jsonl", "owner/name", Path("~/x")]) == [other, "owner/name", tmp_path / "x"]
    assert in_home(Path("~nobody-of-this-name/x")) == Path("~nobody-of-this-name/x")
    assert EXISTING_TOKENIZER(["~/other.jsonl", "owner/name"]) == [other, "owner/name"]


# ---- help pages, lists and what is imported


def test_every_option_has_help_and_every_command_an_example() -> None:
    """An example that a page of 80 columns broke in two would run as two commands."""
    examples = 0
    for path, callback in commands():
        hints = get_type_hints(callback, include_extras=True)
        for name in inspect.signature(callback).parameters:
            assert hints[name] is typer.Context or told(hints[name]).help.strip(), (path, name)
        for paragraph in (" ".join(each.split()) for each in (inspect.getdoc(callback) or "").split("\n\n")):
            if re.match(r"([^:`]*: )?niels-gpt [a-z]", paragraph):
                examples += 1
                assert len(paragraph) <= 78, f"{path}: {paragraph}"
    assert examples > 25
    assert "Example: niels-gpt build chats.jsonl" in run_cli("build", "--help").stdout


def test_lists_that_are_repeated_are_those_of_the_library() -> None:
    """They are repeated in the command line, because importing the library takes long."""
    from niels_gpt.format.fitting import EPISODE_POLICIES
    from niels_gpt.renderers.loss import Preset

    assert (get_args(Preset), EPISODE_POLICIES) == (options.LOSS_PRESETS, options.TOO_LONG)
    for name, command in COMMANDS.items():
        found = function_of(name)
        own = found.info.help if isinstance(found, typer.Typer) else inspect.getdoc(found)
        assert " ".join(own.split("\n\n")[0].split()) == command.line


def test_renderers_list_every_family_and_every_option() -> None:
    from niels_gpt.renderers.configs import config_from_name
    from niels_gpt.renderers.registry import FAMILIES, MODEL_RENDERER_MAP
    from niels_gpt.renderers.template.known import TEMPLATE_FAMILIES, TEMPLATE_MODELS

    listed: list[dict[str, Any]] = json.loads(run_cli("renderers", "--json").stdout)
    assert [entry["name"] for entry in listed] == [*FAMILIES, "template", *TEMPLATE_FAMILIES]
    assert {model for entry in listed for model in entry["models"]} == {*MODEL_RENDERER_MAP, *TEMPLATE_MODELS}
    for entry in (entry for entry in listed if entry["name"] not in TEMPLATE_FAMILIES):
        fields = type(config_from_name(entry["name"])).model_fields
        assert {option["name"] for option in entry["options"]} == set(fields) - {"name"}
        for option in entry["options"]:
            assert option["help"], f"{entry['name']} {option['name']}: describe it under Attributes: of its config"
    one = json.loads(run_cli("renderers", "qwen3", "--json").stdout)
    (thinking,) = [option for option in one["options"] if option["name"] == "enable_thinking"]
    assert (thinking["type"], thinking["default"]) == ("true or false", True)
    assert "Qwen/Qwen3-8B" in run_cli("renderers", "qwen3").stdout
    assert "calls 44 of 56" in run_cli("renderers", "gemma-4").stdout


def test_version() -> None:
    assert re.fullmatch(r"niels-gpt \d+\.\d+\.\d+\n", run_cli("--version", fresh=True).stdout)


def imported_by(*arguments: object) -> set[str]:
    """The modules that a command line has imported when it ends."""
    code = (
        "import atexit, sys; sys.argv = ['niels-gpt', *sys.argv[1:]];"
        "atexit.register(lambda: print(*sys.modules, sep='\\n', file=sys.stderr));"
        "from niels_gpt.cli.entry import main; main()"
    )
    line = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert done.returncode in (0, 2)
    return set(done.stderr.split("\n"))


@pytest.mark.parametrize("line", ["--help", "--version", ""])
def test_help_and_version_import_no_command(line: str) -> None:
    found = imported_by(*line.split())
    ours = {"niels_gpt.messages", "niels_gpt.renderers", "niels_gpt.tokenizer", "niels_gpt.cache", "niels_gpt.cli.show"}
    assert not found & {*HEAVY, *ours, "numpy", "pydantic", "sentencepiece"}
    assert line != "--version" or "rich.console" not in found


@needs_assets
def test_show_imports_what_it_needs_alone() -> None:
    """With a tokenizer that was opened before; `tests/tokenizer/test_proofs.py` looks at the tokenizer alone."""
    line = ["show", chats_file(), "0", "--tokenizer", ASSETS / "qwen2.5-0.5b-instruct", "--no-table"]
    imported_by(*line)  # proves it, unless another test of this run did
    found = imported_by(*line)
    assert {"gigatoken", "niels_gpt.cli.show"} <= found
    others = {"niels_gpt.cli.exchange", "niels_gpt.doctor"}
    assert not found & {"tokenizers", "torch", "transformers", "datasets", "pyarrow", "httpx", *others}


# ---- streams


@pytest.mark.parametrize("page", ["--help", "show --help", "renderers", "rules", "rules --json"])
def test_a_closed_pipe_is_no_failure(page: str) -> None:
    """As in `niels-gpt --help | head -1`; exit code 1 would be findings of the doctor."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([PROGRAM, *page.split()], stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("arguments", "code"), [("rules", 0), ("rules nope", 2)])
def test_closed_streams_leave_the_exit_code(arguments: str, code: int) -> None:
    """As under a service manager that closes them; Python then has None in place of a stream."""
    line = f"{shlex.quote(str(PROGRAM))} {arguments} >&- 2>&-"
    assert subprocess.run(["/bin/sh", "-c", line], check=False).returncode == code


def test_a_terminal_without_unicode_is_no_failure(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    for line in (["show", chats_file(), "3"], ["rules"]):
        done = subprocess.run([PROGRAM, *line], capture_output=True, env=environment, check=False)
        assert (done.returncode, done.stderr) == (0, b"")


def test_a_full_disk_is_one_error() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([PROGRAM, "rules", "--json"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert done.stderr.startswith("error: No space left on device; free some space")


def test_a_group_without_a_command_prints_its_help() -> None:
    done = run_cli("tokenizer")
    assert (done.returncode, "Usage:" in done.stdout + done.stderr) == (2, True)


def test_without_torch_builds_and_caches_work(tmp_path: Path, tokenizer_dir: Path) -> None:
    code = "import sys; sys.modules['torch'] = None; from niels_gpt.cli.main import main; main()"

    def run(line: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, *line.split()]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)

    for works in (
        f"build --kind sft {chats_file()} --out c --tokenizer {tokenizer_dir}",
        "show c",
        f"build {chats_file()} --out e --tokenizer {tokenizer_dir}",
    ):
        done = run(works)
        assert done.returncode == 0, done.stderr
