"""`import niels_gpt as ng`: its names, what importing it costs, and each function on real files."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import niels_gpt as ng
from niels_gpt.errors import CacheError, InputError, TokenizerError, UsageError
from niels_gpt.renderers.families.qwen3 import Qwen3Renderer
from niels_gpt.renderers.template.renderer import DefaultRenderer
from tests.conftest import run_cli
from tests.renderers.small import CHATML, assistant, user
from tests.renderers.tiny_families import folder_of
from tests.test_cache_determinism import digests

NAMES = [
    "LossOn",
    "build",
    "check_serving",
    "convert",
    "diagnose",
    "explore",
    "loader",
    "open",
    "render",
    "renderer",
    "tokenize",
]
CHATS = [[user(f"question {i}"), assistant(f"answer {i} " * (i + 1))] for i in range(40)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Qwen's tiny tokenizer with a chat template of its own."""
    folder = shutil.copytree(folder_of("qwen3"), tmp_path_factory.mktemp("tokenizer") / "qwen3")  # others share it
    (folder / "chat_template.jinja").write_text(CHATML)
    return folder


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("chats") / "chats.jsonl"
    path.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in CHATS))
    return path


@pytest.fixture(scope="module")
def episodes(tokenizer: Path, chats: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("built") / "episodes"
    ng.build(chats, out, tokenizer, renderer="qwen3", val_frac=0.0)
    return out


def test_the_public_names_are_exactly_these() -> None:
    assert ng.__all__ == NAMES
    assert set(NAMES) <= set(dir(ng))
    assert all(getattr(ng, name) is not None for name in NAMES)
    with pytest.raises(AttributeError, match="no attribute 'rendr'"):
        ng.rendr  # noqa: B018


def test_importing_loads_nothing_but_the_package_itself() -> None:
    code = (
        "import sys; before = set(sys.modules); import niels_gpt as ng; assert ng.__all__ and dir(ng)\n"
        "print(*sorted(m for m in set(sys.modules) - before if '.' not in m or m.startswith('niels_gpt')))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"numpy", "torch", "pydantic", "rich", "typer", "transformers", "tokenizers", "gigatoken", "sentencepiece"}
    assert not heavy & set(loaded)
    assert {name for name in loaded if name.startswith("niels_gpt")} == {
        "niels_gpt",
        "niels_gpt.lazy",
        "niels_gpt.version",
    }


def test_renderer_is_the_family_with_options_or_the_template(tokenizer: Path) -> None:
    assert isinstance(ng.renderer(tokenizer), DefaultRenderer)
    off = ng.renderer(tokenizer, "qwen3", enable_thinking=False)
    assert isinstance(off, Qwen3Renderer)
    assert off.config.enable_thinking is False
    with pytest.raises(UsageError, match="enable_thinkin"):
        ng.renderer(tokenizer, "qwen3", enable_thinkin=False)


def test_render_takes_a_tokenizer_or_a_renderer(tokenizer: Path) -> None:
    made = ng.renderer(tokenizer, "qwen3")
    rendered = ng.render(CHATS[0], made)
    assert rendered == made.render(CHATS[0])
    assert ng.render(CHATS[0], tokenizer).token_ids == ng.renderer(tokenizer).render_ids(CHATS[0])
    assert rendered.labels("last_message")[-1] == -100  # the newline after the stop
    with pytest.raises(UsageError, match="options are set where a renderer is made"):
        ng.render(CHATS[0], made, enable_thinking=False)


def test_build_open_and_loader_hold_the_same_tokens(episodes: Path, tokenizer: Path) -> None:
    renderer = ng.renderer(tokenizer, "qwen3")
    expected = sorted(tuple(renderer.render_ids(messages)) for messages in CHATS)
    train = ng.open(episodes).splits["train"]
    assert sorted(tuple(train.row(i).ids.tolist()) for i in range(len(train))) == expected
    batches = list(ng.loader(episodes, pad_token_id=0, batch_size=4, sequence_length=511, shuffle=False))
    assert len(batches) == 10
    rows = [row for batch in batches for row in zip(batch.x.tolist(), batch.mask.tolist(), strict=True)]
    seen = sorted(tuple(ids[: len(ids)]) for ids, _ in rows)
    assert [ids[: len(wanted) - 1] for ids, wanted in zip(seen, expected, strict=True)] == [
        wanted[:-1] for wanted in expected
    ]
    again = ng.loader(
        episodes, pad_token_id=0, batch_size=4, sequence_length=511, shuffle=False, packing=True, epochs=None
    )
    assert next(iter(again)).x.shape == (4, 511)


def test_rows_are_filled_with_the_stop_that_a_renderer_recorded(episodes: Path, tokenizer: Path) -> None:
    recorded = ng.open(episodes).manifest["special_token_ids"]["eot"]
    assert recorded in ng.renderer(tokenizer, "qwen3").get_stop_token_ids()
    batch = next(iter(ng.loader(episodes, batch_size=4, sequence_length=511, shuffle=False)))
    assert (batch.x[:, -1] == recorded).all()


def test_convert_goes_out_and_comes_back(episodes: Path, tmp_path: Path) -> None:
    ng.convert(episodes, tmp_path / "out", to="hf")
    ng.convert(tmp_path / "out", tmp_path / "back", source_format="hf")
    there, back = ng.open(episodes).splits["train"], ng.open(tmp_path / "back").splits["train"]
    assert [there.row(i).ids.tolist() for i in range(len(there))] == [
        back.row(i).ids.tolist() for i in range(len(back))
    ]
    for arguments in ({}, {"to": "hf", "source_format": "hf"}):
        with pytest.raises(UsageError, match="expected one of both"):
            ng.convert(episodes, tmp_path / "neither", **arguments)


def test_what_is_no_dataset_is_named(tmp_path: Path, chats: Path) -> None:
    with pytest.raises(CacheError, match=str(tmp_path)):
        ng.open(tmp_path)
    with pytest.raises(UsageError, match=r"a file; expected a directory .* ng.build"):
        ng.open(chats)
    with pytest.raises(TokenizerError, match="the tokenizer is an empty text"):
        ng.renderer("")
    with pytest.raises(UsageError, match="the input is an empty text"):
        ng.diagnose("")
    with pytest.raises(InputError, match="no such file or directory, and no name of a dataset on the hub"):
        ng.diagnose("NOTHING/")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"loss_on": "last"}, "the loss preset is 'last'; expected one of"),
        ({"inputs": []}, "inputs is .*; expected a file of conversations"),
    ],
)
def test_wrong_arguments_of_build_are_named(
    chats: Path, tokenizer: Path, tmp_path: Path, options: dict[str, Any], expected: str
) -> None:
    right: dict[str, Any] = {"inputs": chats, "out": tmp_path / "out", "tokenizer": tokenizer, "renderer": "qwen3"}
    with pytest.raises(UsageError, match=expected):
        ng.build(**right | options)
    with pytest.raises(TypeError, match="val_fraq"):
        ng.build(**right, val_fraq=0.1)
    assert not (tmp_path / "out").exists()


