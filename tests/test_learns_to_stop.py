"""A model trained on our batches learns to stop; without the end-of-turn in the loss it never does.

A missing end-of-turn in the loss is the field's most common silent bug: the loss curve looks as good as ever, and the
model talks on until it is cut off. Wrong masks, shifts and cuts all end in this. So here a small model is trained twice
from the same weights on the same batches of our SFT cache, once with `y_masked` as the reader gives it and once with
the end-of-turn targets taken out, and then both are asked to answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from niels_gpt.cache.build_cache import build_sft_cache
from niels_gpt.cache.formats import DEFAULT_VAL_FRAC
from niels_gpt.cache.sft_dataset import SFTExampleDataset
from niels_gpt.samples import chats_file
from niels_gpt.seeds import DEFAULT_SEED
from niels_gpt.sources.chat_files import chat_files
from niels_gpt.store.masks import IGNORE_INDEX
from niels_gpt.tokenizer import SentencePieceTokenizer

WIDTH, HEADS, LAYERS = 96, 4, 2
T = 128  # the conversations that fit whole; short ones, so that a small model learns them in seconds
B, STEPS, LEARNING_RATE = 6, 70, 5e-3
MOST_NEW_TOKENS = 95  # the longest answer has 86


class Block(nn.Module):
    """Causal self-attention, then a feed-forward layer, each added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, h: Tensor) -> Tensor:
        rows, length, _ = h.shape
        qkv = self.qkv(self.before_attention(h)).view(rows, length, 3, HEADS, WIDTH // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + self.out(mixed.transpose(1, 2).reshape(rows, length, WIDTH))
        return cast(Tensor, h + self.mlp(self.before_mlp(h)))


class SmallGPT(nn.Module):
    """Ids of shape (B, L) -> logits of shape (B, L, vocabulary)."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, WIDTH)
        self.positions = nn.Embedding(T + MOST_NEW_TOKENS, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, vocab_size, bias=False)

    def hidden(self, ids: Tensor) -> Tensor:
        return cast(Tensor, self.blocks(self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))))

    def forward(self, ids: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.norm(self.hidden(ids))))

    def next_ids(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """The likeliest id after the first `lengths` ids of each row, shape (B,)."""
        last = self.hidden(ids)[torch.arange(len(ids)), lengths - 1]
        return cast(Tensor, self.head(self.norm(last)).argmax(-1))


@dataclass(frozen=True)
class Outcome:
    """What a trained model does on the conversations that it was trained on."""

    stopped: float  # share of prompts after which it emitted an end-of-turn
    probability_at_ends: float  # mean probability of an end-of-turn where the assistant's turns truly end
    loss: float  # of the last step


@dataclass(frozen=True)
class Conversations:
    """The rows of the cache that fit into T + 1 tokens, read anew for each batch."""

    dataset: SFTExampleDataset
    fitting: Tensor
    vocab_size: int

    def batch(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        drawn = torch.randint(len(self.fitting), (B,), generator=generator)
        x, _, y_masked = self.dataset.rows(self.fitting[drawn].numpy())
        return x, y_masked

    def all(self) -> tuple[Tensor, Tensor]:
        x, _, y_masked = self.dataset.rows(self.fitting.numpy())
        return x, y_masked

    def prompts(self) -> list[Tensor]:
        """Every row up to and with each of its assistant sentinels."""
        x, _ = self.all()
        rows, ends = torch.nonzero(x == self.dataset.asst_id, as_tuple=True)
        return [x[row, : end + 1] for row, end in zip(rows, ends, strict=True)]


@pytest.fixture(scope="module")
def conversations(tmp_path_factory: pytest.TempPathFactory, tokenizer: SentencePieceTokenizer) -> Conversations:
    """The demo's SFT cache, opened as a training job would."""
    cache = tmp_path_factory.mktemp("stop") / "chats"
    build_sft_cache(
        chat_files([chats_file()]).iterate(),
        str(cache),
        tokenizer=tokenizer,
        val_frac=DEFAULT_VAL_FRAC,
        seed=DEFAULT_SEED,
        num_threads=1,
    )
    files = str(cache / "train_tokens.bin"), str(cache / "train_idx.npy")
    dataset = SFTExampleDataset(*files, T=T, device="cpu", eot_id=tokenizer.special_token_ids()["eot"])
    lengths = np.diff(np.load(files[1]), append=(cache / "train_tokens.bin").stat().st_size // 2)
    return Conversations(dataset, torch.from_numpy(np.flatnonzero(lengths <= T + 1)), tokenizer.vocab_size)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Two threads that share busy cores wait for each other; one takes no longer than it must."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def with_stops(conversations: Conversations, one_thread: None) -> Outcome:
    """Trained on `y_masked` as the reader gives it."""
    return train_and_ask(conversations, stops_in_loss=True)


@pytest.fixture(scope="module")
def without_stops(conversations: Conversations, one_thread: None) -> Outcome:
    """The same training with the end-of-turn targets taken out of the loss."""
    return train_and_ask(conversations, stops_in_loss=False)


def train_and_ask(data: Conversations, *, stops_in_loss: bool) -> Outcome:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = SmallGPT(data.vocab_size)
    loss, eot = train(model, data, stops_in_loss=stops_in_loss), data.dataset.eot_id
    x, y_masked = data.all()
    with torch.no_grad():
        probability = model(x).softmax(-1)[..., eot][y_masked == eot].mean()
        return Outcome(stop_rate(model, data.prompts(), eot), float(probability), loss)


def train(model: SmallGPT, data: Conversations, *, stops_in_loss: bool) -> float:
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    warm_up_and_decay = [min(1.0, (step + 1) / 20, 2 * (1 - step / STEPS)) for step in range(STEPS)]
    for scale in warm_up_and_decay:
        x, y_masked = data.batch(generator)
        if not stops_in_loss:
            y_masked = y_masked.masked_fill(y_masked == data.dataset.eot_id, IGNORE_INDEX)
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y_masked.flatten(), ignore_index=IGNORE_INDEX)
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * scale
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def stop_rate(model: SmallGPT, prompts: list[Tensor], eot: int) -> float:
    """Continue all prompts greedily side by side; the share that emits `eot` within the bound.

    Prompts differ in length, so each row writes behind its own end; causal attention never looks at what lies there.
    """
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    ids = nn.functional.pad(nn.utils.rnn.pad_sequence(prompts, batch_first=True), (0, MOST_NEW_TOKENS))
    talking = torch.arange(len(prompts))
    for _ in range(MOST_NEW_TOKENS):
        chosen = model.next_ids(ids[talking, : lengths[talking].max()], lengths[talking])
        ids[talking, lengths[talking]] = chosen
        lengths[talking] += 1
        talking = talking[chosen != eot]
        if not len(talking):
            break
    return 1 - len(talking) / len(prompts)


def test_every_assistant_turn_ends_in_the_loss(conversations: Conversations) -> None:
    """Before any training: as many end-of-turn targets are graded as there are assistant turns."""
    x, y_masked = conversations.all()
    turns = (x == conversations.dataset.asst_id).sum()
    assert turns >= 10
    assert (y_masked == conversations.dataset.eot_id).sum() == turns


def test_it_stops_when_the_end_of_turn_is_in_the_loss(with_stops: Outcome) -> None:
    """Measured: all prompts, 0.98; the bounds leave room for other versions of torch."""
    assert with_stops.stopped >= 0.8
    assert with_stops.probability_at_ends >= 0.8


def test_it_talks_on_when_the_end_of_turn_is_not(without_stops: Outcome) -> None:
    """Measured: no prompt, 2e-5."""
    assert without_stops.stopped <= 0.1
    assert without_stops.probability_at_ends <= 0.02


def test_the_loss_does_not_tell_them_apart(with_stops: Outcome, without_stops: Outcome) -> None:
    """Both have learnt their conversations; this is why nobody notices."""
    assert with_stops.loss < 0.5
    assert without_stops.loss < 0.5
