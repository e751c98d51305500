"""Typed options of every renderer, told apart by `name`; unknown fields are refused (document 003)."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class FamilyConfig(BaseModel):
    """What all families have.

    Attributes:
        preserve_all_thinking: keep the reasoning of all turns, also where the template drops it from history.
        preserve_thinking_between_tool_calls: keep it in the tool cycle that is under way.
        special_tokens_in_content: what a control token's spelling in a body is: ordinary text, an error, or the token.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    preserve_all_thinking: bool = False
    preserve_thinking_between_tool_calls: bool = False
    special_tokens_in_content: Literal["text", "error", "parse"] = "text"


class AutoRendererConfig(FamilyConfig):
    """The family that `MODEL_RENDERER_MAP` names for the tokenizer, else its own chat template."""

    name: Literal["auto"] = "auto"


# What a template renderer sets itself, and options that only families have.
_NO_VARIABLES = {"tokenizer", "template", "clock", "stops", "messages", "tools", "documents", "add_generation_prompt"}
_FAMILY_OPTIONS = set(FamilyConfig.model_fields) - {"name"}


class DefaultRendererConfig(BaseModel):
    """The tokenizer's own chat template; fields that are not named here go to the template as variables."""

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
        """What the template gets."""
        return dict(self.model_extra or {})


class Qwen3RendererConfig(FamilyConfig):
    """`enable_thinking=False` supplies an empty thinking block in the generation prompt."""

    name: Literal["qwen3"] = "qwen3"
    enable_thinking: bool = True


class _GLMConfig(FamilyConfig):
    """GLM's options.

    Attributes:
        enable_thinking: `False` closes the thinking block in the generation prompt.
        clear_thinking: `False` keeps the reasoning of all turns.
        sampled_openers: the opener of the turn behind an assistant's, at which the model stops, counts as sampled: GLM
            has no other end of turn.
    """

    enable_thinking: bool = True
    clear_thinking: bool = True
    sampled_openers: bool = False


class GLM5RendererConfig(_GLMConfig):
    """GLM-5 and GLM-4.7-Flash: whether turns think, whether history keeps it, whether openers count as sampled."""

    name: Literal["glm-5"] = "glm-5"


class GLM51RendererConfig(_GLMConfig):
    """See `GLM5RendererConfig`."""

    name: Literal["glm-5.1"] = "glm-5.1"


class KimiK2RendererConfig(FamilyConfig):
    """Kimi K2 has no options of its own."""

    name: Literal["kimi-k2"] = "kimi-k2"


class NgptRendererConfig(FamilyConfig):
    """The house format of document 000: what stands in for a system message that is not there."""

    name: Literal["ngpt"] = "ngpt"
    default_system_text: str = "you are a helpful assistant."


RendererConfig = Annotated[
    AutoRendererConfig
    | DefaultRendererConfig
    | Qwen3RendererConfig
    | GLM5RendererConfig
    | GLM51RendererConfig
    | KimiK2RendererConfig
    | NgptRendererConfig,
    Field(discriminator="name"),
]
