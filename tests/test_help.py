"""Help pages, lists of names, and what a command line with a wrong name is answered."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import typer

from niels_gpt.cli import corpora, options
from niels_gpt.cli.main import app
from tests.conftest import run_cli
from tests.test_ranges import commands, told


def walk() -> list[tuple[str, typer.models.ParameterInfo]]:
    """Every parameter of every command: its command and name, and what typer knows of it."""
    found = []
    for path, callback in commands():
        hints = get_type_hints(callback, include_extras=True)
        for name in inspect.signature(callback).parameters:
            if hints[name] is typer.Context:
                continue
            found.append((f"{' '.join(path)} {name}", told(hints[name])))
    return found


PARAMETERS = walk()


def test_every_option_of_every_command_has_help() -> None:
    assert len(PARAMETERS) > 150
    assert [where for where, info in PARAMETERS if not (info.help or "").strip()] == []


def test_lists_of_names_are_those_of_the_library() -> None:
    """They are repeated in the command line, because importing the library takes long."""
    from niels_gpt.cache.build_all import NAMES
    from niels_gpt.format.fitting import EPISODE_POLICIES
    from niels_gpt.renderers.loss import Preset

    assert get_args(Preset) == options.LOSS_PRESETS
    assert corpora.NAMES == NAMES
    assert options.TOO_LONG == EPISODE_POLICIES


def as_json(*command: object) -> Any:
    done = run_cli(*command, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_renderers_list_every_family_and_every_option() -> None:
    from niels_gpt.renderers.configs import config_from_name
    from niels_gpt.renderers.registry import FAMILIES, MODEL_RENDERER_MAP
    from niels_gpt.renderers.template.known import TEMPLATE_FAMILIES, TEMPLATE_MODELS

    listed = as_json("renderers")
    assert [entry["name"] for entry in listed] == [*FAMILIES, "template", *TEMPLATE_FAMILIES]
    assert {model for entry in listed for model in entry["models"]} == {*MODEL_RENDERER_MAP, *TEMPLATE_MODELS}
    assert [entry["served"] for entry in listed] == ["grammar"] * len(FAMILIES) + ["template"] * (
        1 + len(TEMPLATE_FAMILIES)
    )
    assert as_json("renderers", "gemma-4") == next(entry for entry in listed if entry["name"] == "gemma-4")
    assert "calls 44 of 56" in run_cli("renderers", "gemma-4").stdout
    for entry in (entry for entry in listed if entry["name"] not in TEMPLATE_FAMILIES):
        fields = type(config_from_name(entry["name"])).model_fields
        assert {option["name"] for option in entry["options"]} == set(fields) - {"name"}
        for option in entry["options"]:
            assert option["help"], f"{entry['name']} {option['name']}: describe it under Attributes: of its config"
            assert option["type"]
    one = as_json("renderers", "qwen3")
    (thinking,) = [option for option in one["options"] if option["name"] == "enable_thinking"]
    assert (thinking["type"], thinking["default"]) == ("true or false", True)
    assert "Qwen/Qwen3-8B" in run_cli("renderers", "qwen3").stdout
    refused = run_cli("renderers", "qwen33")
    assert (refused.returncode, "did you mean 'qwen3" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("line", "nearest"),
    [
        ("render chats.jsonl --tokenizer nowhere --renderer quen3", "did you mean 'qwen3'"),
        (
            "render chats.jsonl --tokenizer nowhere --renderer qwen3 --renderer-option enable_thinkin=1",
            "enable_thinking'",
        ),
        ("render chats.jsonl --tokenizer nowhere --renderer-option enable_thinking", "`niels-gpt renderers NAME`"),
        ("export nowhere --to hf --out o --option assistant_masks", "options of hf: assistant_masks"),
        ("export nowhere --to megatron --out o --option x", "megatron has no options of its own"),
        ("render chats.jsonl --tokenizer nowhere --loss-on last_mesage", "did you mean 'last_message'"),
        ("doctor chats.jsonl --tokenizer nowhere --format sharegtp", "did you mean 'sharegpt'"),
        ("export nowhere --out o --to trll", "did you mean 'trl'"),
        ("export nowhere --out o --to trl --too-long taill", "did you mean 'tail'"),
        ("import nowhere --out o --from megatorn", "did you mean 'megatron'"),
    ],
)
def test_a_wrong_name_is_answered_before_a_tokenizer_is_loaded(
    line: str, nearest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from niels_gpt.errors import UsageError

    monkeypatch.chdir(tmp_path)
    (tmp_path / "chats.jsonl").write_text('{"messages": [{"role": "user", "content": "hi"}]}\n')
    with pytest.raises(UsageError, match=re.escape(nearest)):
        app(line.split(), standalone_mode=False)
    assert [path.name for path in tmp_path.iterdir()] == ["chats.jsonl"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("show x --split tain", "'--split': Value error, 'tain' is not one of 'train', 'val'."),
        ("rendr", "No such command 'rendr'. Did you mean 'render'"),
        ("inf x", "No such command 'inf'. Did you mean 'info'?"),
        ("cache build-pretrain x", "No such command 'cache'. Did you mean 'build'?"),
        ("episodes verify x", "No such command 'episodes'. Did you mean 'verify'?"),
        ("build --kind sft x --out o --sed 3", "No such option: --sed (Possible options: --seed, --set)"),
        ("export x", "Missing option '--to'."),
        ("export", "Missing argument 'DATASET'."),
        ("rules a b", "(b)"),
    ],
)
@pytest.mark.parametrize("json_too", [False, True])
def test_what_typer_refuses_is_one_line(line: str, message: str, json_too: bool) -> None:
    done = run_cli(*line.split(), *(["--json"] if json_too else []))
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    if json_too:
        assert json.loads(done.stdout) == {"error": done.stderr[len("error: ") : -1], "exit_code": 2}
    else:
        assert done.stdout == ""


def test_a_group_without_a_command_still_prints_its_help() -> None:
    done = run_cli("tokenizer")
    assert done.returncode == 2
    assert "Usage:" in done.stdout + done.stderr
    assert "train" in done.stdout + done.stderr


def test_the_readers_of_python_answer_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import niels_gpt as ng
    from niels_gpt.cache.meta import read_meta
    from niels_gpt.errors import CacheError

    monkeypatch.chdir(tmp_path)
    for read in (
        lambda: ng.open("nowhere"),
        lambda: ng.loader("nowhere", batch_size=1, sequence_length=8),
        lambda: read_meta("nowhere/meta.json"),
    ):
        with pytest.raises(CacheError, match=r"^nowhere: no such directory; expected "):
            read()
