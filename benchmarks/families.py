"""Every family beside its encoder alone: ids and facts of a batch against ids of the same texts. One core.

Real tokenizers where they are at hand (`tests/assets.py` says where they are looked for), else the tiny ones of the
tests. A ratio of 0.2 says that rendering takes five times as long as the encoder alone, which none should exceed on
chats without tools. `python -m benchmarks.families` tells the same in processor time, for machines that others use too.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.pairs import Result, measure
from benchmarks.renderers import Chats, corpus
from niels_gpt.renderers.engine import Family
from niels_gpt.renderers.registry import FAMILIES, MODEL_RENDERER_MAP
from niels_gpt.tokenizer import SentencePieceTokenizer
from niels_gpt.tokenizer.encoder import Encoder
from tests.assets import FOLDERS
from tests.renderers.tiny_families import folder_of

CONVERSATIONS = 300
ROUNDS = 7


def run(folder: Path) -> list[Result]:
    """All families, chats without tools and chats in which all have some."""
    del folder
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        return [result for name in FAMILIES for result in _family(name)]
    finally:
        os.sched_setaffinity(0, cores)


def _family(name: str) -> list[Result]:
    model, kind = _model(name)
    renderer = FAMILIES[name](model)
    results = _measured(renderer, kind, "texts", corpus(CONVERSATIONS, tools=0))
    if renderer.calls is not None:
        results += _measured(renderer, kind, "tools", corpus(CONVERSATIONS, tools=1, call_id="weather01"))
    return results


def _model(name: str) -> tuple[Path, str]:
    """A directory with a tokenizer for a family, and what it is: "real", "stand-in" (32 000 tokens) or "tiny"."""
    for folder in FOLDERS:
        told = folder / "family.json"
        held = json.loads(told.read_text()) if told.is_file() else {}
        if any(MODEL_RENDERER_MAP.get(model) == name for model in held.get("hub_names", ())):
            return folder, held["tokenizer"]
    return folder_of(name), "tiny"


def _measured(renderer: Family, kind: str, what: str, data: Chats) -> list[Result]:
    chats, tools = [chat for chat, _ in data], [own for _, own in data]
    texts = [renderer.text(chat, tools=own) for chat, own in data]
    tokens = renderer.render_many(chats, tools=tools).ids.size
    return measure(
        "families",
        f"{renderer.name}, {what}",
        {
            f"render_many, {kind} tokenizer": partial(renderer.render_many, chats, tools=tools),
            f"{renderer.encoder.engine} alone": _alone(renderer, texts),
        },
        amounts={"conversations": len(chats), "tokens": float(tokens)},
        rounds=ROUNDS,
    )


def _alone(renderer: Family, texts: list[str]) -> Callable[[], Any]:
    """The engine that the family's encoder uses, on whole texts and without anything of ours."""
    encoder = renderer.encoder
    if not isinstance(encoder, Encoder):
        bare = SentencePieceTokenizer(Path(encoder.name))
        return lambda: [bare.encode(text) for text in texts]
    if encoder.engine == "gigatoken":
        import gigatoken

        engine = gigatoken.Tokenizer.from_json(encoder.parts.json_bytes)
        runs = [text.encode() for text in texts]
        return lambda: engine.encode_batch(runs, parallel=False)
    from tokenizers import Tokenizer

    reference = Tokenizer.from_str(encoder.parts.json_bytes.decode())
    return lambda: reference.encode_batch_fast(texts, add_special_tokens=False)


def main() -> None:
    """Print how many times the encoder's processor time rendering takes, the least of several runs each."""
    print("| family | tokenizer | texts | with tools |\n|---|---|---:|---:|")
    for name in FAMILIES:
        model, kind = _model(name)
        renderer = FAMILIES[name](model)
        told = [_times(renderer, corpus(CONVERSATIONS, tools=0))]
        if renderer.calls is not None:
            told.append(_times(renderer, corpus(CONVERSATIONS, tools=1, call_id="weather01")))
        shown = (f"{ours / alone:.1f} ({ours / CONVERSATIONS * 1e6:.0f} µs)" for ours, alone in told)
        print(f"| {name} | {kind} | {' | '.join(shown)}{' | ' * (2 - len(told))} |", flush=True)


def _times(renderer: Family, data: Chats) -> tuple[float, float]:
    """Seconds of rendering and of the encoder alone."""
    chats, tools = [chat for chat, _ in data], [own for _, own in data]
    alone = _alone(renderer, [renderer.text(chat, tools=own) for chat, own in data])
    return _least(partial(renderer.render_many, chats, tools=tools)), _least(alone)


def _least(run: Callable[[], Any]) -> float:
    taken = []
    for _ in range(ROUNDS):
        started = time.process_time()
        run()
        taken.append(time.process_time() - started)
    return min(taken)


if __name__ == "__main__":
    main()
