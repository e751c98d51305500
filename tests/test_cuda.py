"""What only a CUDA device shows: batches that are copied to it, attention kernels on packed rows, and a training run.

Skipped without one. The same rules are tested on the CPU in `test_attention`, `episodes/test_loader` and `trainers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from benchmarks.cuda import Attend, attention_of
from niels_gpt.cache.pretrain_dataset import PretrainTokenStreamDataset
from niels_gpt.episodes.batch import Batch
from niels_gpt.episodes.episode_loader import GPTEpisodeDataLoader
from tests.episodes.made import loader, write_split

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")

VOCABULARY, B, T = 1000, 8, 512
HEADS, WIDTH = 4, 64
BATCHES = 60


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes of 1 to 600 tokens with random masks."""
    folder = tmp_path_factory.mktemp("episodes")
    draw = np.random.default_rng(3)
    lengths = draw.integers(1, 600, 400).tolist()
    ids = [draw.integers(0, VOCABULARY, n).tolist() for n in lengths]
    write_split(folder / "train", ids, [draw.integers(0, 2, n).tolist() for n in lengths])
    return folder


def opened(dataset: Path, device: str, *, packing: bool) -> GPTEpisodeDataLoader:
    keywords = {"packing": packing, "too_long": "head", "epoch_seed": 5}
    found: GPTEpisodeDataLoader = loader(dataset, keywords=keywords, batch_size=B, block_size=T, device=device)
    return found


def with_workers(opened: GPTEpisodeDataLoader) -> Iterator[Batch]:
    for batch in opened.as_dataloader(epochs=None, num_workers=2, pin_memory=True, multiprocessing_context="spawn"):
        yield batch.to("cuda")


WAYS: dict[str, Callable[[GPTEpisodeDataLoader], Iterator[Batch]]] = {
    "next_batch": lambda opened: iter(opened.next_batch, None),
    "prefetch": lambda opened: opened.prefetch(depth=3),
    "workers": with_workers,
}


def assert_equal(on_gpu: Batch, on_cpu: Batch) -> None:
    tensors, wanted = on_gpu.tensors(), on_cpu.tensors()
    assert tensors.keys() == wanted.keys()
    for name, tensor in tensors.items():
        assert tensor.device.type == "cuda"
        assert torch.equal(tensor.cpu(), wanted[name]), name
    assert on_gpu.state == on_cpu.state


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_batches_are_those_of_the_cpu(dataset: Path, way: str, packing: bool) -> None:
    on_cpu = opened(dataset, "cpu", packing=packing)
    batches = WAYS[way](opened(dataset, "cuda", packing=packing))
    for batch in islice(batches, BATCHES):
        assert_equal(batch, on_cpu.next_batch())


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("way", ["next_batch", "prefetch"])
def test_copies_that_wait_bring_what_was_meant(dataset: Path, way: str, packing: bool) -> None:
    """The device is busy, so that copies from page-locked memory wait while further batches are made."""
    on_cpu = opened(dataset, "cpu", packing=packing)
    torch.cuda._sleep(1_000_000_000)  # type: ignore[no-untyped-call] # cycles: half a second
    begun: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    begun.record()
    batches = list(islice(WAYS[way](opened(dataset, "cuda", packing=packing)), BATCHES))
    assert not begun.query(), "the device was not busy long enough for this test to mean something"
    for batch in batches:
        assert_equal(batch, on_cpu.next_batch())


def test_windows_are_those_of_the_cpu(tmp_path: Path) -> None:
    np.random.default_rng(1).integers(0, VOCABULARY, 300_000, dtype=np.uint16).tofile(tmp_path / "shard_00000.bin")
    datasets = [PretrainTokenStreamDataset(str(tmp_path), T=T, device=device) for device in ("cuda", "cpu")]
    torch.cuda._sleep(200_000_000)  # type: ignore[no-untyped-call]
    made = [
        [dataset.get_batch(B=B, generator=generator) for _ in range(BATCHES)]
        for dataset, generator in ((dataset, torch.Generator().manual_seed(2)) for dataset in datasets)
    ]
    for on_gpu, on_cpu in zip(*made, strict=True):
        assert all(one.is_cuda and torch.equal(one.cpu(), other) for one, other in zip(on_gpu, on_cpu, strict=True))


# ---- attention


