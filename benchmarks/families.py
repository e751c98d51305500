"""Every family beside its encoder alone, on the same real texts, fresh and again. Processor time on one core.

Real tokenizers where they are at hand (`tests/assets.py` says where they are looked for), else the tiny ones of the
tests. None should take more than five times the encoder alone on fresh chats without tools.
`python -m benchmarks.families` prints the table of README.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.corpus import Corpus
from benchmarks.fresh import Block, Times, Way, ratios, results, take_turns
from benchmarks.pairs import Result
from niels_gpt.renderers.family import Family
from niels_gpt.renderers.registry import FAMILIES, MODEL_RENDERER_MAP
from niels_gpt.tokenizer import SentencePieceTokenizer
from niels_gpt.tokenizer.encoder import TokenizerAdapter
from tests.assets import FOLDERS
from tests.renderers.tiny_families import folder_of

SIZE = 100  # conversations of a block
BLOCKS = 3
ALONE, OURS = "the encoder alone", "render_many"


def run(folder: Path) -> list[Result]:
    """All families, chats without tools and chats in which all have some."""
    del folder
    corpus = Corpus()
    made: list[Result] = []
    for name in FAMILIES:
        _, cases = _measured(name, corpus)
        for what, times in cases.items():
            made += results("families", f"{name}, {what}, fresh", {way: t.fresh for way, t in times.items()}, SIZE)
            made += results("families", f"{name}, {what}, again", {way: t.again for way, t in times.items()}, SIZE)
    return made


def _measured(name: str, corpus: Corpus) -> tuple[str, dict[str, dict[str, Times]]]:
    """What tokenizer a family has, and the times of both ways on texts and, if it has calls, with tools."""
    model, kind = model_of(name)
    renderer = FAMILIES[name](model)
    cases = {"texts": 0.0} | ({"tools": 1.0} if renderer.calls is not None else {})
    made = {}
    for what, share in cases.items():
        ways = {ALONE: alone(renderer), OURS: Way(lambda block: renderer.render_many(block.chats, tools=block.tools))}
        for way in ways.values():
            way.run(way.ready(next(_blocks(renderer, corpus, 1, 0.0, size=4))))
        made[what] = take_turns(ways, _blocks(renderer, corpus, BLOCKS, share))
    return kind, made


def _blocks(renderer: Family, corpus: Corpus, n: int, tools: float, *, size: int = SIZE) -> Iterator[Block]:
    """Conversations that every family can write: no reasoning, one call at a time and alone, arguments as objects."""
    for _ in range(n):
        taken = corpus.take(size, tools=tools, reasoning=0, parallel=0, as_text=False)
        data = [([one | {"content": ""} if one.get("tool_calls") else one for one in chat], own) for chat, own in taken]
        yield Block(data, [renderer.text(chat, tools=own).encode() for chat, own in data])


def model_of(name: str) -> tuple[Path, str]:
    """A directory with a tokenizer for a family, and what it is: "real", "stand-in" (32 000 tokens) or "tiny"."""
    for folder in FOLDERS:
        path = folder / "family.json"
        description = json.loads(path.read_text()) if path.is_file() else {}
        if any(MODEL_RENDERER_MAP.get(model) == name for model in description.get("hub_names", ())):
            return folder, description["tokenizer"]
    return folder_of(name), "tiny"


def alone(renderer: Family) -> Way:
    """The engine that the family's encoder uses, on whole texts and without anything of ours."""
    encoder = renderer.encoder
    if not isinstance(encoder, TokenizerAdapter):
        bare = SentencePieceTokenizer(Path(encoder.name))
        return Way(lambda texts: [bare.encode(text) for text in texts], ready=_as_strings)
    if encoder.engine == "gigatoken":
        import gigatoken

        engine = gigatoken.Tokenizer.from_json(encoder.parts.json_bytes)
        return Way(lambda texts: engine.encode_batch(texts, parallel=False), ready=lambda block: block.texts)
    from tokenizers import Tokenizer

    reference = Tokenizer.from_str(encoder.parts.json_bytes.decode())
    return Way(lambda texts: reference.encode_batch_fast(texts, add_special_tokens=False), ready=_as_strings)


def _as_strings(block: Block) -> list[Any]:
    return [text.decode() for text in block.texts]


def main() -> None:
    """Print how many times the encoder's processor time rendering takes, and microseconds a conversation."""
    print("| family | tokenizer | texts, fresh | again | tools, fresh | again |")
    print("|---|---|---:|---:|---:|---:|")
    corpus = Corpus()
    for name in FAMILIES:
        kind, cases = _measured(name, corpus)
        shown = []
        for what in ("texts", "tools"):
            times = cases.get(what)
            for part in ("fresh", "again"):
                ours, alone = ({} if times is None else getattr(times[way], part) for way in (OURS, ALONE))
                cost = median(ours.values()) / SIZE * 1e6 if ours else 0.0
                shown.append(f"{ratios(ours, alone)[0]:.1f} ({cost:.0f} µs)" if ours else "")
        print(f"| {name} | {kind} | {' | '.join(shown)} |", flush=True)


if __name__ == "__main__":
    main()
