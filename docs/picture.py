"""Draws docs/show.svg, the README's picture, from the demo's cache: python docs/picture.py"""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.text import Text

from niels_gpt.cli.demo import run_demo
from niels_gpt.display.table import example_text
from niels_gpt.explorer.example_view import view_example
from niels_gpt.progress import SILENT

EXAMPLE_TOKENS = 42
SHOWN = 48


def main(target: Path = Path(__file__).parent / "show.svg") -> None:
    """Run the demo aside and save one of its examples as a picture."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        run_demo(out, seed=42, console=Console(file=io.StringIO()), progress=SILENT)
        lengths = np.diff(np.load(out / "sft/chats/train_idx.npy"))
        view = view_example(out / "sft/chats", int(np.flatnonzero(lengths == EXAMPLE_TOKENS)[0]), T=SHOWN)
    console = Console(record=True, width=84, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(example_text(view)), soft_wrap=True)
    console.save_svg(str(target), title="niels-gpt show sft/chats 35 --sequence-length 48", unique_id="niels-gpt-show")
    target.write_text(target.read_text().replace(folder + "/", ""))


if __name__ == "__main__":
    main()
