"""Caches and episodes built through a renderer hold exactly what the renderer renders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("tokenizers")
from niels_gpt.builds.conversation_encoders import as_encoder
from niels_gpt.builds.renderer_encoder import RendererEncoder
from niels_gpt.cache.build_cache import build_sft_cache
from niels_gpt.cache.sft_dataset import SFTExampleDataset
from niels_gpt.episodes.build import build_episodes
from niels_gpt.errors import DataError, MessageError
from niels_gpt.format.sft import serialize_chat_to_ids, sft_loss_mask_for_ids
from niels_gpt.renderers.base import build_training_sample
from niels_gpt.renderers.families.ngpt import NgptRenderer
from niels_gpt.samples import chats_file
from niels_gpt.sources.chat_files import chat_files
from niels_gpt.store.verify import verify_dataset
from niels_gpt.tokenizer import SentencePieceTokenizer
from tests.conftest import run_cli
from tests.renderers.small import assistant, call, family, result, user

TOOL_CHAT = [
    user("hello"),
    assistant("", tool_calls=[call("get"), call("set", 1)]),
    result("get"),
    result("set", 1, text="lazy dog"),
    assistant("hello world"),
]
CHATS = [
    TOOL_CHAT,
    [user("x"), assistant("y 🤖"), user("z"), assistant("fox", train=False)],
    [user("a"), assistant("b")],
]


def examples(folder: Path, split: str = "train", dtype: str = "<u4") -> list[tuple[list[int], list[bool]]]:
    ids = np.fromfile(folder / f"{split}_tokens.bin", dtype=dtype)
    mask = np.fromfile(folder / f"{split}_mask.bin", dtype=np.uint8).astype(bool)
    starts = np.load(folder / f"{split}_idx.npy")
    stops = [*starts[1:], len(ids)]
    return [(ids[a:b].tolist(), mask[a:b].tolist()) for a, b in zip(starts, stops, strict=True)]


@pytest.mark.parametrize("name", ["qwen3", "kimi-k2", "template"])
def test_a_cache_holds_what_the_renderer_renders(name: str, tmp_path: Path) -> None:
    renderer = family(name)
    chats = CHATS[1:] if name == "template" else CHATS
    build_sft_cache(chats, str(tmp_path / "c"), tokenizer=renderer, val_frac=0, seed=1, token_dtype="uint32")
    assert examples(tmp_path / "c") == [build_training_sample(renderer, chat) for chat in chats]
    assert list(verify_dataset(tmp_path / "c")) == []
    meta = json.loads((tmp_path / "c" / "meta.json").read_text())
    assert meta["mask_dtype"] == "uint8"
    assert meta["tokenizer_sha256"] == renderer.fingerprints["tokenizer_sha256"]
    stop = renderer.get_stop_token_ids()[0]
    paths = [str(tmp_path / "c" / f"train_{file}") for file in ("tokens.bin", "idx.npy")]
    dataset = SFTExampleDataset(*paths, T=400, device="cpu", eot_id=stop)
    _, _, targets = dataset.rows(np.arange(len(chats)))
    for row, (ids, mask) in zip(targets.tolist(), examples(tmp_path / "c"), strict=True):
        expected = [token if trained else -100 for token, trained in zip(ids, mask, strict=True)][1:]
        assert row == expected + [-100] * (400 - len(expected))
    x, _, masked = dataset.get_batch(B=4, generator=torch.Generator().manual_seed(0))
    assert x.shape == masked.shape == (4, 400)


@pytest.mark.parametrize("samples", ["per-conversation", "per-turn", "auto"])
def test_conversations_that_train_no_stop_are_counted(samples: str, tmp_path: Path) -> None:
    """GLM's answers end in the next turn's opener, which is not trained unless options say so."""
    chats = [*CHATS, [user("a"), assistant("b", train=False), user("c"), assistant("d")]]
    counted = {}
    for name, options in (
        ("glm-5", {}),
        ("glm-5", {"sampled_openers": True}),
        ("glm-5", {"sampled_openers": True, "final_stop": True}),
        ("qwen3", {}),
    ):
        out = tmp_path / f"{name} {len(counted)}"
        encoder = as_encoder(family(name, **options), samples=samples)
        build_episodes(chats, out, encoder=encoder, val_frac=0, seed=1)
        changed = json.loads((out / "episodes.json").read_text()).get("changed", {})
        counted[name, len(options)] = changed.get("no_trained_stop", 0)
    # With openers, answers before a question or a result end. The last turns of three conversations are trained: one of
    # these has a call, too, whose end is in another sample only where each turn has its own.
    openers = 3 if samples == "per-turn" else 2
    assert counted == {("glm-5", 0): 4, ("glm-5", 1): openers, ("glm-5", 2): 0, ("qwen3", 0): 0}


def test_the_house_format_and_document_000_agree(tokenizer: SentencePieceTokenizer, tmp_path: Path) -> None:
    """The family `ngpt`, `serialize_chat_to_ids` and both builds give the same ids and the same mask."""
    renderer = NgptRenderer(tokenizer)
    special = {f"{name}_id": token for name, token in tokenizer.special_token_ids().items()}
    chats = [
        [dict(message) for message in chat.messages]
        for chat in chat_files([chats_file()], None).iterate()
        if not isinstance(chat, Exception)  # all rows of the sample are good
    ][:40]
    chats.append([user("<|im_end|>\n  naïve ▁ 🤖 "), assistant("")])
    text = "you are a helpful assistant."
    for chat in chats:
        rendered = renderer.render(chat)
        ids = serialize_chat_to_ids({"messages": chat}, tokenizer=tokenizer, default_system_text=text)
        assert rendered.token_ids == ids
        assert rendered.sampled_mask == sft_loss_mask_for_ids(ids, **special)
    for name, made_by in (("sentinels", tokenizer), ("renderer", renderer)):
        build_sft_cache(chats, str(tmp_path / name), tokenizer=made_by, val_frac=0, seed=1)
        build_episodes(chats, tmp_path / f"{name}-episodes", encoder=made_by, val_frac=0)
    for file in ("train_tokens.bin", "train_idx.npy"):
        assert (tmp_path / "sentinels" / file).read_bytes() == (tmp_path / "renderer" / file).read_bytes()
    for file in ("tokens.bin", "mask.bin", "episodes.idx"):
        folders = [tmp_path / f"{name}-episodes" / "train" / file for name in ("sentinels", "renderer")]
        assert folders[0].read_bytes() == folders[1].read_bytes()


class OneByOne:
    """A renderer without `render_many`."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def render(self, messages: Any, *, tools: Any = None) -> Any:
        return self._inner.render(messages, tools=tools)


