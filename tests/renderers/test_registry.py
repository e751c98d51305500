"""Which renderer a tokenizer gets, and which options are refused."""

from __future__ import annotations

import gc
import json
import random
import weakref
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.errors import MessageError, TokenizerError, UsageError
from niels_gpt.renderers.base import Renderer, create_renderer
from niels_gpt.renderers.configs import (
    AutoRendererConfig,
    DefaultRendererConfig,
    Qwen3RendererConfig,
)
from niels_gpt.renderers.families import all_families
from niels_gpt.renderers.families.qwen3 import Qwen3Renderer
from niels_gpt.renderers.family import Family
from niels_gpt.renderers.registry import FAMILIES, config_from_name
from niels_gpt.renderers.template.renderer import DefaultRenderer, TemplateRenderer
from tests.renderers.small import CHATML, assistant, conversation, user
from tests.renderers.sweeps import chats
from tests.renderers.tiny_families import folder_of

HOUSE = [user(), assistant()]


def model(folder: Path, config: Any = None, template: str | None = CHATML) -> Path:
    """A model's directory with Qwen's tiny tokenizer."""
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_bytes((folder_of("qwen3") / "tokenizer.json").read_bytes())
    told = {"eos_token": "<|im_end|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(told | ({"chat_template": template} if template else {})))
    if config is not None:
        (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return folder


def named(name: str) -> Any:
    """A transformers tokenizer that says it was loaded by this name."""
    transformers = pytest.importorskip("transformers")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder_of("qwen3") / "tokenizer.json"),
        name_or_path=name,
        eos_token="<|im_end|>",
        chat_template=CHATML,
    )


# ---- auto


@pytest.mark.parametrize("name", ["Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B"])
def test_auto_by_exact_name(name: str) -> None:
    renderer = create_renderer(named(name))
    assert type(renderer) is Qwen3Renderer
    assert isinstance(renderer, Renderer)
    assert renderer.config == Qwen3RendererConfig()


@pytest.mark.parametrize("name", ["qwen3-8b", "Qwen3-8B", "", "Qwen", "./Qwen/Qwen3-8B"])
def test_auto_by_another_name_is_the_template(name: str) -> None:
    renderer = create_renderer(named(name))
    assert type(renderer) is DefaultRenderer
    assert renderer.text(HOUSE) == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\nhello world<|im_end|>\n"


def test_a_directory_that_is_called_like_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fine-tune often has another template than the model whose name its folder has."""
    folder = model(tmp_path / "Qwen" / "Qwen3-8B")
    assert type(create_renderer(folder)) is DefaultRenderer
    assert type(create_renderer(str(folder))) is DefaultRenderer
    monkeypatch.chdir(tmp_path)
    assert type(create_renderer("Qwen/Qwen3-8B")) is DefaultRenderer
    assert type(create_renderer(Path("Qwen/Qwen3-8B"))) is DefaultRenderer
    assert type(create_renderer("Qwen/Qwen3-8B", "qwen3")) is Qwen3Renderer
    transformers = pytest.importorskip("transformers")
    loaded = transformers.AutoTokenizer.from_pretrained("Qwen/Qwen3-8B")
    assert type(create_renderer(loaded)) is DefaultRenderer


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="found nothing there"):
        create_renderer(tmp_path / "gone")
    with pytest.raises(UsageError, match="no renderer 'qwn3'"):  # said before the tokenizer is looked for
        create_renderer(tmp_path / "gone", "qwn3")


# ---- images


def test_a_template_loses_no_images(tmp_path: Path) -> None:
    """Of a model with images that is no family: texts are rendered, an image is refused with its message."""
    renderer = create_renderer(model(tmp_path / "model", {"model_type": "any", "vision_config": {}}))
    assert type(renderer) is DefaultRenderer
    assert renderer.render([user()]).attribution == "full"
    with pytest.raises(MessageError, match="a template says where an image is"):
        renderer.render([user(content=[{"type": "image", "image": "a.png"}])])


# ---- names and options


@pytest.mark.parametrize(
    ("name", "near"), [("qwen33", "qwen3"), ("glm5", "glm-5"), ("Template", "template"), ("", None)]
)
def test_names_that_are_none(name: str, near: str | None) -> None:
    for ask in (config_from_name, lambda name: create_renderer(folder_of("qwen3"), name)):
        with pytest.raises(UsageError, match="no renderer '" + name + "'; expected one of auto, default") as caught:
            ask(name)
        assert ("did you mean" in str(caught.value)) is (near is not None)
        assert near is None or str(caught.value).endswith(f"did you mean {near!r}?")


def test_options_that_do_not_go_together(tmp_path: Path) -> None:
    folder = model(tmp_path / "model")
    for renderer in ("auto", "template", DefaultRendererConfig()):
        for option in ("preserve_all_thinking", "preserve_thinking_between_tool_calls"):
            with pytest.raises(UsageError, match=f"{option} needs a renderer by family"):
                create_renderer(folder, renderer, **{option: True})
    for option in ({"tool_parser": "qwen3"}, {"reasoning_parser": "think"}):
        with pytest.raises(UsageError, match="qwen3 reads completions itself"):
            create_renderer(folder, "qwen3", **option)
    with pytest.raises(UsageError, match="a chat template has no preserve_all_thinking; name a family"):
        create_renderer(folder, AutoRendererConfig(preserve_all_thinking=True))
    # What says the defaults out loud asks for nothing.
    for config in (
        AutoRendererConfig(preserve_all_thinking=False),
        AutoRendererConfig(**AutoRendererConfig().model_dump()),
    ):
        assert type(create_renderer(folder, config)) is DefaultRenderer


# ---- the hub

ASK = """
import json, sys
from niels_gpt.errors import NielsError
from niels_gpt.renderers.base import create_renderer, create_renderer_pool
for name, renderer in json.loads(sys.argv[1]):
    try:
        made = create_renderer(name, renderer)
        print(json.dumps([type(made).__name__, len(made.render_ids([{"role": "user", "content": "hi"}]))]))
    except NielsError as error:
        print(json.dumps([type(error).__name__, str(error)]))
