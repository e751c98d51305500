"""Rows of ids that another tokenizer made, and rows whose ids were stored in 16 bits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from niels_gpt.doctor import Report, diagnose
from niels_gpt.renderers.base import create_renderer
from tests.doctor.made import Sample, chats, rows, sample_of
from tests.doctor.planted import Case
from tests.folders import shared_folder
from tests.memory import shared
from tests.renderers.tiny_families import folder_of

FAMILIES = ("qwen2.5", "llama-3", "nemotron-3")
SIZE = 1 << 16


@shared
def renumbered(family: str, change: str) -> Any:
    """A family's renderer whose tokenizer has other ids.

    Args:
        change: large: text first, then filler, then control tokens, which have ids of 65,536 and more; controls: the
            same without filler; reversed: that with the text from the last id to the first.
    """
    folder = shared_folder("renumbered-")
    for file in folder_of(family).iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    held = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    added = [token["content"] for token in held["added_tokens"]]
    text = [token for token in held["model"]["vocab"] if token not in added]
    filler = [f"filler {n}" for n in range(SIZE + 300 - len(text))] if change == "large" else []
    ids = {token: n for n, token in enumerate((text[::-1] if change == "reversed" else text) + filler + added)}
    held["model"]["vocab"] = ids
    for token in held["added_tokens"]:
        token["id"] = ids[token["content"]]
    (folder / "tokenizer.json").write_text(json.dumps(held), encoding="utf-8")
    return create_renderer(str(folder), family)


def made_by(renderer: Any) -> list[Sample]:
    return [sample_of(renderer, messages) for messages in chats(40)]


def _mixed(good: Sequence[Sample], bad: Sequence[Sample], each: int) -> list[dict[str, Any]]:
    return rows([bad[n] if n % each == 0 else good[n] for n in range(len(good))])


def _wrong_tokenizer(each: int, family: str, planted: bool, _: Path) -> Report:
    """Ids of a tokenizer with the same tokens in another order; not planted: of this one."""
    renderer = renumbered(family, "controls")
    other = renumbered(family, "reversed") if planted else renderer
    return diagnose(_mixed(made_by(renderer), made_by(other), each), renderer=renderer)


def _larger_vocabulary(each: int, family: str, planted: bool, _: Path) -> Report:
    """Ids of a tokenizer with more ids than this one; much of the text has the same ids in both."""
    renderer = renumbered(family, "controls")
    other = renumbered(family, "large") if planted else renderer
    bad = made_by(other)
    for sample in bad if planted else ():
        sample.ids[:] = [token + SIZE if n % 8 == 0 and token < SIZE else token for n, token in enumerate(sample.ids)]
    return diagnose(_mixed(made_by(renderer), bad, each), renderer=renderer)


def _wrapped(each: int, family: str, planted: bool, _: Path) -> Report:
    renderer = renumbered(family, "large")
    bad = made_by(renderer)
    for sample in bad if planted else ():
        sample.ids[:] = [token % SIZE for token in sample.ids]
    return diagnose(_mixed(made_by(renderer), bad, each), renderer=renderer)


def cases() -> list[Case]:
    return [
        Case(rule, family, partial(make, each, family, planted), planted, also)
        for rule, make, also in (
            # The control tokens have the same ids here, and what stands between them are no headers.
            ("wrong-tokenizer", _wrong_tokenizer, ("header-drift", "user-tokens-trained")),
            ("wrong-tokenizer", _larger_vocabulary, ("id-out-of-range",)),
            ("ids-wrapped", _wrapped, ()),
        )
        for family in FAMILIES
        for planted in (True, False)
        for each in ((1, 10) if planted else (1,))
    ]
