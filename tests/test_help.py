"""Help pages: every option of every command has a text, and a terminal of 80 columns shows all of it."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from niels_gpt.cli import corpora, options
from niels_gpt.cli.main import COMMANDS, GROUPS, app, loaded
from tests.conftest import run_cli
from tests.test_ranges import commands, told

PAGES = [(), *(path for path, _ in commands())]


def walk() -> list[tuple[str, typer.models.ParameterInfo]]:
    """Every parameter of every command: its command and name, and what typer knows of it."""
    found = []
    for path, callback in commands():
        hints = get_type_hints(callback, include_extras=True)
        for name in inspect.signature(callback).parameters:
            found.append((f"{' '.join(path)} {name}", told(hints[name])))
    return found


PARAMETERS = walk()


def test_every_option_of_every_command_has_help() -> None:
    assert len(PARAMETERS) > 150
    assert [where for where, info in PARAMETERS if not (info.help or "").strip()] == []


def test_help_begins_with_a_capital_or_a_name_and_ends_with_a_stop() -> None:
    for where, info in PARAMETERS:
        text = re.sub(r"\s*\\\[default:.*\]$", "", info.help or "")
        assert text.endswith((".", "]")), f"{where}: {text}"


@pytest.mark.parametrize("path", PAGES, ids=" ".join)
def test_help_fits_80_columns(path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """No line is longer, and nothing is cut off."""
    for name, value in {"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb", "TERMINAL_WIDTH": "80"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 80)
    page = CliRunner().invoke(app, [*path, "--help"]).output
    assert "Usage:" in page
    assert [line for line in page.splitlines() if len(line.rstrip()) > 80] == []
    assert "…" not in page


@pytest.mark.parametrize("command", [("renderers",), ("renderers", "qwen3"), ("formats",), ("rules",)], ids=" ".join)
def test_lists_fit_80_columns(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    with pytest.raises(SystemExit):
        app(list(command))
    page = capsys.readouterr().out
    assert [line for line in page.splitlines() if len(line.rstrip()) > 80] == []
    assert "…" not in page


def test_commands_are_grouped() -> None:
    page = run_cli("--help").stdout
    panels = list(dict.fromkeys(entry.panel for entry in COMMANDS.values()))
    assert len(panels) == 5
    places = [page.index(panel) for panel in panels]
    assert places == sorted(places)
    assert "Exit codes: 0 done" in page


def test_one_concept_has_one_option_name() -> None:
    """The names that options had before are second names of the same option."""
    for where, info in PARAMETERS:
        declared = [each for each in (info.default, *(info.param_decls or ())) if str(each).startswith("--")]
        for earlier, name in {
            "--T": "--sequence-length",
            "--block-size": "--sequence-length",
            "--max-length": "--sequence-length",
            "--shard-tokens": "--shard-size",
            "--shuffle": "--seed",
            "--cache-dir": "--out",
        }.items():
            if earlier in declared:
                assert declared[0] == name, where
                assert f"Also as {declared[1]}" in (info.help or ""), where


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


def test_formats_list_inputs_exports_and_imports() -> None:
    listed = as_json("formats")
    inputs = ["messages", "sharegpt", "alpaca", "prompt_completion", "anthropic", "gemini", "harmony"]
    assert [entry["name"] for entry in listed["inputs"]] == inputs
    assert {"hf", "trl", "olmo"} <= {entry["name"] for entry in listed["exports"]}
    assert {"hf", "tokens"} <= {entry["name"] for entry in listed["imports"]}
    page = run_cli("formats").stdout
    assert "assistant_masks=" in page


def test_rules_are_those_of_the_doctor() -> None:
    assert as_json("rules") == as_json("doctor", "--rules")
    assert as_json("rules", "double-bos") == as_json("doctor", "--explain", "double-bos")


@pytest.mark.parametrize(
    ("line", "nearest"),
    [
        ("render chats.jsonl --tokenizer nowhere --renderer quen3", "did you mean 'qwen3'"),
        (
            "render chats.jsonl --tokenizer nowhere --renderer qwen3 --renderer-option enable_thinkin=1",
            "enable_thinking'",
        ),
        (
            "render chats.jsonl --tokenizer nowhere --renderer qwen3 --renderer-option enable_thinking",
            "one of preserve_all_thinking, preserve_thinking_between_tool_calls",
        ),
        ("render chats.jsonl --tokenizer nowhere --renderer-option enable_thinking", "`niels-gpt renderers NAME`"),
        ("export nowhere --to hf --out o --option assistant_masks", "options of hf: assistant_masks"),
        ("export nowhere --to nanogpt --out o --option x", "nanogpt has no options of its own"),
        ("render chats.jsonl --tokenizer nowhere --loss-on last_mesage", "did you mean 'last_message'"),
        ("show chats.jsonl --tokenizer nowhere --renderer quen3", "did you mean 'qwen3'"),
        ("show chats.jsonl 1 --tokenizr nowhere", "did you mean '--tokenizer'"),
        ("explore --tokenizer nowhere --renderer quen3 --no-browser", "did you mean 'qwen3'"),
        ("doctor chats.jsonl --tokenizer nowhere --renderer quen3", "did you mean 'qwen3'"),
        ("doctor chats.jsonl --tokenizer nowhere --format sharegtp", "did you mean 'sharegpt'"),
        ("episodes build chats.jsonl --out o --tokenizer nowhere --renderer quen3", "did you mean 'qwen3'"),
        ("episodes build chats.jsonl --out o --tokenizer nowhere --loss-on last_mesage", "did you mean 'last_message'"),
        ("cache build-sft chats.jsonl --out o --tokenizer nowhere --renderer quen3", "did you mean 'qwen3'"),
        ("cache build-sft chats.jsonl --out o --tokenizer nowhere --format alpca", "did you mean 'alpaca'"),
        ("export nowhere --out o --to trll", "did you mean 'trl'"),
        ("export nowhere --out o --to trl --too-long taill", "did you mean 'tail'"),
        ("episodes pack nowhere --out o --too-long taill", "did you mean 'tail'"),
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


def test_groups_are_the_commands_that_have_commands() -> None:
    assert tuple(name for name in COMMANDS if hasattr(loaded(name), "list_commands")) == GROUPS


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("show x --split tain", "--split is 'tain'; expected train or val; did you mean 'train'? (see "),
        ("import x --from hf --out o --token-dtype unit16", "expected uint16 or uint32; did you mean 'uint16'? (see "),
        ("tokenizer train x --model-type bpee", "--model-type is 'bpee'; expected unigram or bpe; did you mean 'bpe'?"),
        ("cache build-sft x --out o --seed three", "--seed is 'three'; expected a whole number (see "),
        ("cache build-sft x --out o --val-frac few", "--val-frac is 'few'; expected a number (see "),
        ("show chats.jsonl first", "NUMBER is 'first'; expected a whole number (see "),
        (
            "demo extra",
            "found the extra argument 'extra'; niels-gpt demo takes options only (see ",
        ),
        ("cache info a b", "found the extra argument 'b'; niels-gpt cache info takes only CACHE (see "),
        ("rendr", "no command 'rendr'; did you mean 'render'? (see niels-gpt --help)"),
        ("cache inf", "no command 'inf'; did you mean 'info'? (see niels-gpt cache --help)"),
        ("build-all --seed 1", "no command 'build-all'; did you mean 'cache build-all'? (see niels-gpt --help)"),
        ("verify x", "did you mean 'cache verify' or 'episodes verify' or 'preferences verify' or 'rollouts verify'?"),
        ("xyzzy", "no command 'xyzzy'; expected one of demo, tokenizer, cache, "),
        ("cache build-sft x --out o --sed 3", "no option --sed; did you mean '--seed'? (see "),
        ("--versio", "no option --versio; did you mean '--version'? (see "),
        ("cache --hlep", "no option --hlep; did you mean '--help'? (see "),
        ("export x --to", "--to has no value; expected one after it (see "),
        ("export x", "--to is missing; expected hf, trl, "),
        ("export", "DATASET is missing; expected a cache, episodes or preferences (see "),
        ("episodes config", "FILE is missing; name an XML file to check"),
    ],
)
def test_what_typer_refuses_is_one_line_of_ours(line: str, message: str) -> None:
    from niels_gpt.errors import UsageError

    with pytest.raises(UsageError) as refused:
        app(line.split(), prog_name="niels-gpt")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.exit_code == 2


def test_a_refusal_is_printed_without_a_usage_page() -> None:
    done = run_cli("show", "x", "--split", "tain")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: --split is 'tain'; ")
    assert done.stderr.count("\n") == 1


def test_a_group_without_a_command_still_prints_its_help() -> None:
    done = run_cli("cache")
    assert done.returncode == 2
    assert "Usage:" in done.stdout + done.stderr
    assert "build-sft" in done.stdout + done.stderr


@pytest.mark.parametrize(
    "line",
    [
        *("cache info nowhere", "cache verify nowhere", "episodes info nowhere", "episodes verify nowhere"),
        *("show nowhere", "show nowhere --packed --T 8", "episodes show nowhere", "export nowhere --to hf --out o"),
        *("episodes pack nowhere --out o --sequence-length 8", "rollouts info nowhere", "rollouts show nowhere 0"),
    ],
)
def test_a_dataset_that_is_not_there_is_answered_alike(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from niels_gpt.errors import CacheError

    monkeypatch.chdir(tmp_path)
    with pytest.raises(CacheError) as missing:
        app(line.split(), standalone_mode=False)
    message = str(missing.value)
    assert message.startswith("nowhere: no such directory; expected ")
    assert message.endswith(f"Check the path (it is relative to {tmp_path}), or run the build")


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
