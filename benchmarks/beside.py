"""Every family beside its encoder alone, tml-renderers and others: conversations per second, and equal ids.

`python -m benchmarks.beside [FAMILY...]` writes docs/families_beside.json, of the families named, the others stay (the
table then says when and at which load those were measured); from it `python -m docs.families` makes its table. The
`renderers` package takes part where it is installed.
Chats without tools, real texts that no way has met, processor time on one core, the median of some blocks. Ours are ids
and mask of batches (`render_many`); tml-renderers' are `render_for_sft` with the conversion from OpenAI's messages;
those of the `renderers` package are `render`; Transformers' are the ids of `apply_chat_template`, without a mask.
"encoder" is the share of our time that the engine which ours uses takes for the finished texts. `--encoder` measures
this share alone, for all families in the file: two ways in turns, so that a machine that does other work will do.
"""

from __future__ import annotations

import json
import operator
import os
import platform
import sys
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.corpus import Corpus
from benchmarks.families import _blocks, alone, model_of
from benchmarks.fresh import Block, Way, ratios, take_turns
from niels_gpt.renderers.family import Family
from niels_gpt.renderers.registry import FAMILIES
from tests.renderers import tml
from tests.renderers.chats import Messages
from tests.renderers.test_parity import differs

FILE = Path(__file__).parent.parent / "docs" / "families_beside.json"
SIZE, BLOCKS = 100, 5  # conversations of a block, blocks


def measured(name: str, corpus: Corpus) -> dict[str, Any]:
    """A family's row."""
    model, kind = model_of(name)
    day = {"conversation_start_date": datetime.now(UTC).strftime("%Y-%m-%d")} if name == "gpt-oss" else {}
    renderer = FAMILIES[name](model, **day)  # gpt-oss' template always writes the day
    ways = {"ours": _ours(renderer), "encoder": alone(renderer)}
    judged = next((label for label, case in tml.JUDGED.items() if case.family == name), None)
    if judged is not None:
        theirs, convert = tml.theirs(judged), tml.chat.OpenAIMessage.from_oss_messages
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
    listed = [is_listed(renderer, chat) for chat in chats]
    same = {way: list(map(operator.eq, made, chain.from_iterable(map(each, blocks)))) for way, each in others.items()}
    share = ratios(times.pop("encoder").fresh, times["ours"].fresh)[0]
    return {
        "tokenizer": kind,
        "rates": {way: round(SIZE / median(taken.fresh.values())) for way, taken in times.items()},
        "encoder": round(share, 2),
        "equal": {way: sum(equal) for way, equal in same.items()},
        "listed": {
            way: sum(not e and each for e, each in zip(equal, listed, strict=True)) for way, equal in same.items()
        },
        "tml": None if judged is None else tml.JUDGED[judged].kind,
    }


def encoder_share(name: str, corpus: Corpus) -> float:
    """The share of a family's time that its encoder takes."""
    renderer = FAMILIES[name](model_of(name)[0])
    ways = {"ours": _ours(renderer), "encoder": alone(renderer)}
    for way in ways.values():
        way.run(way.ready(next(_blocks(renderer, corpus, 1, 0.0, size=4))))
    times = take_turns(ways, _blocks(renderer, corpus, BLOCKS, 0.0, size=SIZE))
    return round(ratios(times["encoder"].fresh, times["ours"].fresh)[0], 2)


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
    """Measure the families and write the file."""
    corpus = Corpus()
    known = json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {"families": {}}
    rows, chosen = known["families"], sys.argv[1:]
    if chosen == ["--encoder"]:
        for name, row in rows.items():
            row["encoder"] = encoder_share(name, corpus)
            print(name, row["encoder"], flush=True)
            _write(known["about"] | {"encoder_load": _about()["load"]}, rows)
        return
    about = known["about"] if chosen else _about()
    for name in chosen or FAMILIES:
        rows[name] = measured(name, corpus)
        if chosen:
            rows[name]["later"] = {key: _about()[key] for key in ("date", "load", "conversations")}
        print(name, rows[name], flush=True)
        _write(about, {known: rows[known] for known in FAMILIES if known in rows})


def _about() -> dict[str, Any]:
    packages = ("tml-renderers", "transformers", *(["renderers"] if find_spec("renderers") else []))
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "processor": platform.machine(),
        "load": round(os.getloadavg()[0], 1),
        "conversations": SIZE * BLOCKS,
        "versions": {package: version(package) for package in packages},
    }


def _write(about: dict[str, Any], rows: dict[str, Any]) -> None:
    FILE.write_text(json.dumps({"about": about, "families": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
