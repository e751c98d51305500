"""Every family beside its encoder alone, tml-renderers and others: conversations per second, and equal ids.

`python -m benchmarks.beside [FAMILY...]` prints the rows of the table in README.md, of all families or of those named.
The `renderers` package takes part where it is installed.
Chats without tools, real texts that no way has met, processor time on one core, the median of some blocks. Ours are ids
and mask of batches (`render_many`); tml-renderers' are `render_for_sft` with the conversion from OpenAI's messages;
those of the `renderers` package are `render`; Transformers' are the ids of `apply_chat_template`, without a mask.
"encoder" is the share of our time that the engine which ours uses takes for the finished texts.
"""

from __future__ import annotations

import operator
import sys
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import tml
from benchmarks.corpus import Corpus
from benchmarks.families import _blocks, alone, model_of
from benchmarks.fresh import Block, Way, ratios, take_turns
from niels_gpt.renderers.family import Family
from niels_gpt.renderers.registry import FAMILIES
from tests.renderers.chats import Messages
from tests.renderers.test_parity import differs

COLUMNS = ("ours", "encoder", "transformers", "renderers", "tml-renderers")
SIZE, BLOCKS = 100, 5  # conversations of a block, blocks


def measured(name: str, corpus: Corpus) -> list[str]:
    """The cells of a family."""
    model, kind = model_of(name)
    day = {"conversation_start_date": datetime.now(UTC).strftime("%Y-%m-%d")} if name == "gpt-oss" else {}
    renderer = FAMILIES[name](model, **day)  # gpt-oss' template always writes the day
    ways = {"ours": _ours(renderer), "encoder": alone(renderer)}
    if name in tml.CLASSES:
        theirs, convert = tml.theirs(name), tml.from_openai
        ways["tml-renderers"] = Way(
            lambda block: [theirs.render_for_sft(convert(messages)) for messages in block.chats]
        )
    kind = kind.split(" ")[0]
    others: dict[str, Callable[[Block], Any]] = {}
    if kind != "tiny":
        # The class of Kimi's tokenizer is a stand-in of ours here, which judges nothing.
        others |= {} if model.name.startswith("kimi") else {"transformers": _official(model)}
        others |= _known_package(name, model)
    ways |= {way: Way(each) for way, each in others.items()}
    for way in ways.values():
        way.run(way.ready(next(_blocks(renderer, corpus, 1, 0.0, size=4))))
    blocks = list(_blocks(renderer, corpus, BLOCKS, 0.0, size=SIZE))
    times = take_turns(ways, blocks)
    chats = [chat for block in blocks for chat in block.chats]
    made = [rendered.token_ids for block in blocks for rendered in renderer.render_many(block.chats)]
    share = ratios(times.pop("encoder").fresh, times["ours"].fresh)[0]
    rates = {way: round(SIZE / median(taken.fresh.values())) for way, taken in times.items()}
    listed = [is_listed(renderer, chat) for chat in chats]
    cells = {"ours": f"{rates['ours']:,}{' (tiny)' if kind == 'tiny' else ''}", "encoder": f"{share:.0%}"}
    for way, render in others.items():
        same = list(map(operator.eq, made, chain.from_iterable(map(render, blocks))))
        unlisted = sum(not equal and not known for equal, known in zip(same, listed, strict=True))
        differ = f" ({same.count(False)} differ, {unlisted} of them not listed)" if not all(same) else ""
        cells[way] = f"{rates[way]:,}{differ}"
    cells["tml-renderers"] = f"{rates['tml-renderers']:,}" if name in tml.CLASSES else ""
    return [name, *(cells.get(way, "") for way in COLUMNS)]


def _ours(renderer: Family) -> Way:
    return Way(lambda block: renderer.render_many(block.chats).sampled)


def is_listed(renderer: Family, chat: Messages) -> bool:
    """docs/deviations.md says in which way the official template renders this conversation otherwise."""
    spelled = any(control in message["content"] for message in chat for control in renderer.encoder.control_ids)
    return differs(renderer.name, chat, None) or spelled


def _official(model: Path) -> Callable[[Block], Any]:
    from transformers import AutoTokenizer

    warnings.simplefilter("ignore")
    tokenizer = AutoTokenizer.from_pretrained(model)
    return lambda block: [tokenizer.apply_chat_template(chat, return_dict=False) for chat in block.chats]


def _known_package(name: str, model: Path) -> dict[str, Callable[[Block], Any]]:
    """The `renderers` package, where it is installed and knows the family."""
    if find_spec("renderers") is None or name == "gpt-oss":  # which it downloads a vocabulary for
        return {}
    from renderers import config_from_name
    from renderers.base import create_renderer
    from transformers import AutoTokenizer

    try:
        config = config_from_name(name)
    except ValueError:
        return {}
    tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=model.name.startswith("kimi"))
    try:
        renderer = create_renderer(tokenizer, config)
    except AssertionError as error:  # how it refuses a tokenizer without one of its tokens
        print(f"renderers does not take {model.name}: {error}", file=sys.stderr)
        return {}
    return {"renderers": lambda block: [list(renderer.render(chat).token_ids) for chat in block.chats]}


def main() -> None:
    """Measure the families, and print a row of each as soon as it is there."""
    corpus = Corpus()
    print(f"| family | {' | '.join(COLUMNS)} |", f"|---{'|---:' * len(COLUMNS)}|", sep="\n")
    for name in sys.argv[1:] or FAMILIES:
        print(f"| {' | '.join(measured(name, corpus))} |", flush=True)


if __name__ == "__main__":
    main()