pool = create_renderer_pool("Qwen/Qwen3-8B", size=2)
with pool.checkout() as one, pool.checkout() as other:
    print(json.dumps([type(one).__name__, one.encoder is other.encoder]))
"""


def test_models_on_the_hub(tmp_path: Path) -> None:
    """A real server on 127.0.0.1 stands in for the hub."""
    pytest.importorskip("transformers")
    from tests.conftest import run_python
    from tests.hub import Repository
    from tests.tokenizer.hub import ModelHub

    def files(name: str, config: Any) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in model(tmp_path / name, config).iterdir()}

    repositories = {
        "Qwen/Qwen3-8B": Repository(files("known", {"model_type": "qwen3"})),
        "me/tuned": Repository(files("tuned", {"model_type": "qwen3"})),
        "me/bare": Repository(files("bare", None)),
    }
    asked = [("Qwen/Qwen3-8B", "auto"), ("me/tuned", "auto"), ("me/tuned", "qwen3"), ("me/bare", "auto")]
    asked += [("me/gone", "auto")]
    with ModelHub(repositories) as hub:
        environment = hub.environment(tmp_path / "home", longest_sleep=0.02)
        done = run_python("-c", ASK, json.dumps(asked), environment=environment)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    expected = ["Qwen3Renderer", "DefaultRenderer", "Qwen3Renderer", "DefaultRenderer"]
    assert [kind for kind, _ in told] == [*expected, "SourceError", "Qwen3Renderer"]
    assert "me/gone" in told[4][1]
    assert told[5][1] is True, "a pool has one renderer, with one tokenizer"


# ---- how long they live


def test_nothing_keeps_a_renderer_that_is_used_no_more() -> None:
    """An encoder of a real vocabulary takes up to 600 MB. What is remembered of equal tools must not hold it.

    Several renderers at once, because collecting garbage takes longer than all that they do.
    """
    alive = {family: used(family) for family in ("qwen3", "glm-5", "gpt-oss", "kimi-k2.5", "template")}
    gc.collect()
    assert not [family for family, refs in alive.items() if any(ref() is not None for ref in refs)]


def used(family: str) -> list[weakref.ref[Any]]:
    """A renderer that has done all that it can, and its encoder."""
    if family == "template":
        renderer: Any = TemplateRenderer(folder_of("qwen3"), template=CHATML, on_unwritten="drop")
        rows: Any = [(conversation(random.Random(seed)), None) for seed in range(20)]
    else:
        renderer = create_renderer(folder_of(family), {"name": family, "on_unwritten": "drop"})
        rows = chats(family, 20)
    for messages, tools in rows:
        rendered = renderer.render(messages, tools=tools)
        renderer.parse_response(rendered.token_ids, tools=tools)
    renderer.render_many([[user()], [user(), assistant()]])
    renderer.bridge_to_next_turn(rendered.token_ids, renderer.get_stop_token_ids()[:1], [user()])
    return [weakref.ref(renderer), weakref.ref(renderer.encoder)]


# ---- one list of families


def test_the_list_of_families_has_all_of_them() -> None:
    """A grammar that is in `families/` and not in the list could not be named by anybody."""
    modules = [path.stem for path in Path(all_families.__file__).parent.glob("*.py")]
    defined = {
        one
        for module in modules
        for one in vars(import_module(f"niels_gpt.renderers.families.{module}")).values()
        if isinstance(one, type) and issubclass(one, Family) and "name" in vars(one)  # a base class has none
    }
    assert defined - set(FAMILIES.values()) == set()
