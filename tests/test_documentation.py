"""The code of the pages in `docs`, run as it stands, and the pages that a script writes, written again."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from niels_gpt.cache.build_cache import build_pretrain_cache, build_sft_cache
from niels_gpt.cache.formats import DEFAULT_SHARD_BYTES, UNLIMITED_TOKENS
from niels_gpt.episodes import build_episodes
from niels_gpt.samples import chats_file, notes_dir
from niels_gpt.sources.chat_files import chat_files
from niels_gpt.sources.files.inputs import Record, read_jsonl
from niels_gpt.sources.text_files import text_files
from niels_gpt.tokenizer import SentencePieceTokenizer
from tests.assets import needs_assets
from tests.conftest import REPOSITORY

MODELS = {  # as the pages name them, and the families of the tiny tokenizers in their places
    "Qwen3-8B": "qwen3",
    "Qwen3-VL-4B-Instruct": "qwen3-vl",
    "Qwen2.5-0.5B-Instruct": "qwen2.5",
    "GLM-5": "glm-5",
    "Laguna-XS.2": "laguna-xs.2",
    "Nemotron-3-Nano": "nemotron-3",
}


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Path:
    """What the pages name: models (tiny tokenizers of the families), chats, pairs, a picture, datasets."""
    pytest.importorskip("tokenizers")
    from tests.preferences.made import pairs, write_rows
    from tests.renderers import tiny_images
    from tests.renderers.small import CHATML
    from tests.renderers.tiny_families import folder_of

    folder = tmp_path_factory.mktemp("pages")
    (folder / "models").mkdir()
    for model, family in MODELS.items():
        shutil.copytree(folder_of(family), folder / "models" / model)
    (folder / "models/Qwen3-8B/chat_template.jinja").write_text(CHATML, encoding="utf-8")
    tiny_images.qwen_processor().save_pretrained(folder / "models/Qwen3-VL-4B-Instruct")
    tiny_images.picture(200, 90).save(folder / "receipt.png")
    write_rows(folder / "pairs.jsonl", pairs(40))
    shutil.copytree(tokenizer_dir, folder / "tokenizer")
    rows = [record.value for record in read_jsonl(chats_file()) if isinstance(record, Record)]
    sources = [row | {"source": "web" if number % 4 == 0 else "chats"} for number, row in enumerate(rows * 2)]
    (folder / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sources))
    tokenizer = SentencePieceTokenizer(tokenizer_dir / "spm.model")
    build_episodes(chat_files([chats_file()]).iterate(), folder / "episodes/more", encoder=tokenizer)
    sft = folder / "cache/sft/chats"
    build_sft_cache(chat_files([chats_file()]).iterate(), sft, tokenizer=tokenizer, val_frac=0.1, seed=1)
    budget = {"max_train_tokens": UNLIMITED_TOKENS, "max_val_tokens": UNLIMITED_TOKENS, "val_frac": 0.05}
    build_pretrain_cache(
        text_files([notes_dir()]).iterate(),
        folder / "cache/pretrain/notes",
        tokenizer=tokenizer,
        shard_bytes=DEFAULT_SHARD_BYTES,
        seed=1,
        shuffle_buffer=None,
        **budget,
    )
    return folder


RUN = (
    "README.md",
    "docs/index.md",
    "docs/renderers.md",
    "docs/attribution.md",
    "docs/add_a_source.md",
    "docs/episodes.md",
    "docs/preferences.md",
    "docs/exports.md",
    "docs/trainers.md",
    "docs/doctor.md",
)


def run_blocks(page: str, names: dict[str, Any]) -> dict[str, Any]:
    """All blocks of a page in order, in one namespace, as a reader would type them; what they named."""
    found = blocks(REPOSITORY / page)
    assert found, page
    for number, block in enumerate(found):
        block = block.replace("Qwen/Qwen3-8B", "~/models/Qwen3-8B").replace("~", str(Path.home()))
        exec(compile(block, f"{page}, block {number}", "exec", dont_inherit=True), names)  # our own page, on purpose
    return names


@pytest.mark.parametrize("page", RUN)
def test_all_blocks_of_a_page_run(page: str, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    if page in ("docs/exports.md", "docs/trainers.md"):
        pytest.importorskip("datasets")
        shutil.copytree("episodes/more", "episodes/chats")
    if page == "docs/doctor.md":
        for library in ("transformers", "accelerate"):
            pytest.importorskip(library)
        from tests.doctor.test_watch import by_value, tiny_model, trainer_of

        names |= {"trainer": trainer_of(tmp_path, by_value), "model": tiny_model()}
    run_blocks(page, names)
    if page == "docs/preferences.md":
        assert names["batch"].input_ids.shape == (8, 512)
        assert names["manifest"]["splits"]["train"]["rows"] == 36
    if page == "docs/add_a_source.md":
        assert (tmp_path / "episodes/sums/episodes.json").is_file()


def test_the_page_on_reinforcement_learning(prepared: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With a tiny model that also samples: the policy that sampled is trained, so all ratios are 1."""
    torch = pytest.importorskip("torch")
    from tests.test_rollouts import TinyModel, sampled

    monkeypatch.setenv("HOME", str(prepared))
    generator = torch.Generator().manual_seed(1)
    model = TinyModel(positions=256, vocab_size=300_000)

    class Engine:
        def sample(self, ids: Any, n: int) -> list[Any]:
            return [sampled(model, list(ids), 3 + number, generator) for number in range(n)]

    scored = {"engine": Engine(), "model": model, "score": lambda turn, _: len(turn["completion_ids"])}
    names = run_blocks("docs/rl.md", scored)
    mask = names["batch"].mask
    assert torch.allclose(names["ratio"][mask], torch.ones(()), atol=1e-4)
    assert mask.sum() == 2 * (3 + 4 + 5 + 6)
    assert abs(names["advantages"].sum()) < 1e-6  # of a group