class Heads:
    """Queries, keys and values of a packed batch, and what attention over each text alone gives and sends back."""

    def __init__(self, batch: Batch, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        self.batch = batch
        shape = (B, HEADS, T, WIDTH)
        self.inputs = [torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3)]
        self.weights = torch.randn(shape, device="cuda", dtype=dtype)

    def result(self, attend: Attend) -> list[torch.Tensor]:
        """The output on what is not padding, and the gradients of queries, keys and values."""
        assert self.batch.segment_ids is not None
        own = (self.batch.segment_ids > 0)[:, None, :, None]
        mixed = attend(*self.inputs) * own
        gradients = torch.autograd.grad((mixed * self.weights).sum(), self.inputs)
        return [mixed.detach().float(), *(gradient.float() for gradient in gradients)]

    def alone(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Text by text, each with a plain causal mask."""
        assert self.batch.cu_seqlens is not None
        flat = [tensor.transpose(1, 2).reshape(1, B * T, HEADS, WIDTH).transpose(1, 2) for tensor in (q, k, v)]
        parts = []
        for lo, hi in pairwise(self.batch.cu_seqlens.tolist()):
            q, k, v = (tensor[:, :, lo:hi] for tensor in flat)
            parts.append(functional.scaled_dot_product_attention(q, k, v, is_causal=True))
        return torch.cat(parts, dim=2).transpose(1, 2).reshape(B, T, HEADS, WIDTH).transpose(1, 2)


# Kernel, dtype, and how far a result may be from that of the text alone.
KERNELS = {
    "block_diagonal_mask": (torch.float32, 2e-5),
    "flex_attention": (torch.float32, 2e-5),
    "varlen_attn": (torch.bfloat16, 0.06),
}


@pytest.mark.filterwarnings("ignore")  # of torch.compile, about settings of the machine
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_packed_text_attends_as_if_it_were_alone(dataset: Path, kernel: str) -> None:
    dtype, tolerance = KERNELS[kernel]
    batch = opened(dataset, "cuda", packing=True).next_batch()
    assert batch.cu_seqlens is not None
    assert len(batch.cu_seqlens) > B + 4, "several texts to a row"
    attend = attention_of(batch).get(kernel)
    if attend is None:
        pytest.skip(f"torch {torch.__version__} has no {kernel}")
    heads = Heads(batch, dtype)
    wanted = heads.result(heads.alone)
    for found, alone in zip(heads.result(attend), wanted, strict=True):
        torch.testing.assert_close(found, alone, rtol=0, atol=tolerance)
    # The test can fail: as one text to a row, packed texts see each other.
    whole = heads.result(lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True))
    assert float((whole[0] - wanted[0]).abs().max()) > 10 * tolerance


# ---- training


@pytest.mark.filterwarnings("ignore")  # of accelerate and transformers
@pytest.mark.parametrize("convention", ["hf", "hf-flat"])
def test_packed_losses_of_a_model_are_those_of_its_texts(dataset: Path, convention: str) -> None:
    """A small Qwen3 of transformers in float32: an epoch of packed rows beside the same rows' texts one by one."""
    transformers = pytest.importorskip("transformers")
    from niels_gpt.trainers.fields import fields

    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.Qwen3Config(
        vocab_size=VOCABULARY, num_key_value_heads=2, head_dim=32, attn_implementation="sdpa", **shape
    )
    model = transformers.Qwen3ForCausalLM(config).to("cuda")
    found, texts = 0.0, 0.0
    with torch.no_grad():
        for batch in islice(opened(dataset, "cuda", packing=True).batches(), 4):
            found += float(model(**fields(batch, convention)).loss) * batch.num_trained_tokens
            texts += sum(_losses_of_texts(model, batch))
    assert found == pytest.approx(texts, rel=1e-5)


def _losses_of_texts(model: Any, batch: Batch) -> Iterator[float]:
    """The summed loss of each text of a batch, which the model reads alone."""
    assert batch.segment_ids is not None
    for x, y, mask, segments in zip(batch.x, batch.y, batch.mask, batch.segment_ids, strict=True):
        for number in range(1, int(segments.max()) + 1):
            here = segments == number
            logits = model(input_ids=x[here][None]).logits[0]
            loss = functional.cross_entropy(logits, y[here], reduction="none")
            yield float((loss * mask[here]).sum())


@pytest.mark.filterwarnings("ignore")
def test_a_resumed_training_run_in_bfloat16_reads_on_where_it_stopped(dataset: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate", reason="transformers.Trainer needs accelerate")
    from niels_gpt.trainers.hugging_face import EpisodeTrainer

    def run(out: Path, steps: int, resume: str | None = None) -> list[list[int]]:
        seen: list[list[int]] = []
        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2
        )
        model = transformers.LlamaForCausalLM(config)
        model.register_forward_pre_hook(
            lambda _, args, given: seen.append(given["input_ids"][0].tolist()), with_kwargs=True
        )
        arguments = transformers.TrainingArguments(
            output_dir=str(out), max_steps=steps, save_steps=5, bf16=True, report_to=[], disable_tqdm=True
        )
        # The Trainer moves batches to the device itself.
        trainer = EpisodeTrainer(model=model, args=arguments, episodes=opened(dataset, "cpu", packing=True))
        trainer.train(resume_from_checkpoint=resume)
        assert next(model.parameters()).device.type == "cuda"
        return seen

    whole = run(tmp_path / "whole", 12)
    first = run(tmp_path / "parts", 5)
    rest = run(tmp_path / "parts", 12, resume=str(tmp_path / "parts" / "checkpoint-5"))
    assert first + rest == whole
