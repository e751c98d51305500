"""DefaultRenderer: the tokenizer's own chat template, for every model without a family (document 003)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from niels_gpt.renderers.configs import DefaultRendererConfig, with_options
from niels_gpt.renderers.isolation import Isolation
from niels_gpt.renderers.template import TemplateRenderer, no_clock


class DefaultRenderer(TemplateRenderer):
    """A `TemplateRenderer` made from a config: its parsers, and its other fields as variables of the template.

    Args:
        options: single fields, in place of the config's: `DefaultRenderer(tokenizer, tool_parser="qwen3")`.

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
        given = DefaultRendererConfig() if config is None else config
        self.config = with_options(given, options) if options else given
        super().__init__(
            tokenizer,
            template=template,
            clock=clock,
            isolate=isolate,
            tool_parser=self.config.tool_parser,
            reasoning_parser=self.config.reasoning_parser,
            **self.config.variables,
        )
