"""Tokenizers on the hub, against a real server on 127.0.0.1 that stands in for it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from niels_gpt.errors import EXTRA_OF_LIBRARY, MissingExtra
from niels_gpt.tokenizer.hub import TRUSTED_REVISIONS
from tests.conftest import run_python
from tests.hub import Fault, Files, Repository
from tests.tokenizer import tiny
from tests.tokenizer.hub import ModelHub, PinnedRepository, code_files

TRUSTED = "moonshotai/Kimi-K2-Instruct"
GONE = "moonshotai/Kimi-K2.6"
ASK = """
import json, sys, warnings
from niels_gpt.errors import NielsError
from niels_gpt.tokenizer.hub import load_hf_tokenizer
from niels_gpt.tokenizer.load import open_encoder
warnings.simplefilter("error")
for name in sys.argv[1:]:
    try:
        tokenizer = load_hf_tokenizer(name)
        told = {"class": type(tokenizer).__name__, "name": tokenizer.name_or_path, "template": tokenizer.chat_template}
        if told["class"] != "Own":
            encoder = open_encoder(name)
            told |= {"stops": encoder.parts.generate_stops}
            told |= {"encoder": encoder.name, "ids": encoder.encode_pieces(["<|im_start|>", "hi"], [1, 0])[0].tolist()}
        told["text"] = tokenizer.encode("abc", add_special_tokens=False)
    except NielsError as error:
        told = {"error": type(error).__name__, "message": str(error)}
    print("told", json.dumps(told))
"""


@dataclass(frozen=True)
class World:
    """What a process was told about each name by a hub, and what it asked."""

    hub: ModelHub
    home: Path
    marker: Path
    told: dict[str, dict[str, Any]]


def ask(hub: ModelHub, home: Path, *names: str, cwd: Path | None = None, **environment: str) -> dict[str, Any]:
    variables = hub.environment(home, longest_sleep=0.02, **environment)
    done = run_python("-c", ASK, *names, environment=variables, cwd=cwd)
    lines = [line.removeprefix("told ") for line in done.stdout.splitlines() if line.startswith("told ")]
    assert len(lines) == len(names), done.stdout + done.stderr
    return dict(zip(names, map(json.loads, lines), strict=True))


def model_files(folder: Path, **config: Any) -> Files:
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": tiny.END, "chat_template": "T"} | config
    tiny.save(tiny.byte_level(), folder, **told)
    return {path.name: path.read_bytes() for path in folder.iterdir()} | {"model.safetensors": b"weights" * 1000}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One process, to which a hub with all kinds of repositories is up."""
    base = tmp_path_factory.mktemp("hub")
    bad, trusted = base / "untrusted code ran", base / "trusted code ran"
    files = model_files(base / "files") | {"generation_config.json": b'{"eos_token_id": 3}'}
    newer = {**code_files(bad), "tokenizer_config.json": b"{}"}
    repositories = {
        "me/tiny": Repository(files),
        "me/code": Repository(code_files(bad)),
        # The name of a trusted model with a letter more is another name.
        TRUSTED + "-x": Repository(code_files(bad)),
        TRUSTED: PinnedRepository(newer, history=[code_files(trusted)], sha=TRUSTED_REVISIONS[TRUSTED]),
        GONE: Repository(code_files(bad)),
        "me/empty": Repository({"README.md": b"nothing"}),
        "me/broken": Repository({**files, "tokenizer.json": b'{"model": '}),
        "me/config": Repository({**files, "tokenizer_config.json": b"{"}),
        "me/gated": Repository(files),
        "me/flaky": Repository(files),
    }
    with ModelHub(repositories) as hub:
        hub.faults.append(Fault("GET */me/gated/resolve/*", status=403, headers={"X-Error-Code": "GatedRepo"}))
        hub.faults.append(Fault("HEAD */me/gated/resolve/*", status=403, headers={"X-Error-Code": "GatedRepo"}))
        hub.faults.append(Fault("* */me/flaky/resolve/*/tokenizer_config.json", status=500))
        told = ask(hub, base / "home", *repositories, "me/absent", "not//a name", "tiny")
        assert (trusted.exists(), trusted.read_text()) == (True, "ran")
        yield World(hub, base / "home", bad, told)


