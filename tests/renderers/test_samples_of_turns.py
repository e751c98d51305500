"""`--samples auto` and `per-turn`: every trained turn once, on the ids with which it was produced."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
import niels_gpt as ng
from niels_gpt.builds.conversation_encoders import as_encoder
from niels_gpt.builds.executor import LocalRunner, UnitExecutor
from niels_gpt.builds.renderer_encoder import Samples
from niels_gpt.episodes.build import build_episodes
from niels_gpt.episodes.rows import EpisodeReader, spans_of
from niels_gpt.messages import NOTHING_TRAINED, Conversation, normalise
from niels_gpt.recipes import build_recipe, read_recipe
from niels_gpt.renderers.base import LossOn, build_training_samples
from niels_gpt.renderers.protocol import as_produced
from niels_gpt.sources.chat_files import chat_files
from niels_gpt.sources.rejections import Rejections
from niels_gpt.store.split import IndexedSplit
from tests.conftest import run_cli
from tests.renderers.small import FAMILIES, Messages, assistant, conversation, counts, family, user, weight
from tests.renderers.tiny_families import folder_of

EVERY = [*FAMILIES, "template"]
Weighted = tuple[list[int], list[float]]


class OneByOne:
    """A renderer of another package, without `render_many`."""

    def __init__(self, renderer: Any) -> None:
        self.renderer, self.render = renderer, renderer.render

    def as_produced(self) -> OneByOne:
        return OneByOne(as_produced(self.renderer))


def chats_of(name: str, n: int, *, flags: float = 0.0) -> list[Messages]:
    rng = random.Random(n)
    chats = [conversation(rng, flags=flags) for _ in range(n)]
    if name == "template":  # it has no place for calls
        chats = [
            [message for message in chat if "tool_calls" not in message and message["role"] != "tool"] for chat in chats
        ]
    return chats


def encoded(
    renderer: Any, chats: list[Messages], samples: Samples, folder: Path, on: LossOn | None = None
) -> dict[int, list[Weighted]]:
    """The samples of each conversation that is not rejected, in the order of their last turns."""
    rows = [Conversation(normalise(chat), where=f"chat {n}", metadata={"n": n}) for n, chat in enumerate(chats)]
    found: dict[int, list[Weighted]] = {}
    rejections = Rejections(folder, "all")
    for batch in as_encoder(renderer, on, samples=samples).encode(rows, rejections):
        ends = np.cumsum(batch.lengths).tolist()
        for chat, a, b in zip(batch.conversations, [0, *ends], ends, strict=False):
            found.setdefault(chat.metadata["n"], []).append((batch.ids[a:b].tolist(), batch.weights[a:b].tolist()))
    rejections.abandon()
    assert set(rejections.dropped) <= {NOTHING_TRAINED}
    assert rejections.dropped.total() == len(chats) - len(found)
    return found


def turn_alone(renderer: Any, messages: Messages, turn: int) -> Weighted:
    """The sample of one turn, one token at a time: what was before it, and what the model said."""
    rendered = as_produced(renderer).render(messages[: turn + 1])
    ids = list(rendered.token_ids)
    own = weight(messages[turn])
    weights = [
        own if sampled and owner == turn else 0.0
        for owner, sampled in zip(rendered.message_indices, rendered.sampled_mask, strict=True)
    ]
    following = messages[turn + 1] if turn + 1 < len(messages) else assistant()
    if following["role"] != "assistant":  # its opener may be the stop (GLM)
        whole = renderer.render(messages)
        facts = zip(whole.token_ids, whole.message_indices, whole.sampled_mask, strict=True)
        opener = [token for token, owner, sampled in facts if sampled and owner == turn + 1]
        ids, weights = ids + opener, weights + [own] * len(opener)
    return ids, weights


@pytest.mark.parametrize("name", EVERY)
def test_per_turn_is_each_turn_alone(name: str, tmp_path: Path) -> None:
    renderer, chats = family(name), chats_of(name, 20, flags=0.2)
    found = encoded(renderer, chats, "per-turn", tmp_path)
    for number, chat in enumerate(chats):
        turns = [i for i, message in enumerate(chat) if message["role"] == "assistant" and weight(message) > 0]
        wanted = [turn_alone(renderer, chat, turn) for turn in turns]
        assert found.get(number, []) == [sample for sample in wanted if any(sample[1])]


@pytest.mark.parametrize("name", EVERY)
def test_auto_is_the_fewest_samples_and_trained_tokens_are_conserved(name: str, tmp_path: Path) -> None:
    renderer, chats = family(name), chats_of(name, 25)
    auto = encoded(renderer, chats, "auto", tmp_path)
    alone = encoded(renderer, chats, "per-turn", tmp_path)
    for number, chat in enumerate(chats):
        wanted = build_training_samples(renderer, chat)
        assert [(ids, [value > 0 for value in weights]) for ids, weights in auto[number]] == wanted
        trained = [sum(value > 0 for _, weights in each[number] for value in weights) for each in (auto, alone)]
        assert trained[0] == trained[1]
        assert len(auto[number]) <= len(alone[number])
        # What is trained in a sample of `auto` is what is trained in those of the turns, token by token.
        assert sorted(words(auto[number])) == sorted(words(alone[number]))


def words(samples: list[Weighted]) -> list[tuple[tuple[int, ...], int]]:
    """Each trained token with all ids before it."""
    return [(tuple(ids[:at]), ids[at]) for ids, weights in samples for at in range(len(ids)) if weights[at] > 0]


@pytest.mark.parametrize("preset", ["last_assistant_turn", "last_message"])
def test_only_turns_that_count_make_samples(preset: Any, tmp_path: Path) -> None:
    renderer, chats = family("qwen3"), chats_of("qwen3", 30)
    found = encoded(renderer, chats, "per-turn", tmp_path, LossOn(preset))
    for number, chat in enumerate(chats):
        turns = [i for i, one in enumerate(chat) if one["role"] == "assistant" and counts(chat, i, preset)]
        assert len(found[number]) == len(turns)


THINKING = [
    [
        user(f"question {n}"),
        assistant(f"answer {n}", reasoning_content="return x"),
        user("and then"),
        assistant("the fox", reasoning_content="the lazy dog"),
    ]
    for n in range(40)
]


def stored(folder: Path, split: str) -> list[tuple[list[int], list[float]]]:
    """The episodes as a loader reads them."""
    opened = IndexedSplit([folder], split)
    spans = spans_of(opened, None, np.arange(len(opened)), 200)
    reader = EpisodeReader(opened, 200, too_long="error", vocab_size=None, use_mask=True)
    ids, mask = reader.ids(spans, 0), reader.weights(spans, reader.texts(spans))
    return [(ids[row, :n].tolist(), mask[row, :n].tolist()) for row, n in enumerate(spans.used.tolist())]


@pytest.mark.parametrize("workers", [None, 2])
def test_a_build_keeps_the_samples_of_a_conversation_in_one_split(tmp_path: Path, workers: int | None) -> None:
    renderer = family("qwen3")
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in THINKING))
    source = chat_files([tmp_path / "chats.jsonl"])
    executor = {} if workers is None else {"executor": UnitExecutor(LocalRunner(workers), slice_bytes=2000)}
    for name in ("one", "two"):
        build_episodes(
            source if name == "one" else source.iterate(),
            tmp_path / name,
            encoder=as_encoder(renderer, samples="auto"),
            val_frac=0.25,
            seed=3,
            **(executor if name == "one" else {}),
        )
    wanted = [build_training_samples(renderer, chat) for chat in THINKING]
    assert {len(samples) for samples in wanted} == {2}
    for split in ("train", "val"):
        found = stored(tmp_path / "one", split)
        assert found == stored(tmp_path / "two", split)
        own = [samples for samples in wanted if samples[1][0] in [ids for ids, _ in found]]
        assert found == [(ids, [int(each) for each in mask]) for samples in own for ids, mask in samples]
    assert len(stored(tmp_path / "one", "val")) == 20


def test_the_command_and_a_recipe(tmp_path: Path) -> None:
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in THINKING))
    folder = folder_of("qwen3")
    common = ("build", "chats.jsonl", "--tokenizer", folder, "--renderer", "qwen3", "--json")
    episodes = {}
    for samples in ("per-conversation", "auto", "per-turn"):
        done = run_cli(*common, "--out", samples, "--samples", samples, "--val-frac", 0, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        episodes[samples] = json.loads(done.stdout)["splits"]["train"]
        manifest = json.loads((tmp_path / samples / "episodes.json").read_text())
        assert manifest.get("samples") == (None if samples == "per-conversation" else samples)
    assert [each["episodes"] for each in episodes.values()] == [40, 80, 80]
    assert episodes["auto"]["trained_tokens"] == episodes["per-turn"]["trained_tokens"]
    assert episodes["auto"]["trained_tokens"] > episodes["per-conversation"]["trained_tokens"], "the reasoning"
    (tmp_path / "recipe.toml").write_text(
        f"""out = "made"
