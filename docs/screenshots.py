"""The pictures of docs/explorer.md: the explorer on the bundled chats, seen by a headless Chromium.

Run it from the repository: `python -m docs.screenshots`; with `all` it makes every view in both widths, light and dark.
It needs the extras `explorer` and `dev`, a Chromium, and the tokenizers of the tests ($NGPT_ASSETS).
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

import niels_gpt as ng
from niels_gpt.doctor import diagnose
from niels_gpt.explorer.api import Explorer, open_dataset
from niels_gpt.explorer.findings import read_findings
from niels_gpt.explorer.renderer_list import RendererList
from niels_gpt.explorer.server import HOST, bound, server_of
from niels_gpt.samples import chats_file

DOCS = Path(__file__).parent
ASSETS = Path(os.environ.get("NGPT_ASSETS") or Path(__file__).parents[2] / "shared" / "assets")
TOKENIZERS = ("qwen3-8b", "llama-3.1-8b-instruct", "glm-5", "mistral-nemo-instruct-2407")


def formats(page: Any) -> None:
    """Six formats side by side."""
    for name in ("gemma", "chatml", "template of glm-5"):
        page.locator(".chip", has_text=name).first.click()
    for name in ("qwen3@qwen3-8b", "llama-3@llama-3.1-8b-instruct", "@glm-5", "raw@qwen3-8b"):
        page.wait_for_selector(f'[data-renderer$="{name}"] .t')
    page.locator('[data-renderer="qwen3@qwen3-8b"] .t.trained').nth(6).hover()


def mask(page: Any) -> None:
    """Reasoning and a tool call, a token under the cursor."""
    page.get_by_label("Begin with a sample").select_option("a tool call")
    page.locator(".tokens", has_text="umbrella").wait_for()
    page.locator(".tokens .t.trained").nth(14).hover()


def dataset(page: Any) -> None:
    """A row of the samples."""
    page.get_by_text("From all 100 rows.").wait_for()
    page.locator('tr[data-row="2"] button').click()
    page.wait_for_selector(".detail .t.trained")
    page.locator(".detail .tokens .t.trained").nth(20).hover()


def training(page: Any) -> None:
    """Packed rows."""
    page.get_by_role("radio", name="As trained").click()
    page.get_by_label("Block size, tokens").fill("1000")
    page.get_by_label("Block size, tokens").press("Tab")
    page.locator(".training .lead", has_text="1,001").wait_for()
    page.wait_for_selector(".training .detail .t.trained")


def drift(page: Any) -> None:
    """A family against a template that somebody has changed."""
    page.locator(".verdict", has_text="The same ids").wait_for()
    page.get_by_text("edit the template").last.click()
    page.get_by_label("Right: a chat template of your own").fill(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    page.get_by_label("Right: a chat template of your own").press("Tab")
    page.locator(".verdict", has_text="First difference").wait_for()


def findings(page: Any) -> None:
    """What the doctor found in the bundled conversations."""
    page.wait_for_selector(".finding")


VIEWS: dict[str, tuple[str, Callable[[Any], None]]] = {
    "explorer-formats": ("formats", formats),
    "explorer-mask": ("mask", mask),
    "explorer-dataset": ("dataset", dataset),
    "explorer-training": ("dataset", training),
    "explorer-drift": ("drift", drift),
    "explorer-findings": ("findings", findings),
}
SIZES = {"": (1320, 820), "-390": (390, 844)}
SCHEMES = {"": "light", "-dark": "dark"}
# Those of the page; the others are made if they are named, to look at.
SHOWN = (*VIEWS, "explorer-mask-dark", "explorer-mask-390", "explorer-dataset-390-dark", "explorer-findings-390")


@contextmanager
def served(explorer: Explorer) -> Iterator[str]:
    """The address of the page of an explorer."""
    listening = bound(0)
    server = server_of(explorer)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    yield f"http://{HOST}:{listening.getsockname()[1]}"
    server.should_exit = True
    thread.join(10)
    explorer.close()


def main(wanted: list[str], place: Path = DOCS) -> None:
    """Write the pictures of the page, those that are named, or `all` there are."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None or not ASSETS.is_dir():
        sys.exit("needs a Chromium (apt-get install chromium) and tokenizers ($NGPT_ASSETS)")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        report, chats, episodes = Path(folder) / "report.json", Path(folder) / "chats.jsonl", Path(folder) / "chats"
        chats.write_bytes(chats_file().read_bytes())
        report.write_text(json.dumps(diagnose(chats, tokenizer=ASSETS / TOKENIZERS[0], max_length=512).to_json()))
        ng.build(chats, episodes, tokenizer=str(ASSETS / TOKENIZERS[0]))
        renderers = RendererList([str(ASSETS / name) for name in TOKENIZERS])
        of_chats = stack.enter_context(
            served(Explorer(renderers, open_dataset(chats, renderers), read_findings(report)))
        )
        of_episodes = stack.enter_context(served(Explorer(renderers, open_dataset(episodes, renderers))))
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        every = [f"{view}{size}{scheme}" for view in VIEWS for size in SIZES for scheme in SCHEMES]
        for name in every if wanted == ["all"] else wanted or SHOWN:
            scheme = "-dark" if name.endswith("-dark") else ""
            size = "-390" if "-390" in name else ""
            view, prepare = VIEWS[name.removesuffix(scheme).removesuffix(size)]
            width, height = SIZES[size]
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=SCHEMES[scheme])
            page.set_default_timeout(60_000)
            page.goto(f"{of_episodes if prepare is training else of_chats}/#{view}")
            prepare(page)
            page.wait_for_timeout(500)
            page.screenshot(path=place / f"{name}.png")
            page.close()
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
