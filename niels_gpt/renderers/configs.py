"""The config class of every renderer in one place, and configs by a renderer's name or by their fields.

A family's config class is defined beside its grammar, in `families/`, and listed in `families/all_families.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args

from pydantic import BaseModel, Field

from niels_gpt.errors import UsageError, did_you_mean
from niels_gpt.renderers.families.all_families import *  # noqa: F403  # `configs.Qwen3RendererConfig` and the others
from niels_gpt.renderers.families.all_families import FAMILIES
from niels_gpt.renderers.options import FamilyConfig, with_options
from niels_gpt.renderers.template.known import TEMPLATE_FAMILIES
from niels_gpt.renderers.template.renderer import DefaultRendererConfig

__all__ = [
    "AutoRendererConfig",
    "BaseRendererConfig",
    "DefaultRendererConfig",
    "FamilyConfig",
    "RendererConfig",
    "config_from_name",
    "config_of",
    "with_options",
]


class AutoRendererConfig(FamilyConfig):
    """The family that `MODEL_RENDERER_MAP` names for the tokenizer, else its own chat template."""

    name: Literal["auto"] = "auto"


# The classes of all configs; a discriminated union of them, for the fields of a user's own pydantic models.
_CONFIG_CLASSES: tuple[type[FamilyConfig] | type[DefaultRendererConfig], ...] = (
    AutoRendererConfig,
    DefaultRendererConfig,
    *(family.config_class for family in FAMILIES.values()),
)
if TYPE_CHECKING:
    RendererConfig = FamilyConfig | DefaultRendererConfig
else:
    RendererConfig = Annotated[Union[_CONFIG_CLASSES], Field(discriminator="name")]  # noqa: UP007  # computed

BaseRendererConfig = FamilyConfig  # the name in the known package


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
    name, known = fields.get("name"), [name for kind in _CONFIG_CLASSES for name in _names(kind)]
    if isinstance(name, str) and name in TEMPLATE_FAMILIES:
        given = {option: value for option, value in fields.items() if option != "name"}
        return with_options(DefaultRendererConfig(), TEMPLATE_FAMILIES[name].options | given)
    known += TEMPLATE_FAMILIES
    if name not in known:
        near = did_you_mean(name, known) if isinstance(name, str) else ""
        raise UsageError(f"no renderer {name!r}; expected one of {', '.join(known)}{near}")
    # Through `with_options`, so that a wrong field is an error in words and not pydantic's.
    kind: Any = next(kind for kind in _CONFIG_CLASSES if name in _names(kind))
    config: FamilyConfig | DefaultRendererConfig = with_options(kind(name=name), fields)
    return config


def _names(kind: type[BaseModel]) -> tuple[str, ...]:
    """The names of renderers that a class is the config of."""
    return get_args(kind.model_fields["name"].annotation)