def test_a_tokenizer_is_loaded_and_keeps_its_name(world: World) -> None:
    told, official = world.told["me/tiny"], tiny.cached(tiny.byte_level)
    assert (told["name"], told["encoder"], told["template"]) == ("me/tiny", "me/tiny", "T")
    assert told["ids"] == [official.token_to_id(tiny.START), *official.encode("hi").ids]
    assert told["text"] == official.encode("abc").ids
    assert told["stops"] == [3]
    assert not [path for path in world.hub.paths if "safetensors" in path]


@pytest.mark.parametrize("name", ["me/code", TRUSTED + "-x"])
def test_code_under_another_name_never_runs(world: World, name: str) -> None:
    assert world.told[name]["error"] == "TokenizerError"
    assert "Python code of its own, which is not run" in world.told[name]["message"]
    assert not world.marker.exists()
    assert not [path for path in world.hub.paths if path.startswith(f"/{name}/") and path.endswith(".py")]


def test_code_of_a_trusted_name_runs_at_the_pinned_commit(world: World) -> None:
    sha = TRUSTED_REVISIONS[TRUSTED]
    told = world.told[TRUSTED]
    assert (told["class"], told["name"], told["text"]) == ("Own", TRUSTED, [1, 2, 3])
    asked = [path for path in world.hub.paths if path.startswith((f"/{TRUSTED}/", f"/api/models/{TRUSTED}/"))]
    assert asked
    assert all(sha in path for path in asked)
    assert f"/{TRUSTED}/resolve/{sha}/own_code.py" in asked


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        (GONE, "SourceError", "the hub no longer has commit 2755962d07cb42aa2d988a35bcb65cd4a9c2de82"),
        ("me/absent", "SourceError", "found no local directory and no repository on the hub"),
        ("me/gated", "SourceError", "accept them at https://huggingface.co/me/gated"),
        ("me/flaky", "SourceError", "cannot be reached or broke off"),
        ("me/empty", "TokenizerError", "transformers cannot load a tokenizer from it"),
        ("me/broken", "TokenizerError", "transformers cannot load a tokenizer from it"),
        ("me/config", "TokenizerError", "transformers cannot load a tokenizer from it"),
        ("not//a name", "TokenizerError", "neither a local directory nor a name on the hub"),
        ("tiny", "SourceError", "no repository on the hub"),
    ],
)
def test_what_the_hub_refuses_has_a_way_out(world: World, name: str, error: str, message: str) -> None:
    assert world.told[name]["error"] == error, world.told[name]
    assert message in world.told[name]["message"]
    assert "\n" not in world.told[name]["message"]


def test_a_directory_with_a_trusted_name_is_not_that_model(world: World, tmp_path: Path) -> None:
    marker, folder = tmp_path / "ran", tmp_path / TRUSTED
    folder.mkdir(parents=True)
    for name, data in code_files(marker).items():
        (folder / name).write_bytes(data)
    told = ask(world.hub, world.home, TRUSTED, cwd=tmp_path)[TRUSTED]
    assert "Python code of its own" in told["message"]
    assert not marker.exists()


def test_without_a_connection_the_cache_serves(world: World, tmp_path: Path) -> None:
    silent = ModelHub({})
    silent.start()
    silent.stop()
    for environment in ({}, {"HF_HUB_OFFLINE": "1"}):
        told = ask(silent, world.home, "me/tiny", "me/absent", **environment)
        assert told["me/tiny"] == world.told["me/tiny"]
        assert told["me/absent"]["error"] == "SourceError"
        assert "the hub cannot be reached" in told["me/absent"]["message"]
        assert "HF_ENDPOINT" in told["me/absent"]["message"]


OPTIONS = ["--tokenizer", "me/chat-1.5", "--val-frac", "0", "--out", "built"]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_builds_take_a_name_on_the_hub_without_a_renderer(tmp_path: Path) -> None:
    """As their help says; a name that is no directory was taken for that of a SentencePiece model."""
    row = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "model").mkdir()
    hub = ModelHub({"me/chat-1.5": Repository(model_files(tmp_path / "model", chat_template=CHATML))})
    with hub:
        environment = hub.environment(tmp_path / "home", longest_sleep=0.02)
        line = ["-m", "niels_gpt", "build", "rows.jsonl", *OPTIONS]
        done = run_python(*line, environment=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "built is complete" in done.stdout


def test_transformers_is_optional(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from niels_gpt.tokenizer.hub import load_hf_tokenizer

    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for name in (str(tmp_path), "me/tiny"):
        with pytest.raises(MissingExtra, match=r"needs transformers.*pip install 'niels-gpt\[hf\]'"):
            load_hf_tokenizer(name)
    assert EXTRA_OF_LIBRARY["transformers"] == "hf"
