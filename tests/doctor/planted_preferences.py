"""Bugs in preferences: in rows of two shapes, and in datasets built from them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt.doctor import Report, diagnose
from niels_gpt.store.schema import COMPLETION
from tests.doctor.planted import Case
from tests.preferences.made import built, pairs, text, write_rows
from tests.renderers.tiny_families import renderer_of

Row = dict[str, Any]
FAMILIES = ("explicit", "implicit", "stored")


def clean_rows(n: int) -> list[Row]:
    """Rows of which no two, and no two sides, are the same."""
    return [
        {
            "prompt": f"{row['prompt']} question {number}",
            "chosen": f"{row['chosen']} in case {number}",
            "rejected": f"{number} in case {row['rejected']}",
        }
        for number, row in enumerate(pairs(n))
    ]


def shaped(row: Row, family: str) -> Row:
    """A row of texts, as it is or with the prompt in both sides."""
    if family != "implicit":
        return row
    prompt = {"role": "user", "content": row["prompt"]}
    return {side: [prompt, {"role": "assistant", "content": row[side]}] for side in ("chosen", "rejected")}


def same_sides(row: Row, family: str) -> None:
    row["rejected"] = row["chosen"]


def longer(row: Row, family: str) -> None:
    more = " " + text(random.Random(str(row)), 30, 50)
    if family == "implicit":
        row["chosen"][-1]["content"] += more
    else:
        row["chosen"] += more


def other_prompt(row: Row, family: str) -> None:
    if family == "implicit":
        row["rejected"][0] = {"role": "user", "content": "something else"}
        return
    sides = {
        side: [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row[side]}]
        for side in ("chosen", "rejected")
    }
    sides["rejected"][0]["content"] = "something else"
    row.update(sides)


def no_answer(row: Row, family: str) -> None:
    prompt = [{"role": "user", "content": row.get("prompt") or row["chosen"][0]["content"]}]
    answers = {
        side: row[side] if isinstance(row[side], list) else [{"role": "assistant", "content": row[side]}]
        for side in ("chosen", "rejected")
    }
    row.update({side: prompt + answer[-1:] for side, answer in answers.items()})
    row["chosen"] = prompt
    row.pop("prompt", None)


PLANTS: tuple[tuple[str, Callable[[Row, str], None], tuple[str, ...]], ...] = (
    ("identical-pair", same_sides, ("duplicate-row",)),
    ("chosen-shorter-than-prompt", no_answer, ("over-long",)),
    ("prompt-mismatch", other_prompt, ()),
    ("length-leakage", longer, ()),
)


def made(rule: str, share: float, family: str, folder: Path, *, n: int = 300) -> Report:
    """A report on rows of which a share has the bug, or on a dataset of them."""
    plant = next(plant for name, plant, _ in PLANTS if name == rule)
    rows = [shaped(row, family) for row in clean_rows(n)]
    for number in range(0, n if share else 0, round(1 / (share or 1))):
        plant(rows[number], family)
    if family != "stored":
        return diagnose(write_rows(folder / "pairs.jsonl", rows))
    bad = rule in ("prompt-mismatch", "chosen-shorter-than-prompt")
    out = built(folder, clean_rows(n) if bad else rows, val_frac=0, encoder=renderer_of("qwen2.5"))
    (out / "episodes.json").unlink()
    if bad and share:
        edit(out / "train", rule, round(1 / share))
    (out / "episodes.json").write_text(json.dumps(manifest(out)))
    longest = 400 if rule == "chosen-shorter-than-prompt" else None
    return diagnose(out, renderer=renderer_of("qwen2.5"), max_length=longest)


def manifest(out: Path) -> dict[str, Any]:
    """A manifest without checksums of the edited files, as another program may write it."""
    from niels_gpt.store.checksums import file_record
    from niels_gpt.store.manifest import with_manifest_hash

    paths = sorted(path for path in out.rglob("*") if path.is_file())
    files = {str(path.relative_to(out)): file_record(path).to_json() for path in paths}
    split = {"episodes": 0, "tokens": 0, "trained_tokens": 0, "groups": 0}
    size = renderer_of("qwen2.5").vocab_size
    made = {
        "format_version": 1,
        "kind": "preferences",
        "form": "preference",
        "token_dtype": "uint32",
        "mask_dtype": "uint8",
    }
    made |= {"vocab_size": size, "splits": {"train": split, "val": split}, "dropped": {}, "files": files}
    return dict(with_manifest_hash(made))


def edit(folder: Path, rule: str, every: int) -> None:
    """Other ids in the prompts of rejected sides, or prompts that fill a row."""
    index, tokens = (
        np.fromfile(folder / "episodes.idx", "<u8").reshape(-1, 2),
        np.fromfile(folder / "tokens.bin", "<u4"),
    )
    records = np.fromfile(folder / "completions.bin", COMPLETION)
    ids, mask = [], np.fromfile(folder / "mask.bin", "u1")
    masks, lengths = [], []
    for number, (start, length) in enumerate(index.tolist()):
        own, trained = tokens[start : start + length].copy(), mask[start : start + length]
        if (number // 2) % every == 0 and rule == "prompt-mismatch" and number % 2:
            own[records["prompt_length"][number] - 7] += 1  # inside the question
        if (number // 2) % every == 0 and rule == "chosen-shorter-than-prompt":
            at = int(records["prompt_length"][number]) - 6
            own = np.concatenate([own[:at], np.repeat(own[at : at + 1], 410), own[at + 1 :]])
            trained = np.concatenate([trained[:at], np.zeros(410, "u1"), trained[at + 1 :]])
            records["prompt_length"][number] += 409
        ids.append(own)
        masks.append(trained)
        lengths.append(len(own))
    ends = np.cumsum(lengths)
    np.concatenate(ids).tofile(folder / "tokens.bin")
    np.concatenate(masks).tofile(folder / "mask.bin")
    np.stack([ends - lengths, lengths], axis=1).astype("<u8").tofile(folder / "episodes.idx")
    records.tofile(folder / "completions.bin")


def cases() -> list[Case]:
    return [
        Case(rule, family, partial(made, rule, share, family), share > 0, also)
        for rule, _, also in PLANTS
        for family in FAMILIES
        for share in (1.0, 0.1, 0.0)
    ]