[tokenizer]
path = "{folder}"
[renderer]
name = "qwen3"
[loss]
samples = "auto"
[split]
val_frac = 0.0
[[sources]]
name = "chats"
files = ["chats.jsonl"]
"""
    )
    loaded = read_recipe(tmp_path / "recipe.toml")
    built = build_recipe(loaded)
    assert built.manifests["chats"]["splits"]["train"] == episodes["auto"]
    assert episodes["auto"]["episodes"] == 80
    whole = sum(len(ids) for chat in THINKING for ids, _ in build_training_samples(family("qwen3"), chat))
    mixture = build_recipe(read_recipe(tmp_path / "recipe.toml", ["out=short", "sequence.length=512"])).mixture
    assert mixture.parts[0].tokens == episodes["auto"]["tokens"] == whole
    batches = list(ng.loader(tmp_path / "short", batch_size=1, pad_token_id=0))
    assert sum(batch.num_tokens for batch in batches) == mixture.parts[0].tokens
    assert sum(batch.num_trained_tokens for batch in batches) == mixture.parts[0].trained_tokens
    refused = run_cli(*common, "--out", "no", "--samples", "perturn", cwd=tmp_path)
    assert refused.returncode == 2
    assert "'perturn' is not one of 'per-conversation', 'per-turn', 'auto'" in refused.stderr
