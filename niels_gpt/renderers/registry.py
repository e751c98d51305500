"""Every renderer, and the functions that make one.

`create_renderer` takes what programs name, `RendererOptions` what a command line does. "auto" is decided in
`automatic.py`; a new family is registered in `families/all_families.py`, one by template in `template/known.py`.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from niels_gpt.errors import UsageError, did_you_mean
from niels_gpt.renderers.automatic import MODEL_RENDERER_MAP, AutomaticRenderer, automatic_renderer
from niels_gpt.renderers.families.all_families import FAMILIES, WITH_IMAGES, ClassesByName
from niels_gpt.renderers.family import Family
from niels_gpt.renderers.image_family import TakesImages
from niels_gpt.renderers.images.processors import load_processor
from niels_gpt.renderers.options import FamilyConfig, with_options
from niels_gpt.renderers.pool import RendererPool
from niels_gpt.renderers.template.isolation import Isolation
from niels_gpt.renderers.template.known import TEMPLATE_FAMILIES
from niels_gpt.renderers.template.renderer import DefaultRenderer, DefaultRendererConfig, load_template, no_clock
from niels_gpt.tokenizer.load import open_encoder
from niels_gpt.tokenizer.pieces import PieceEncoder
from niels_gpt.values import option_value

__all__ = [
    "FAMILIES",
    "MODEL_RENDERER_MAP",
    "MULTIMODAL_MODELS",
    "RENDERER_REGISTRY",
    "AutoRendererConfig",
    "DefaultRenderer",
    "DefaultRendererConfig",
    "RendererChoice",
    "automatic_renderer",
    "config_from_name",
    "config_of",
    "create_renderer",
    "create_renderer_pool",
]

_BY_TEMPLATE = (DefaultRenderer.__module__, DefaultRenderer.__name__)
RENDERER_REGISTRY: ClassesByName[type[Family | DefaultRenderer]] = ClassesByName(
    {**FAMILIES.places, "default": _BY_TEMPLATE, "template": _BY_TEMPLATE}
)


class AutoRendererConfig(FamilyConfig):
    """The family that `MODEL_RENDERER_MAP` names for the tokenizer, else its own chat template."""

    name: Literal["auto"] = "auto"


# How a renderer can be named: by its name, by a config, or by a config's fields.
RendererChoice = str | Mapping[str, Any] | FamilyConfig | DefaultRendererConfig

# Models whose images a family can render, by modality.
MULTIMODAL_MODELS: dict[str, frozenset[str]] = {
    name: frozenset({"image"}) for name, family in MODEL_RENDERER_MAP.items() if family in WITH_IMAGES
}


def config_from_name(name: str) -> FamilyConfig | DefaultRendererConfig:
    """The config of a renderer's name, all defaults.

    Raises:
        UsageError: no such renderer.
    """
    return config_of({"name": name})


def config_of(fields: Mapping[str, Any]) -> FamilyConfig | DefaultRendererConfig:
    """A config from its fields; `name` selects the class.

    The name of a family without a grammar is the template with that family's parsers.

    Raises:
        UsageError: no such renderer, or a field that it does not have.
    """
    name, known = fields.get("name"), ["auto", "default", "template", *FAMILIES, *TEMPLATE_FAMILIES]
    if not isinstance(name, str) or name not in known:
        near = did_you_mean(name, known) if isinstance(name, str) else ""
        raise UsageError(f"no renderer {name!r}; expected one of {', '.join(known)}{near}")
    # Through `with_options`, so that a wrong field is an error in words and not pydantic's.
    if name in FAMILIES:
        return with_options(FAMILIES[name].config_class.model_validate({"name": name}), fields)
    if name == "auto":
        return with_options(AutoRendererConfig(), fields)
    if name not in TEMPLATE_FAMILIES:
        return with_options(DefaultRendererConfig.model_validate({"name": name}), fields)
    given = {option: value for option, value in fields.items() if option != "name"}
    return with_options(DefaultRendererConfig(), TEMPLATE_FAMILIES[name].options | given)


def create_renderer(
    tokenizer: Any,
    renderer: RendererChoice | None = None,
    *,
    config: RendererChoice | None = None,
    tool_parser: str | None = None,
    reasoning_parser: str | None = None,
    preserve_all_thinking: bool = False,
    preserve_thinking_between_tool_calls: bool = False,
    processor: Any = None,
) -> Family | DefaultRenderer:
    """A renderer for a tokenizer.

    Args:
        tokenizer: whatever `open_encoder` takes: a hub name, a directory, a tokenizer object, an encoder.
        renderer: "auto": the family of the tokenizer's exact hub name, else its own chat template; the name of a
            family; "template" (or "default"); or a config, or its fields. `None` is "auto".
        config: the same argument under its name in the `renderers` package.
        tool_parser, reasoning_parser: how completions are read, for renderers by template.
        preserve_all_thinking, preserve_thinking_between_tool_calls: see `FamilyConfig`.
        processor: the image processor of families with images, see `TakesImages`; or an `Images`, which sets the size
            of its cache.

    Raises:
        UsageError: no such renderer; options that the renderer does not have; a processor for a renderer that takes
            no images.
        TokenizerError, TemplateError: the tokenizer cannot be used.
    """
    # Before the tokenizer is loaded, which takes seconds: a misspelt name is an error at once.
    if renderer is not None and config is not None:
        raise UsageError("found renderer and config; expected one of both: they are two names of one argument")
    named = config if renderer is None else renderer
    chosen = _config("auto" if named is None else named)
    encoder = open_encoder(tokenizer)
    if isinstance(chosen, AutoRendererConfig):
        chosen = _resolve_auto(chosen, encoder)
    if processor is not None and chosen.name not in WITH_IMAGES:
        raise UsageError(
            f"{chosen.name} takes no images, so no processor; expected one of {', '.join(WITH_IMAGES)}, or leave it out"
        )
    preserve = {
        "preserve_all_thinking": preserve_all_thinking,
        "preserve_thinking_between_tool_calls": preserve_thinking_between_tool_calls,
    }
    parsers = {"tool_parser": tool_parser, "reasoning_parser": reasoning_parser}
    # Only those that are set: `False` and `None`, the defaults here, must not replace what a config says.
    set_here = {name: value for name, value in (preserve | parsers).items() if value not in (None, False)}
    if isinstance(chosen, DefaultRendererConfig):
        if wrong := preserve.keys() & set_here.keys():
            raise UsageError(
                f"{sorted(wrong)[0]} needs a renderer by family; a chat template itself decides what it "
                f"keeps. Name a family ({', '.join(FAMILIES)}) if the model is one"
            )
        return DefaultRenderer(encoder, chosen.model_copy(update=set_here))
    if parsers.keys() & set_here.keys():
        raise UsageError(f"{chosen.name} reads completions itself; tool_parser and reasoning_parser are for templates")
    family, chosen = FAMILIES[chosen.name], chosen.model_copy(update=set_here)
    return family(encoder, chosen, processor=processor) if issubclass(family, TakesImages) else family(encoder, chosen)


def _config(renderer: object) -> FamilyConfig | DefaultRendererConfig:
    """The config of a name, of a config's fields, or of a config itself.

    Raises:
        UsageError: it is none of these.
    """
    if isinstance(renderer, str):
        return config_from_name(renderer)
    if isinstance(renderer, Mapping):
        return config_of(renderer)
    if isinstance(renderer, AutoRendererConfig | DefaultRendererConfig):
        return renderer
    if isinstance(renderer, FamilyConfig) and renderer.name in FAMILIES:
        return renderer
    raise UsageError(f"renderer is {renderer!r}; expected a name ({', '.join(FAMILIES)}, auto, template) or a config")


def _resolve_auto(auto: AutoRendererConfig, encoder: PieceEncoder) -> FamilyConfig | DefaultRendererConfig:
    """The config of "auto" for this tokenizer.

    Raises:
        UsageError: options of families, for a tokenizer that is rendered by its template.
    """
    if encoder.engine == "sentencepiece":
        automatic = AutomaticRenderer("ngpt", "a SentencePiece model")
    else:
        automatic = automatic_renderer(encoder.name, encoder.added_ids)
    name, fields = automatic.renderer, auto.model_dump(exclude={"name"}, exclude_defaults=True)
    if name != "template":
        return config_of({"name": name, **fields})
    if fields:
        raise UsageError(
            f"{encoder.name}: no family is registered for this name, and a chat template has no {next(iter(fields))}; "
            "name a family"
        )
    return with_options(DefaultRendererConfig(), automatic.options)


def create_renderer_pool(
    name_or_path: str, renderer: RendererChoice | None = None, size: int = 16, **options: Any
) -> RendererPool:
    """A renderer for many threads, with the interface of a pool; `options` are those of `create_renderer`."""
    return RendererPool(lambda: create_renderer(name_or_path, renderer, **options), size)


# ---- what a user names: a renderer, a template file, a date, options as text


@dataclass(frozen=True)
class RendererOptions:
    """A renderer's name and options, as a command line sets them.

    Attributes:
        name: "auto" (see `automatic_renderer`), "template", or the name of a family.
        template: a file with the chat template to use in place of the tokenizer's.
        date: the day for formats that contain one, as 2026-01-31.
        options: options of the family (`{"enable_thinking": False}`), or variables of the template. Text values are
            converted by `typed_options`.
        isolate: run the chat template in a process of its own; see `Isolation`.
    """

    name: str = "auto"
    template: Path | None = None
    date: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    isolate: bool = False

    @property
    def is_chosen(self) -> bool:
        """Whether any of these chooses a renderer; a date alone does not."""
        return self != RendererOptions(date=self.date)

    def automatic(self, tokenizer: str | Path) -> list[str]:
        """A line about which renderer "auto" takes for a tokenizer, and on what evidence; none where one is named."""
        # With a template or isolation it is the template, whatever the tokenizer is.
        if self.name != "auto" or self.template is not None or self.isolate:
            return []
        found = automatic_renderer(tokenizer)
        return [f"renderer {found.renderer}: {found.reason} (override with --renderer)"]

    def check(self) -> None:
        """Refuse what is wrong whatever the tokenizer is, before one is loaded, which takes seconds.

        Raises:
            UsageError: no such renderer; an option that the named family does not have; not a date.
        """
        clock_on(self.date)
        config = config_from_name(self.name)
        if not isinstance(config, AutoRendererConfig):
            config_of({"name": self.name, **typed_options(type(config), self.options)})

    def open(self, tokenizer: str | Path, *, images: bool = False) -> Family | DefaultRenderer:
        """The renderer for a tokenizer.

        Args:
            images: load the image processor that is in the tokenizer's directory.

        Raises:
            UsageError: not a date; an unknown renderer or option; a template, date or isolation for a family that has
                no place for it. Else as `create_renderer`.
        """
        # Before a tokenizer is read: a wrong date, name or option is an error at once.
        clock, own = clock_on(self.date), self.template is not None or self.isolate
        automatic = automatic_renderer(tokenizer) if self.name == "auto" and not own else None
        if automatic is None:  # a template that is named or isolated is used
            config = config_from_name("template" if self.name == "auto" else self.name)
        else:
            config = config_of({"name": automatic.renderer, **automatic.options})
        # All options, also those that a template's config does not declare: it keeps them as variables.
        fields = typed_options(type(config), self.options)
        if isinstance(config, FamilyConfig):
            option, form = config.day
            # By "auto" the date is for whichever format the tokenizer has, so a family without one ignores it.
            if own or (self.date is not None and not option and automatic is None):
                raise UsageError(
                    f"renderer {config.name} writes by its own grammar; a template, date or isolation is for "
                    "--renderer template"
                )
            day = {option: clock(form)} if self.date is not None and option else {}
            processor = load_processor(str(tokenizer)) if images else None
            return create_renderer(str(tokenizer), with_options(config, day | fields), processor=processor)
        if images:
            raise UsageError("images are for the renderer of a model with images; a chat template cannot count tokens")
        config = with_options(config, fields)
        source = None if self.template is None else load_template(self.template)
        encoder = open_encoder(str(tokenizer))
        isolation = Isolation() if self.isolate else None
        opened = DefaultRenderer(encoder, config, template=source, clock=clock, isolate=isolation)
        _check_variables(opened, self.options)
        return opened


def _check_variables(renderer: DefaultRenderer, names: Collection[str]) -> None:
    """Refuse a variable whose name is nowhere in the template: a misspelt one would change nothing, silently.

    Raises:
        UsageError: naming the nearest word of the template.
    """
    # A word anywhere in the source, in a comment too: too few refusals are better than one of a variable that is used.
    words = set(re.findall(r"[A-Za-z_]\w*", renderer.source))
    for name in names:
        if name not in words and name not in DefaultRendererConfig.model_fields:
            raise UsageError(
                f"{renderer.encoder.name}: its chat template has no variable {name!r}{did_you_mean(name, words)}"
            )


def typed_options(kind: type[BaseModel], options: Mapping[str, Any]) -> dict[str, Any]:
    """Options in which texts are read as `option_value` reads them: "false" -> False, "3" -> 3, "null" -> None.

    An option that is declared a text keeps the digits of a number: "20260131" remains a text.

    Args:
        kind: the config's class; names that it does not declare are variables of a template.
    """
    typed = dict(options)
    for name, text in options.items():
        if isinstance(text, str):
            value = option_value(text)
            is_text = name in kind.model_fields and kind.model_fields[name].annotation is str
            typed[name] = text if is_text and isinstance(value, int | float) else value
    return typed


def clock_on(date: str | None) -> Callable[[str], str]:
    """The clock of a day like 2026-01-31; without one, a clock that refuses.

    Raises:
        UsageError: not a date.
    """
    try:
        # Templates call `strftime_now(form)`, which is the `strftime` of that day.
        return no_clock if date is None else datetime.date.fromisoformat(date).strftime
    except ValueError as error:
        raise UsageError(f"the date is {date!r}; expected a day like 2026-01-31") from error
