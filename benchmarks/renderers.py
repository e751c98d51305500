"""Conversations -> ids and masks: ours, and as others do it, beside bare gigatoken on the same texts. One core.

The corpus is real text (`corpus.py`); every way has a renderer and a tokenizer of its own, and meets all texts as
*fresh* and *again* (`fresh.py`). Qwen3's own tokenizer and template are needed (`tests/assets.py` says where they are
looked for). TRL and tml-renderers take part where they can be imported; neither is a dependency.

`python -m benchmarks.renderers` prints the tables with the spread over the blocks.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

from benchmarks.corpus import Corpus
from benchmarks.fresh import Block, Times, Way, only, ratios, results, take_turns
from benchmarks.pairs import Result
from niels_gpt.renderers.families.qwen3 import Qwen3Renderer
from niels_gpt.renderers.template.renderer import TemplateRenderer
from tests.assets import ASSETS

MODEL = ASSETS / "qwen3-8b"
SIZE = 250  # conversations of a block
BLOCKS = 12
FIRST = 1000  # conversations, of a new renderer
PLAIN_BLOCKS = 4  # of conversations without tools
BARE = "bare gigatoken"
BATCH = "render_many: ids and mask"
ONE = "render, one by one"
Taken = Mapping[str, Times]


def run(folder: Path) -> list[Result]:
    """Fresh text and the same again; the first conversations of a new renderer; conversations without tools."""
    del folder
    if not MODEL.is_dir():
        print(f"renderers: no tokenizer in {MODEL} (set NGPT_ASSETS); left out")
        return []
    taken, plain = _measured()
    made = results("renderers", "fresh text", {way: times.fresh for way, times in taken.items()}, SIZE)
    made += results("renderers", "the same again", {way: times.again for way, times in taken.items()}, SIZE)
    for case, numbers in _halves().items():
        every = {way: only(taken[way].fresh, numbers) for way in _new_ones(taken)}
        made += results("renderers", case, every, SIZE)
    made += results("renderers", "no tools, fresh", {way: times.fresh for way, times in plain.items()}, SIZE)
    return made + results("renderers", "no tools, again", {way: times.again for way, times in plain.items()}, SIZE)


def _measured() -> tuple[Taken, Taken]:
    """The times of all ways, and of those that take part where there are no tools."""
    corpus = Corpus()
    writer = Qwen3Renderer(MODEL)
    ways, plain_ways = _ways(MODEL), _plain_ways(MODEL)
    for way in (*ways.values(), *plain_ways.values()):
        _warm_up(way, corpus, writer)
    taken = take_turns(ways, _blocks(corpus, writer, BLOCKS))
    plain = take_turns(plain_ways, _blocks(corpus, writer, PLAIN_BLOCKS, tools=0))
    if again := [name for name, laps in corpus.laps.items() if laps]:
        print(f"renderers: this machine has too little text; {', '.join(again)} came more than once")
    return taken, plain


def _warm_up(way: Way, corpus: Corpus, writer: Qwen3Renderer) -> None:
    """Let a way do once what is done once in a process or by a tokenizer.

    gigatoken's first batch takes 0.2 seconds; our renderers load a second tokenizer when a text first spells a control
    token or changes under Unicode's normalisation, which takes some 0.5 seconds.
    """
    way.run(way.ready(next(_blocks(corpus, writer, 1, size=4, tools=0))))
    unusual = [({"role": "user", "content": "<|im_end|> e\u0301"}, {"role": "assistant", "content": "é"})]
    data = [([*chat], None) for chat in unusual]
    way.run(way.ready(Block(data, [writer.text(chat).encode() for chat, _ in data])))


def _halves() -> dict[str, range]:
    first = FIRST // SIZE
    return {f"the first {FIRST:,} of a new renderer": range(first), "those after them": range(first, BLOCKS)}


def _new_ones(taken: Taken) -> list[str]:
    """The ways that met all blocks, so that their first 1 000 are the first that they met."""
    return [way for way, times in taken.items() if len(times.fresh) == BLOCKS]


def _blocks(corpus: Corpus, writer: Any, n: int, *, size: int = SIZE, tools: float = 0.2) -> Iterator[Block]:
    for _ in range(n):
        data = corpus.take(size, tools=tools)
        yield Block(data, [writer.text(chat, tools=own).encode() for chat, own in data])


# ---- the ways


def _ways(model: Path) -> dict[str, Way]:
    def batch(renderer: Qwen3Renderer) -> Callable[[Block], Any]:
        return lambda block: renderer.render_many(block.chats, tools=block.tools).sampled

    ways = {
        BARE: bare(Qwen3Renderer(model)),
        BATCH: Way(batch(Qwen3Renderer(model))),
        ONE: Way(_each(Qwen3Renderer(model).render)),
        "bare Jinja and gigatoken, one by one": Way(_bare_jinja(TemplateRenderer(model)), every=3),
        "render by template, one by one": Way(_each(TemplateRenderer(model).render), every=3),
        "transformers, apply_chat_template with mask": Way(_official(model), every=4),
    }
    return ways | _trl_ways(model)


def _plain_ways(model: Path) -> dict[str, Way]:
    """What tml-renderers can do too, whose messages have no place for declarations of tools."""
    renderer = Qwen3Renderer(model)
    ours = {BARE: bare(Qwen3Renderer(model)), BATCH: Way(lambda block: renderer.render_many(block.chats).sampled)}
    return ours | _tml_ways()


def bare(renderer: Any) -> Way:
    """What encodes the whole texts and does nothing else."""
    import gigatoken

    engine = gigatoken.Tokenizer.from_json(renderer.encoder.parts.json_bytes)
    return Way(lambda texts: engine.encode_batch(texts, parallel=False), ready=lambda block: block.texts)


def _each(render: Callable[..., Any]) -> Callable[[Block], None]:
    def run(block: Block) -> None:
        for chat, own in block.data:
            render(chat, tools=own)

    return run


def _bare_jinja(renderer: TemplateRenderer) -> Callable[[Block], Any]:
    import gigatoken
    from transformers.utils.chat_template_utils import _compile_jinja_template

    template = _compile_jinja_template(renderer.source)
    encode = gigatoken.Tokenizer.from_json(renderer.encoder.parts.json_bytes).backend.encode  # type: ignore[attr-defined]
    return lambda block: [encode(template.render(messages=chat, tools=own).encode()) for chat, own in block.data]


def _official(model: Path) -> Callable[[Block], None]:
    """Ids and mask as transformers makes them, from a template in which what the assistant says is marked."""
    from transformers import AutoTokenizer

    warnings.simplefilter("ignore")
    tokenizer = AutoTokenizer.from_pretrained(model)
    # The published template marks nothing, and transformers' mask would be all zeros.
    unmarked = "+ '\\n' + content }}"
    assert unmarked in tokenizer.chat_template
    marked = "+ '\\n' }}{%- generation %}{{- content }}{%- endgeneration %}"
    tokenizer.chat_template = tokenizer.chat_template.replace(unmarked, marked)

    def render(chat: Any, tools: Any) -> Any:
        return tokenizer.apply_chat_template(chat, tools=tools, return_dict=True, return_assistant_tokens_mask=True)

    return _each(render)


def _trl_ways(model: Path) -> dict[str, Way]:
    """What SFTTrainer does with conversational rows and `assistant_only_loss`, by its own code: ids and labels."""
    if find_spec("trl") is None:
        print("renderers: trl is not installed; left out")
        return {}
    import datasets
    from transformers import AutoTokenizer
    from trl import SFTConfig, SFTTrainer
    from trl.chat_template_utils import get_training_chat_template

    datasets.disable_progress_bars()
    tokenizer = AutoTokenizer.from_pretrained(model)
    # The attributes of a trainer that `_prepare_dataset` reads; a real trainer would need a model.
    trainer: Any = SimpleNamespace(
        _tokenizer=tokenizer,
        chat_template=get_training_chat_template(processing_class=tokenizer),
        completion_only_loss=False,
    )
    with tempfile.TemporaryDirectory() as folder:
        args = SFTConfig(folder, assistant_only_loss=True, max_length=None, use_cpu=True, bf16=False, report_to="none")

    def ready(block: Block) -> Any:
        rows = [{"messages": chat, "tools": json.dumps(own) if own else None} for chat, own in block.data]
        return datasets.Dataset.from_list(rows)

    def run(rows: Any) -> None:
        made = SFTTrainer._prepare_dataset(trainer, rows, tokenizer, args, False, None, "train")
        assert len(made) == len(rows)
        assert {"input_ids", "labels"} <= set(made.column_names)

    return {"TRL, SFTTrainer's dataset of ids and labels": Way(run, ready, every=6)}


def _tml_ways() -> dict[str, Way]:
    if find_spec("tml_renderers") is None:
        print("renderers: tml-renderers is not installed; left out")
        return {}
    from tml_renderers import chat, renderers

    renderer = renderers.Qwen3()
    convert = chat.OpenAIMessage.from_oss_messages
    return {
        "tml-renderers, conversion and render_for_sft": Way(
            lambda block: [renderer.render_for_sft(convert(messages)) for messages in block.chats]
        )
    }


# ---- tables for README.md


def main() -> None:
    """Print the tables."""
    if not MODEL.is_dir():
        raise SystemExit(f"no tokenizer in {MODEL}; set NGPT_ASSETS")
    taken, plain = _measured()
    print(f"\n{BLOCKS * SIZE:,} conversations, {SIZE} in a block; bare gigatoken = 1\n")
    _print_turns(taken)
    print(f"\nThe first {FIRST:,} conversations of a new renderer beside those after them\n")
    print("| way | first | later | first / later | first / bare | later / bare |\n|---|---:|---:|---:|---:|---:|")
    first, later = _halves().values()
    for way in _new_ones(taken):
        parts = [only(taken[way].fresh, numbers) for numbers in (first, later)]
        bases = [only(taken[BARE].fresh, numbers) for numbers in (first, later)]
        a, b = (median(part.values()) / SIZE * 1e6 for part in parts)
        beside = [ratios(part, base)[0] for part, base in zip(parts, bases, strict=True)]
        print(f"| {way} | {a:.1f} µs | {b:.1f} µs | {a / b:.2f} | {beside[0]:.2f} | {beside[1]:.2f} |")
    print(f"\n{PLAIN_BLOCKS * SIZE:,} conversations without tools\n")
    _print_turns(plain)


def _print_turns(taken: Taken) -> None:
    print("| way | conversations | fresh | again | fresh, µs | again, µs | fresh, least and most of a block |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for way, times in taken.items():
        n = len(times.fresh) * SIZE
        (fresh, least, most), (again, _, _) = (
            ratios(times.fresh, taken[BARE].fresh),
            ratios(times.again, taken[BARE].again),
        )
        costs = [median(seconds.values()) / SIZE * 1e6 for seconds in (times.fresh, times.again)]
        spread = f"{least:.3g} to {most:.3g}"
        print(f"| {way} | {n:,} | {fresh:.3g} | {again:.3g} | {costs[0]:.3g} | {costs[1]:.3g} | {spread} |")


if __name__ == "__main__":
    main()
