"""`chat_template_kwargs` of a row or a call: options of the family or variables of the template for it alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
import niels_gpt as ng
from niels_gpt.builds.conversation_encoders import as_encoder
from niels_gpt.datasets import open_dataset
from niels_gpt.episodes.build import build_episodes
from niels_gpt.errors import DataError, MessageError
from niels_gpt.explorer.chat_rows import ChatRows
from niels_gpt.explorer.renderer_list import RendererChoice, RendererList
from niels_gpt.inputs.opened import open_input
from niels_gpt.preferences import build_preferences
from niels_gpt.renderers.base import (
    RendererPool,
    build_training_sample,
    build_training_samples,
    build_trajectory_step,
)
from niels_gpt.sources.chat_files import chat_files
from niels_gpt.sources.preference_files import preference_files
from niels_gpt.store.schema import COMPLETION
from tests.conftest import run_cli
from tests.renderers.small import CHATML, assistant, family, made, user
from tests.renderers.test_choices import manifest_of
from tests.renderers.tiny_families import folder_of

CHAT = [user("a"), assistant("b")]
NAMED = "{% if persona is defined %}{{ persona }}{% endif %}" + CHATML
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("qwen3", {"enable_thinking": False}),
    ("kimi-k2.5", {"thinking": False}),
    ("gpt-oss", {"reasoning_effort": "high"}),
    ("llama-3", {"date_string": "1 May 2031"}),
]


@pytest.mark.parametrize(("name", "kwargs"), OPTIONS)
def test_every_door_takes_them(name: str, kwargs: dict[str, Any]) -> None:
    plain, set_ = family(name), family(name, **kwargs)
    pool = RendererPool(lambda: plain, 2)
    given: dict[str, Any] = {"chat_template_kwargs": kwargs}
    for gen in (False, True):
        wanted = set_.render(CHAT, add_generation_prompt=gen)
        assert pool.render(CHAT, add_generation_prompt=gen, **given) == wanted
        assert ng.render(CHAT, plain, add_generation_prompt=gen, **given) == wanted
        for renderer in (plain, pool):
            assert renderer.render_ids(CHAT, add_generation_prompt=gen, **given) == wanted.token_ids
    for renderer in (plain, pool):
        assert build_training_sample(renderer, CHAT, **given) == build_training_sample(set_, CHAT)
        assert build_training_samples(renderer, CHAT, **given) == build_training_samples(set_, CHAT)
        step = build_trajectory_step(renderer, CHAT[:1], CHAT[1:], **given)
        assert step == build_trajectory_step(set_, CHAT[:1], CHAT[1:])


@pytest.mark.parametrize(
    ("name", "kwargs", "said"),
    [
        ("qwen3", {"enable_thnking": False}, "no option 'enable_thnking'; expected one of .*enable_thinking"),
        ("qwen3", {"enable_thinking": "perhaps"}, "enable_thinking is 'perhaps'"),
        ("qwen3", {"name": "llama-3"}, "cannot have 'name'"),
        (
            "qwen3",
            {"special_tokens_in_content": "parse"},
            "cannot have 'special_tokens_in_content': it would let a row",
        ),
        ("qwen3", {"on_unwritten": "drop"}, "cannot have 'on_unwritten': it decides which rows are refused"),
        ("llama-3", {"enable_thinking": False}, "no option 'enable_thinking'; expected one of .*date_string"),
        ("template", {"personna": "x"}, "'personna', which the chat template does not read; expected some of persona"),
        ("template", {"messages": []}, "'messages', which the chat template does not read"),
    ],
)
def test_unknown_ones_are_refused_with_the_known(name: str, kwargs: dict[str, Any], said: str) -> None:
    renderer = made(NAMED) if name == "template" else family(name)
    with pytest.raises(MessageError, match=said) as caught:
        renderer.render(CHAT, chat_template_kwargs=kwargs)
    assert caught.value.reason == "unknown_option"


@pytest.mark.parametrize(("as_text", "samples"), [(False, "per-conversation"), (True, "auto")])
def test_rows_of_files_have_their_own(tmp_path: Path, as_text: bool, samples: Any) -> None:
    kwargs: Any = {"reasoning_effort": "high", "model_identity": None}
    column = json.dumps(kwargs) if as_text else kwargs
    rows = [{"messages": CHAT}, {"messages": CHAT, "chat_template_kwargs": column}, {"messages": CHAT}]
    chats = tmp_path / "chats.jsonl"
    chats.write_text("".join(json.dumps(row) + "\n" for row in rows))
    plain, high = family("gpt-oss"), family("gpt-oss", reasoning_effort="high")
    build_episodes(chat_files([chats]), tmp_path / "e", encoder=as_encoder(plain, samples=samples), val_frac=0)
    expected = [one.render(CHAT).token_ids for one in (plain, high, plain)]
    stored = (tmp_path / "e" / "train" / "tokens.bin").read_bytes()
    manifest = manifest_of(tmp_path / "e")
    assert "unread" not in manifest or "row.chat_template_kwargs" not in manifest["unread"]
    size = len(stored) // sum(map(len, expected))
    made_ = [int.from_bytes(stored[at : at + size], "little") for at in range(0, len(stored), size)]
    assert sorted(made_) == sorted(token for ids in expected for token in ids)


EFFORTS = [{}, {"chat_template_kwargs": {"reasoning_effort": "high"}}, {}]


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_rows_of_preferences_have_their_own(tmp_path: Path) -> None:
    sides = {"prompt": "a", "chosen": "b", "rejected": "c"}
    rows = written(tmp_path / "pairs.jsonl", [sides | more for more in EFFORTS])
    plain, high = family("gpt-oss"), family("gpt-oss", reasoning_effort="high")
    build_preferences(preference_files([rows]), tmp_path / "p", encoder=plain, val_frac=0)
    stored = open_dataset(tmp_path / "p").split("train")
    records = np.fromfile(tmp_path / "p" / "train" / "completions.bin", COMPLETION)
    for number, renderer in enumerate([plain, plain, high, high, plain, plain]):
        answer = assistant("c" if number % 2 else "b")
        assert stored.rows(np.array([number])).ids.tolist() == renderer.render_ids([user("a"), answer])
        assert records["prompt_length"][number] == len(renderer.render_ids([user("a")], add_generation_prompt=True))
    assert "generation_prompt_differs" not in manifest_of(tmp_path / "p").get("changed", {})
    written(rows, [sides | {"chat_template_kwargs": {"think": False}}])
    with pytest.raises(DataError, match=r"pairs\.jsonl:1, chosen: chat_template_kwargs: .*no option 'think'"):
        build_preferences(preference_files([rows]), tmp_path / "q", encoder=plain, val_frac=0)


def test_the_doctor_the_explorer_and_exports_take_them(tmp_path: Path) -> None:
    given = [{"messages": CHAT} | more for more in EFFORTS]
    rows = written(tmp_path / "rows.jsonl", given)
    plain, high = family("gpt-oss"), family("gpt-oss", reasoning_effort="high")
    ids = [one.render_ids(CHAT) for one in (plain, high, plain)]
    report = ng.diagnose(rows, renderer=plain)
    assert report.tokens == sum(map(len, ids))
    assert ng.tokenize(plain)(given)["input_ids"][1].tolist() == ids[1]
    folder = str(folder_of("gpt-oss"))
    page = ChatRows(open_input(rows), listed := RendererList([folder]))
    page.lines.wait()
    choice = RendererChoice("gpt-oss", next(iter(listed.tokenizers)))
    (shown,) = page.sizes("all", [1], choice)
    page.close()
    assert shown[0] == len(ids[1])
    printed = run_cli("show", rows, 1, "--tokenizer", folder_of("gpt-oss"), "--renderer", "gpt-oss", "--json")
    assert len(json.loads(printed.stdout)["tokens"]) == len(ids[1])
    written(rows, [given[0], {"messages": CHAT, "chat_template_kwargs": {"think": False}}])
    (found,) = (one for one in ng.diagnose(rows, renderer=plain).findings if one.rule == "template-raises")
    assert (found.evidence[0].row, "no option 'think'" in found.evidence[0].note) == (1, True)


def test_a_row_with_an_unknown_option_is_a_bad_row(tmp_path: Path) -> None:
    chats = tmp_path / "chats.jsonl"
    rows = [{"messages": CHAT}, {"messages": CHAT, "chat_template_kwargs": {"think": False}}]
    chats.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = (chats, "--tokenizer", folder_of("qwen3"), "--renderer", "qwen3", "--val-frac", 0, "--out", tmp_path / "e")
    refused = run_cli("build", *given)
    assert refused.returncode == 3
    assert f"{chats}:2: chat_template_kwargs: renderer qwen3: no option 'think'" in " ".join(refused.stderr.split())
