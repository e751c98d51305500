"""`DefaultRenderer`, the renderer by a tokenizer's own chat template, where the `renderers` package has it."""

from niels_gpt.renderers.template.renderer import DefaultRenderer

__all__ = ["DefaultRenderer"]
