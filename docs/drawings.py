"""Draws the pictures of docs/concepts from what the package computes on the bundled samples: python -m docs.drawings"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

import numpy as np

import niels_gpt as ng
from examples.practice_model import write_model
from niels_gpt.config import TrainingConfig
from niels_gpt.display.rows import visible
from niels_gpt.episodes import GPTEpisodeDataLoader
from niels_gpt.format.gather import shifted
from niels_gpt.samples import chats_file

HERE: Final = Path(__file__).parent / "concepts"
# Fill, line and letters of each kind of token, near to those of terminals and notebooks.
COLOURS: Final = {
    "trained": ("#c8ecd2", "#2da44e", "#111"),
    "context": ("#f1f3f5", "#c3c9d0", "#111"),
    "scaffold": ("#efe6fa", "#a97fd6", "#5b2d91"),
    "padding": ("#ffffff", "#d9d9d9", "#999"),
    "plain": ("#ffffff", "#ffffff", "#111"),
}
LETTER, BOX, GAP = 7.3, 24, 4  # pixels: width of a letter at 12 px, height of a box, between boxes
CHAT: Final = [
    {"role": "user", "content": "Name a tall bird."},
    {"role": "assistant", "content": "An ostrich."},
    {"role": "user", "content": "And a small one?"},
    {"role": "assistant", "content": "A wren."},
]
CONVERSATIONS, LENGTH = 16, 1024  # of the picture of packing
Box = tuple[float, float, float, str, str]  # x, y, width, text, kind


def svg(boxes: Iterable[Box], title: str) -> str:
    """Boxes with texts as a picture, as high and wide as they need."""
    found = list(boxes)
    width = max(x + wide for x, _, wide, _, _ in found) + GAP
    height = max(y for _, y, _, _, _ in found) + BOX + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'font-family="ui-monospace, Menlo, monospace" font-size="12" role="img"><title>{escape(title)}</title>',
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#fff"/>',
    ]
    for x, y, wide, text, kind in found:
        fill, line, letters = COLOURS[kind]
        parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{BOX}" rx="3" fill="{fill}" stroke="{line}"/>'
        )
        if text:
            middle = f'x="{x + wide / 2:.1f}" y="{y + 16:.1f}" text-anchor="middle"'
            parts.append(f'<text {middle} fill="{letters}">{escape(text)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _texts(renderer: Any, ids: Sequence[int]) -> list[str]:
    return [visible(renderer.encoder.decode([token])) for token in ids]


def _legend(y: float, kinds: Sequence[str]) -> list[Box]:
    boxes: list[Box] = []
    for kind in kinds:
        x = boxes[-1][0] + boxes[-1][2] + GAP if boxes else GAP
        boxes.append((x, y, (len(kind) + 2) * LETTER, kind, kind))
    return boxes


def mask(folder: Path) -> str:
    """Every token of a conversation, in the colour of its kind, turn by turn."""
    renderer = ng.renderer(str(folder / "model"))
    rendered = renderer.render(CHAT)
    boxes, turn, y, x = [], -2, GAP, float(GAP)
    facts = (rendered.message_indices, rendered.labels(), rendered.is_content)
    for text, message, label, content in zip(_texts(renderer, rendered.token_ids), *facts, strict=True):
        if message != turn and turn != -2:
            y, x = y + BOX + 3 * GAP, float(GAP)
        turn = message
        kind = "trained" if label != -100 else "context" if content else "scaffold"
        boxes.append((x, float(y), (len(text) + 1) * LETTER, text, kind))
        x = boxes[-1][0] + boxes[-1][2] + GAP
    return svg([*boxes, *_legend(y + 2 * BOX, ("trained", "context", "scaffold"))], "tokens of a conversation")


def shift(folder: Path) -> str:
    """One row of a batch: inputs, the next token below each, and where the loss counts."""
    renderer = ng.renderer(str(folder / "model"))
    rendered = renderer.render(CHAT[:2])
    x, y = shifted(np.array([rendered.token_ids]))
    counts = np.array(rendered.labels())[1:] != -100
    start = int(np.argmax(counts)) - 5  # the end of the header, and the answer
    columns = [_texts(renderer, row[0, start:].tolist()) for row in (x, y)]
    labels = ("x: inputs", "y: targets", "mask")
    left = 11 * LETTER
    boxes: list[Box] = [(GAP, GAP + line * (BOX + GAP), left, text, "plain") for line, text in enumerate(labels)]
    at = left + 2 * GAP
    for seen, wanted, counted in zip(*columns, counts[start:].tolist(), strict=True):
        wide = (max(len(seen), len(wanted)) + 1) * LETTER
        kind = "trained" if counted else "context"
        for line, (text, of) in enumerate(((seen, "context"), (wanted, kind), ("1" if counted else "0", kind))):
            boxes.append((at, float(GAP + line * (BOX + GAP)), wide, text, of))
        at += wide + GAP
    return svg(boxes, "inputs, targets and mask")


def packing(folder: Path) -> str:
    """The rows of an epoch, each conversation a box as wide as it is long, padded and packed."""
    boxes: list[Box] = []
    y = float(GAP)
    for packed in (False, True):
        rows = _lengths(folder, packed)
        full = sum(map(sum, rows)) / (len(rows) * LENGTH)
        name = "packed" if packed else "one conversation a row"
        boxes.append((GAP, y, 400, f"{name}: {len(rows)} rows, {full:.0%} full", "plain"))
        for row in rows:
            y += BOX + 1
            x = float(GAP)
            for number, length in enumerate(row):
                boxes.append((x, y, length * 0.6, str(length), ("trained", "scaffold", "context")[number % 3]))
                x += length * 0.6
            boxes.append((x, y, (LENGTH - sum(row)) * 0.6, "", "padding"))
        y += 2 * BOX
    return svg(boxes, "rows with and without packing")


def _lengths(folder: Path, packed: bool) -> list[list[int]]:
    """The tokens of each text in each row, of all rows of an epoch."""
    if not packed:  # the index has start and length of each episode
        index = np.fromfile(folder / "episodes" / "train" / "episodes.idx", dtype="<u8").reshape(-1, 2)
        return [[length] for length in index[:, 1].tolist()]
    config = TrainingConfig(batch_size=1, block_size=LENGTH)
    loader = GPTEpisodeDataLoader(config, dataset_dir=folder / "episodes", pad_token_id=0, packing=True)
    segments = [batch.segment_ids[0] for batch in loader.evaluation_batches("train") if batch.segment_ids is not None]
    return [row.bincount()[1:].tolist() for row in segments]


def order(folder: Path) -> str:
    """Which rows come in which step, on one rank and on two; the numbers are those of the episodes."""
    boxes: list[Box] = [(110 + step * 112, GAP, 104, f"step {step}", "plain") for step in range(4)]
    y = float(GAP + BOX)
    for ranks in (1, 2):
        for rank in range(ranks):
            boxes.append((GAP, y, 100, f"rank {rank} of {ranks}", "plain"))
            config = TrainingConfig(batch_size=4 // ranks, block_size=LENGTH)
            options: dict[str, Any] = {"rank": rank, "world_size": ranks, "pad_token_id": 0, "epoch_seed": 1}
            loader = GPTEpisodeDataLoader(config, dataset_dir=folder / "episodes", **options)
            for step in range(4):
                for place, episode in enumerate(loader.next_batch().episodes.tolist()):
                    column = 110 + step * 112 + place * 26
                    boxes.append((column, y, 25, str(episode), "context" if rank else "trained"))
            y += BOX + GAP
        y += 2 * GAP
    return svg(boxes, "rows of each step and rank")


PICTURES: Final[dict[str, Callable[[Path], str]]] = {
    "mask.svg": mask,
    "shift.svg": shift,
    "packing.svg": packing,
    "order.svg": order,
}


def drawn() -> dict[str, str]:
    """All pictures, by the names of their files."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder / "model")
        few = chats_file().read_text(encoding="utf-8").splitlines(keepends=True)[:CONVERSATIONS]
        (folder / "chats.jsonl").write_text("".join(few), encoding="utf-8")
        ng.build(folder / "chats.jsonl", folder / "episodes", str(folder / "model"), val_frac=0.0)
        return {file: draw(folder) for file, draw in PICTURES.items()}


if __name__ == "__main__":
    for file, text in drawn().items():
        (HERE / file).write_text(text, encoding="utf-8")
