"""A renderer from what a user names: a renderer, a template file, a date, options as text."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from niels_gpt.errors import UsageError, did_you_mean
from niels_gpt.renderers.configs import (
    AutoRendererConfig,
    DefaultRendererConfig,
    config_from_name,
    config_of,
    with_options,
)
from niels_gpt.renderers.family import Family
from niels_gpt.renderers.images.processors import load_processor
from niels_gpt.renderers.registry import automatic_renderer, create_renderer, refuse_unknown_images
from niels_gpt.renderers.template.isolation import Isolation
from niels_gpt.renderers.template.renderer import DefaultRenderer, load_template, no_clock
from niels_gpt.tokenizer.load import open_encoder
from niels_gpt.values import option_value


@dataclass(frozen=True)
class RendererOptions:
    """A renderer's name and options, as a command line sets them.

    Attributes:
        name: "auto" (see `automatic_renderer`), "template", or the name of a family.
        template: a file with the chat template to use in place of the tokenizer's.
        date: the day for formats that contain one, as 2026-01-31.
        options: options of the family (`{"enable_thinking": False}`), or variables of the template. Text values are
            converted as in `open_renderer`.
        isolate: run the chat template in a process of its own; see `Isolation`.
    """

    name: str = "auto"
    template: Path | None = None
    date: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    isolate: bool = False

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
        """The renderer for a tokenizer; see `open_renderer`."""
        return open_renderer(
            tokenizer,
            self.name,
            template=self.template,
            date=self.date,
            isolate=self.isolate,
            options=self.options,
            images=images,
        )


def open_renderer(
    tokenizer: str | Path,
    renderer: str = "auto",
    *,
    template: Path | None = None,
    date: str | None = None,
    isolate: bool = False,
    options: Mapping[str, Any] | None = None,
    images: bool = False,
) -> Family | DefaultRenderer:
    """A renderer from the options of a command line; see `RendererOptions` for the arguments.

    Text values of `options` are converted by `typed_options`.

    Args:
        images: load the image processor that is in the tokenizer's directory.

    Raises:
        UsageError: not a date; an unknown renderer or option; a template, date or isolation for a family that has no
            place for it. Else as `create_renderer`.
    """
    # Before a tokenizer is read: a wrong date, name or option is an error at once.
    clock, fields = clock_on(date), dict(options or {})
    name, automatic = renderer, None
    if renderer == "auto":  # a template that is named or isolated is used
        automatic = None if template is not None or isolate else automatic_renderer(tokenizer)
        name = "template" if automatic is None else automatic.renderer
    config = config_from_name(name)
    if automatic is not None and isinstance(config, DefaultRendererConfig):
        config = with_options(config, automatic.options)
    if isinstance(config, DefaultRendererConfig):
        if images:
            raise UsageError("images are for the renderer of a model with images; a chat template cannot count tokens")
        # All options, also those that the config does not declare: it keeps them as variables of the template.
        config = with_options(config, typed_options(DefaultRendererConfig, fields))
        source = None if template is None else load_template(template)
        encoder = open_encoder(str(tokenizer))
        # A user who names "template" knows what it cannot do; "auto" must not drop images silently.
        if automatic is not None and not automatic.is_known:
            refuse_unknown_images(encoder.name)
        isolation = Isolation() if isolate else None
        opened = DefaultRenderer(encoder, config, template=source, clock=clock, isolate=isolation)
        _check_variables(opened, fields)
        return opened
    fields = typed_options(type(config), fields)
    option, form = config.day
    # By "auto" the date is for whichever format the tokenizer has, so a family without one ignores it.
    if template is not None or isolate or (date is not None and not option and renderer != "auto"):
        raise UsageError(
            f"renderer {name} writes by its own grammar; a template, date or isolation is for --renderer template"
        )
    if date is not None and option:
        fields = {option: clock(form), **fields}
    if not images:
        return create_renderer(str(tokenizer), with_options(config, fields))
    processor = load_processor(str(tokenizer))
    return create_renderer(str(tokenizer), with_options(config, fields), processor=processor)


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