PAGES = sorted((REPOSITORY / "docs").rglob("*.md")) + [
    REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md", "examples/README.md")
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_what_pages_name_exists(page: Path) -> None:
    """Links, files of the repository, modules and their names: pages go out of date silently otherwise."""
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)#\s]+)(?:#[^)]*)?\)", text):
        assert (page.parent / target).exists(), f"link to {target}"
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    ours = r"`((?:niels_gpt|tests|docs|benchmarks|examples)/[\w./]+\.(?:py|c|h|md|toml|js|css))`"
    for path in re.findall(ours, prose):
        assert (REPOSITORY / path).is_file(), path
    if page.name in ("glossary.md", "architecture.md"):  # their paths are below niels_gpt/
        for path in re.findall(r"`((?!tests/)\w[\w/]*(?:\.py|\.c|\.css|/))`", prose):
            places = (REPOSITORY / path, REPOSITORY / "niels_gpt" / path)
            assert path == "niels_gpt/" or any(place.exists() for place in places), path
    for dotted in re.findall(r"`(niels_gpt(?:\.\w+)+)(?!\w*\.\{)", prose):
        if (REPOSITORY / dotted.replace(".", "/")).exists() or (REPOSITORY / f"{dotted.replace('.', '/')}.py").exists():
            continue
        module, _, name = dotted.rpartition(".")
        assert hasattr(importlib.import_module(module), name), dotted
    for path, names in re.findall(r"^\| `([\w/]+\.py)` \| (`\w.*?) \|", prose, flags=re.MULTILINE):
        if not (place := REPOSITORY / "niels_gpt" / path).is_file() and page.parent.name != "docs":
            continue  # a table of examples or benchmarks
        code = place.read_text(encoding="utf-8")
        for name in re.findall(r"`(?:\w+\.)*(\w+)`", names):
            assert re.search(rf"^\s*(?:def|class) {name}\b|^{name}\b", code, flags=re.MULTILINE), f"{path}: {name}"


def test_the_places_to_change_things_are_there() -> None:
    """`file.py`: `name` in the table "Where would you change": the file defines the name."""
    page = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.partition("## Where would you change")[2].partition("\n## ")[0]
    places = re.findall(r"`([\w/]+\.py)`: ((?:`[\w.]+`(?:, )?)+)|`([\w/]+\.py)`, `([\w.]+)`", table)
    assert len(places) > 12
    for path, names, other_path, other in places:
        code = (REPOSITORY / "niels_gpt" / (path or other_path)).read_text(encoding="utf-8")
        for name in re.findall(r"`(?:\w+\.)*(\w+)`", names or f"`{other}`"):
            assert re.search(rf"^\s*(?:def|class) {name}\b|^{name}\b", code, flags=re.MULTILINE), f"{path}: {name}"


def floors_of(drawing: str) -> list[str]:
    """The floors of a drawing with a room per line, as contracts write them; `|` continues the floor before."""
    floors: list[str] = []
    for line in drawing.splitlines():
        room = re.split(r"\s{2,}", line)[0]
        if room.startswith("| "):
            floors[-1] += f" {room}"
        else:
            floors.append(room)
    return floors