def test_a_preset_of_the_loss_may_be_named_everywhere(chats: Path, tokenizer: Path, tmp_path: Path) -> None:
    renderer = ng.renderer(tokenizer, "qwen3")
    rows = {"messages": [[*CHATS[0], *CHATS[1]]]}
    named, value, default = (
        [labels.tolist() for labels in ng.tokenize(renderer, loss_on=on)(rows)["labels"]]
        for on in ("last_message", ng.LossOn("last_message"), None)
    )
    assert named == value != default
    built = ng.build(chats, tmp_path / "out", renderer, val_frac=0.0, loss_on="last_message")
    assert built.manifest["loss_on"]["preset"] == "last_message"
    with pytest.raises(UsageError, match="the loss preset is 'last'"):
        ng.tokenize(renderer, loss_on="last")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="the loss preset is 5"):
        ng.diagnose(chats, renderer=renderer, loss_on=5)


@pytest.mark.slow
def test_a_users_strict_mypy_knows_the_types(tmp_path: Path) -> None:
    """The type of `ng.renderer(...)` was not known: outside of the package, mypy did not take `A | B` for an alias."""
    pytest.importorskip("mypy")
    script = tmp_path / "script.py"
    script.write_text(
        'import niels_gpt as ng\n\nrenderer = ng.renderer("m")\n'
        'messages = [{"role": "user", "content": "hi"}]\n'  # list[dict[str, str]]
        "ids: list[int] = renderer.render(messages).token_ids + ng.render(messages, renderer).token_ids\n"
        "content: str | None = renderer.parse_response(ids).content\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "mypy"), str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("kind", "rows", "found"),
    [
        (None, {"messages": CHATS[0]}, "episodes"),
        ("sft", {"messages": CHATS[0]}, "sft"),
        (None, {"prompt": "a", "chosen": "b", "rejected": "c"}, "preferences"),
        (None, {"text": "some words of a text"}, "pretrain"),
    ],
)
def test_the_command_builds_what_the_function_builds(
    tokenizer_dir: Path, tmp_path: Path, kind: Any, rows: dict[str, Any], found: str
) -> None:
    """The same bytes, of the kind that the rows say or the caller names."""
    (tmp_path / "rows.jsonl").write_text((json.dumps(rows) + "\n") * 40)
    ng.build(tmp_path / "rows.jsonl", tmp_path / "function", tokenizer_dir, kind=kind)
    named = ["--kind", kind] if kind else []
    done = run_cli("build", "rows.jsonl", *named, "--tokenizer", tokenizer_dir, "--out", "command", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert digests(tmp_path / "function") == digests(tmp_path / "command")
    assert json.loads(run_cli("info", "command", "--json", cwd=tmp_path).stdout)["kind"] == found


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kind": "episode"}, "did you mean 'episodes'"),
        ({"kind": "sft", "samples": "auto"}, "samples is not for datasets of kind sft"),
        ({"kind": "pretrain", "renderer": "qwen3"}, "are for conversations; leave them out"),
    ],
)
def test_what_a_kind_has_no_place_for(chats: Path, tokenizer: Path, tmp_path: Path, options: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ng.build(chats, tmp_path / "out", tokenizer, **options)


def test_a_chat_template_replaces_the_tokenizers(tokenizer: Path) -> None:
    """It was taken for a variable of the tokenizer's own template, without a word."""
    made = ng.renderer(tokenizer, chat_template="{{ messages[0].content }}")
    assert made.encoder.decode(made.render_ids([user("hi")])) == "hi"
    assert ng.render([user("hi")], tokenizer, chat_template="{{ messages[0].content }}").token_ids == made.render_ids(
        [user("hi")]
    )
    with pytest.raises(UsageError, match="renderer qwen3 writes by its own grammar; leave chat_template out"):
        ng.renderer(tokenizer, "qwen3", chat_template="x")
