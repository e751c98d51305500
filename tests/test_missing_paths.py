"""A path at which nothing is: one clear line before libraries and tokenizers are loaded."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import niels_gpt as ng
from niels_gpt.errors import InputError
from niels_gpt.samples import chats_file

# Loading any of these takes longer than the whole answer may.
HEAVY = (
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
)
COMMANDS = (
    "tokenizer train NOTHING --out o",
    "build --kind sft NOTHING --tokenizer . --out o",
    "build --kind pretrain NOTHING --tokenizer . --out o",
    "info NOTHING",
    "verify NOTHING",
    "build NOTHING --tokenizer . --out o --workers 2",
    "build CHATS --tokenizer . --template NOTHING --out o",
    "build CHATS --tokenizer . --images NOTHING --out o",
    "pack NOTHING --out o --sequence-length 64",
    "build --kind preferences NOTHING --tokenizer . --out o",
    "build NOTHING.toml",
    "show NOTHING",
    "show NOTHING.jsonl --tokenizer .",
    "render NOTHING --tokenizer .",
    "render CHATS --tokenizer ./NOTHING",
    "render CHATS --tokenizer . --template NOTHING",
    "explore NOTHING",
    "explore CHATS --findings NOTHING",
    "doctor NOTHING --tokenizer .",
    "doctor CHATS --tokenizer . --template NOTHING",
    "doctor CHATS --tokenizer . --validation NOTHING",
    "doctor . ./NOTHING",
    "doctor . . --chats NOTHING",
    "doctor template ./NOTHING",
    "doctor template . --template NOTHING",
    "export NOTHING --to hf --out o",
    "import NOTHING --from hf --out o",
    "publish NOTHING s3://bucket/x",
)
# Each command in a process of its own, forked from one that has imported the modules of all commands; these import none
# of the heavy libraries themselves, which is checked first.
RUN = """
import json, os, sys
from niels_gpt.cli.main import main
import numpy, pydantic, sentencepiece
import niels_gpt.cli.build, niels_gpt.cli.catalogue, niels_gpt.cli.corpora, niels_gpt.cli.exchange
import niels_gpt.cli.datasets, niels_gpt.cli.show
heavy, commands = json.loads(sys.argv[1])
before = [name for name in heavy if name in sys.modules]
assert not before, before
for number, command in enumerate(commands):
    sys.stdout.flush()
    if child := os.fork():
        os.waitpid(child, 0)
        continue
    os.dup2(os.open(f"{number}.said", os.O_WRONLY | os.O_CREAT), 2)
    sys.argv[1:] = command
    code = None
    try:
        main()
    except SystemExit as end:
        code = end.code
    except BaseException as error:
        code = repr(error)
    loaded = [name for name in heavy if name in sys.modules]
    print(json.dumps([number, code, loaded]), flush=True)
    os._exit(0)
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[object, list[str], str]]:
    """Exit code, libraries that were loaded, and what was said, of every command."""
    folder = tmp_path_factory.mktemp("empty")
    lines = [[str(chats_file()) if word == "CHATS" else word for word in command.split()] for command in COMMANDS]
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps([HEAVY, lines])], capture_output=True, text=True, cwd=folder, check=True
    )
    told = {number: (code, loaded) for number, code, loaded in map(json.loads, done.stdout.splitlines())}
    said = {number: (folder / f"{number}.said").read_text() for number in told}
    assert {file.name for file in folder.iterdir()} == {f"{number}.said" for number in told}, "nothing is left behind"
    return {COMMANDS[number]: (*told[number], said[number]) for number in told}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_missing_path_is_refused_before_anything_heavy_is_loaded(
    answers: dict[str, tuple[object, list[str], str]], command: str
) -> None:
    code, loaded, said = answers[command]
    assert (code, loaded) == (3, []), said
    assert said.startswith("error: ")
    assert "NOTHING" in said.partition(":")[2].partition(":")[0]
    assert "Traceback" not in said


@pytest.mark.parametrize("name", ["NOTHING/", "~/NOTHING", "./NOTHING"])
def test_functions_do_not_look_for_a_path_on_the_hub(name: str) -> None:
    with pytest.raises(InputError, match="no such file or directory, and no name of a dataset on the hub"):
        ng.diagnose(name)