def test_the_floors_on_the_page_are_those_of_the_contracts() -> None:
    """docs/architecture.md draws the layers that import-linter checks: of the package, then of renderers."""
    contracts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = {contract["containers"][0]: contract["layers"] for contract in contracts if "containers" in contract}
    drawings = re.findall(r"^```text\n(.*?)^```", (REPOSITORY / "docs/architecture.md").read_text(), re.M | re.S)
    assert [floors_of(drawing) for drawing in drawings] == [layers["niels_gpt"], layers["niels_gpt.renderers"]]


def test_the_page_on_families_is_what_the_families_write() -> None:
    pytest.importorskip("tokenizers")
    from docs.families import page

    committed = (REPOSITORY / "docs" / "families.md").read_text(encoding="utf-8")
    assert committed == page(), "write it again: python -m docs.families"


@pytest.mark.slow
@needs_assets
def test_the_page_on_templates_is_what_is_proven() -> None:
    """All cells but the times, which are measured."""
    from docs.templates import PAGE, page

    def untimed(text: str) -> list[str]:
        return [re.sub(r"[\d.]* \|$", "|", line) if line.startswith("| `") else line for line in text.splitlines()]

    committed = PAGE.read_text(encoding="utf-8")
    written = page(timed=False, said=lambda name: None)
    assert untimed(committed) == untimed(written), "write it again: python -m docs.templates"


@needs_assets
@pytest.mark.parametrize("name", ["qwen3-8b", "templates/trl-phi3", "templates_wild/hfjs--Qwen-Qwen1.5-72B-Chat"])
def test_a_row_of_the_page_on_templates(name: str) -> None:
    from docs.templates import PAGE, row

    (*cells, _), _ = row(name, timed=False)
    line = f"| {' | '.join(cells)} |"
    assert any(written.startswith(line) for written in PAGE.read_text(encoding="utf-8").splitlines()), line


def test_the_page_on_adding_a_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its blocks run, and its family has the properties that all families have."""
    pytest.importorskip("tokenizers")
    from niels_gpt.renderers.registry import FAMILIES
    from tests.golden import golden_text
    from tests.golden.conversations import CHATS
    from tests.renderers import test_bridges, test_damage, test_forgery, test_properties, test_reading
    from tests.renderers.tiny_families import TOKENS, Tokens

    monkeypatch.chdir(tmp_path)
    found = blocks(REPOSITORY / "docs" / "add_a_family.md")
    assert len(found) >= 5
    names: dict[str, Any] = {"__name__": "page"}  # read as a module of its own: no `annotations` from here
    for number, block in enumerate(found):
        exec(compile(block, f"docs/add_a_family.md, block {number}", "exec", dont_inherit=True), names)
    monkeypatch.setitem(sys.modules, "page", SimpleNamespace(**names))  # type: ignore[arg-type]
    monkeypatch.setitem(FAMILIES.places, "radio", ("page", "RadioRenderer"))
    tokens = Tokens(controls=("<|over|>", "<|from|>", "<|says|>"), added=names["added"], holds={"inline": False})
    monkeypatch.setitem(TOKENS, "radio", tokens)
    for split in (True, False):
        test_properties.test_ids_are_those_of_the_text("radio", (), split, 25)
        test_properties.test_every_token_has_the_facts_of_its_first_character("radio", (), split)
        test_forgery.test_bodies_never_become_control_tokens("radio", split)
    test_bridges.test_bridges_are_what_rendering_gives("radio", (), 14)
    test_reading.test_completions_are_read_back("radio", ())
    test_bridges.test_bridges_refuse_what_they_cannot_take("radio", ())
    assert golden_text("radio", CHATS["plain"]) in (REPOSITORY / "docs" / "add_a_family.md").read_text(encoding="utf-8")
    test_reading.test_cut_completions_are_read_as_far_as_they_go("radio")
    test_bridges.test_bridges_over_tool_cycles_equal_the_whole_rendered_again("radio")
    test_forgery.test_labels_never_become_control_tokens("radio")
    test_damage.test_damaged_completions("radio", 200)


def test_the_page_on_the_doctor_lists_all_rules_and_the_fields_of_a_report() -> None:
    from niels_gpt.doctor import RULES, diagnose

    text = (REPOSITORY / "docs" / "doctor.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `([a-z-]+)` \| (\w+) \| ([\w, ]+) \| (.+) \|$", text, flags=re.MULTILINE)
    assert listed == [(rule.id, rule.severity, ", ".join(rule.applies), rule.title) for rule in RULES.values()]
    (block,) = re.findall(r"^```json\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    shown, real = json.loads(block), diagnose([{"input_ids": [1, 2], "labels": [-100, -100]}]).to_json()
    assert shown.keys() == real.keys()
    for level in ("findings", "evidence", "window"):
        shown, real = shown[level][0], real[level][0]
        assert shown.keys() == real.keys()