def test_bad_rows_are_left_out_and_the_others_are_as_they_would_be(tmp_path: Path) -> None:
    """One bad row sends its batch the slow way; the good rows come out the same."""
    renderer = family("qwen3")
    bad = [
        [{"role": "nobody", "content": "x"}],
        [user(), assistant(train=False)],
        [user(), result()],
        [user(), assistant(weight=-1)],
        [],
    ]
    rows = [CHATS[0], bad[0], bad[1], CHATS[1], bad[2], bad[3], CHATS[2], bad[4]]
    made = []
    for name, encoder in (("many", renderer), ("one", RendererEncoder(OneByOne(renderer)))):
        build_episodes(rows, tmp_path / name, encoder=encoder, val_frac=0, max_bad_rows=4)
        made.append([(tmp_path / name / "train" / file).read_bytes() for file in ("tokens.bin", "mask.bin")])
        rejected = [json.loads(line) for line in (tmp_path / name / "rejected.jsonl").read_text().splitlines()]
        assert sorted(line["reason"] for line in rejected) == sorted(
            ["unknown_role", "nothing_trained", "tool_without_call", "wrong_weight", "no_messages"]
        )
        assert [line["reason"] for line in rejected if line.get("expected")] == ["nothing_trained"]
        dropped = json.loads((tmp_path / name / "episodes.json").read_text())["dropped"]
        assert dropped["nothing_trained"] == 1  # the row says so, so it is counted and no fault
    build_episodes(CHATS, tmp_path / "good", encoder=renderer, val_frac=0)
    made.append([(tmp_path / "good" / "train" / file).read_bytes() for file in ("tokens.bin", "mask.bin")])
    assert made[0] == made[1] == made[2]
    with pytest.raises((DataError, MessageError), match="example 1: message 0: role is 'nobody'"):
        build_episodes(rows[:4], tmp_path / "refused", encoder=renderer, val_frac=0)


def test_command_line(tokenizer_dir: Path, tmp_path: Path) -> None:
    from tests.renderers.tiny_families import folder_of

    model = folder_of("qwen3")
    chats = tmp_path / "chats.jsonl"
    chats.write_text(json.dumps({"messages": TOOL_CHAT}) + "\n")
    built = run_cli(
        *("build", "--kind", "sft", chats, "--tokenizer", model, "--renderer", "qwen3", "--out", tmp_path / "c"),
        *("--val-frac", "0", "--tool-bodies", "get", "--loss-on", "last_message"),
    )
    assert built.returncode == 0, built.stderr
    shown = json.loads(run_cli("show", tmp_path / "c", 0, "--tokenizer", model, "--json").stdout)
    trained = "".join(token["target_text"] for token in shown["tokens"] if token["target_trained"])
    assert "the fox" in trained
    assert trained.endswith("hello world<|im_end|>")
    assert run_cli("info", tmp_path / "c").returncode == 0
    assert run_cli("verify", tmp_path / "c").returncode == 0
    rendered = run_cli("show", chats, "--tokenizer", model, "--renderer", "qwen3", "--loss-on", "last_message")
    assert "── 4 assistant ──" in rendered.stdout
    assert "sampled: the model's, not in the loss" in rendered.stdout
    told = json.loads(run_cli("show", chats, "--tokenizer", model, "--renderer", "qwen3", "--json").stdout)
    assert {token["role"] for token in told["tokens"]} == {"user", "assistant", "tool"}
    for arguments, said in (
        (("--renderer", "qwen4"), "did you mean 'qwen3'"),
        (("--renderer", "kimi-k2"), "expected a tokenizer of that family"),
        (("--renderer", "qwen3", "--date", "2026-01-01"), "its own grammar"),
        (("--renderer", "qwen3", "--loss-on", "last"), "loss preset"),
        ((), "--renderer NAME; see `niels-gpt renderers`"),
    ):
        refused = run_cli("show", chats, "--tokenizer", model, *arguments)
        assert refused.returncode in (2, 3), arguments
        assert said in refused.stderr
        assert "Traceback" not in refused.stderr
    plain = tmp_path / "plain.jsonl"
    plain.write_text(json.dumps({"messages": [user(), assistant()]}) + "\n")
    house = run_cli("show", plain, "--tokenizer", tokenizer_dir)
    assert "renderer ngpt" in house.stdout
    refused = run_cli(
        "build", "--kind", "sft", plain, "--tokenizer", tokenizer_dir, "--out", "x", "--loss-on", "last_message"
    )
    assert (refused.returncode, "loss_on is for renderers" in refused.stderr) == (2, True)
