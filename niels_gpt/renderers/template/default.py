"""`DefaultRenderer`: a `TemplateRenderer` made from a config, for models without a family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator

from niels_gpt.renderers.options import FamilyConfig, with_options
from niels_gpt.renderers.template.isolation import Isolation
from niels_gpt.renderers.template.renderer import TemplateRenderer, no_clock

# Names that cannot be template variables: what rendering sets itself, and options that only families have.
_NO_VARIABLES = {"tokenizer", "template", "clock", "stops", "messages", "tools", "documents", "add_generation_prompt"}
_FAMILY_OPTIONS = set(FamilyConfig.model_fields) - {"name"}


class DefaultRendererConfig(BaseModel):
    """The tokenizer's own chat template. Fields that are not declared here are passed to the template as variables."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: Literal["default", "template"] = "default"
    tool_parser: str | None = None
    reasoning_parser: str | None = None

    @model_validator(mode="after")
    def _check_variables(self) -> Self:
        for name in self.model_extra or {}:
            if name in _FAMILY_OPTIONS:
                raise ValueError(
                    f"{name} is an option of families; a chat template has none. Name a family, or drop it"
                )
            if name in _NO_VARIABLES:
                raise ValueError(f"{name} cannot be a variable of the template: rendering sets it. Drop it")
        return self

    @property
    def variables(self) -> dict[str, Any]:
        """The variables of the template: all fields that are not declared."""
        return dict(self.model_extra or {})


class DefaultRenderer(TemplateRenderer):
    """A `TemplateRenderer` whose parsers and variables come from a config.

    Args:
        options: fields that replace the config's: `DefaultRenderer(tokenizer, tool_parser="qwen3")`.

    Raises:
        TemplateError: the tokenizer has no template. TokenizerError: it cannot be used. UsageError: no such parser.
    """

    def __init__(
        self,
        tokenizer: Any,
        config: DefaultRendererConfig | None = None,
        *,
        template: str | None = None,
        clock: Callable[[str], str] = no_clock,
        isolate: Isolation | None = None,
        **options: Any,
    ) -> None:
        config = DefaultRendererConfig() if config is None else config
        self.config = with_options(config, options) if options else config
        super().__init__(
            tokenizer,
            template=template,
            clock=clock,
            isolate=isolate,
            tool_parser=self.config.tool_parser,
            reasoning_parser=self.config.reasoning_parser,
            **self.config.variables,
        )
