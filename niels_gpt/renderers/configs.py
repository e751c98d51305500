"""Typed options of every renderer, told apart by `name`; unknown fields are refused (document 003)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from niels_gpt.errors import UsageError, did_you_mean

__all__ = [
    "AutoRendererConfig",
    "BaseRendererConfig",
    "ChatMLRendererConfig",
    "DeepSeekV3RendererConfig",
    "DefaultRendererConfig",
    "FamilyConfig",
    "GLM5RendererConfig",
    "GLM45RendererConfig",
    "GLM51RendererConfig",
    "GemmaRendererConfig",
    "GptOssRendererConfig",
    "KimiK2RendererConfig",
    "KimiK25RendererConfig",
    "LagunaXS2RendererConfig",
    "Llama3RendererConfig",
    "Llama30RendererConfig",
    "MiniMaxM2RendererConfig",
    "MistralRendererConfig",
    "Nemotron3RendererConfig",
    "Nemotron3UltraRendererConfig",
    "NgptRendererConfig",
    "Phi3RendererConfig",
    "Phi4MiniRendererConfig",
    "Phi4RendererConfig",
    "Phi35RendererConfig",
    "Qwen3RendererConfig",
    "Qwen3VLRendererConfig",
    "Qwen25RendererConfig",
    "Qwen35RendererConfig",
    "Qwen36RendererConfig",
    "RawRendererConfig",
    "RendererConfig",
    "config_from_name",
    "config_of",
    "with_options",
]


class FamilyConfig(BaseModel):
    """What all families have.

    Attributes:
        preserve_all_thinking: keep the reasoning of all turns, also where the template drops it from history.
        preserve_thinking_between_tool_calls: keep it in the tool cycle that is under way.
        special_tokens_in_content: what a control token's spelling in a body is: ordinary text, an error, or the token.

    Class attributes:
        day: the option that tells the day, and how it writes one (`strftime`); "" where the format tells none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    day: ClassVar[tuple[str, str]] = ("", "")

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


class ChatMLRendererConfig(FamilyConfig):
    """Plain ChatML has no options of its own."""

    name: Literal["chatml"] = "chatml"


class Qwen25RendererConfig(FamilyConfig):
    """Qwen2.5 has no options of its own."""

    name: Literal["qwen2.5"] = "qwen2.5"


class Qwen3RendererConfig(FamilyConfig):
    """`enable_thinking=False` supplies an empty thinking block in the generation prompt."""

    name: Literal["qwen3"] = "qwen3"
    enable_thinking: bool = True


class Qwen3VLRendererConfig(FamilyConfig):
    """Qwen3-VL; `add_vision_id` counts images aloud (`Picture 1: `), over the whole conversation."""

    name: Literal["qwen3-vl"] = "qwen3-vl"
    add_vision_id: bool = False


class Qwen35RendererConfig(FamilyConfig):
    """Qwen3.5.

    Attributes:
        enable_thinking: what the generation prompt opens: a thinking block, or (`False`) an empty one. `None` is the
            model's own habit, read off its template's generation prompt, else off its name; else it thinks.
        add_vision_id: images are counted aloud (`Picture 1: `).
    """

    name: Literal["qwen3.5"] = "qwen3.5"
    enable_thinking: bool | None = None
    add_vision_id: bool = False


class Qwen36RendererConfig(FamilyConfig):
    """Qwen3.6: the options of Qwen3.5, and `preserve_thinking`, which keeps the reasoning of all turns."""

    name: Literal["qwen3.6"] = "qwen3.6"
    enable_thinking: bool | None = None
    add_vision_id: bool = False
    preserve_thinking: bool = False


class DeepSeekV3RendererConfig(FamilyConfig):
    """DeepSeek V3 has no options of its own."""

    name: Literal["deepseek-v3"] = "deepseek-v3"


class GLM45RendererConfig(FamilyConfig):
    """GLM-4.5.

    Attributes:
        enable_thinking: `False` closes the thinking block in the generation prompt.
        sampled_openers: the opener of the turn behind an assistant's, at which the model stops, counts as sampled: GLM
            has no other end of turn.
    """

    name: Literal["glm-4.5"] = "glm-4.5"
    enable_thinking: bool = True
    sampled_openers: bool = False


class _GLMConfig(FamilyConfig):
    """GLM's options since GLM-5: those of `GLM45RendererConfig`, and `clear_thinking`.

    Attributes:
        clear_thinking: `False` keeps the reasoning of all turns.
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


class KimiK25RendererConfig(FamilyConfig):
    """`thinking=False` closes the thinking block in the generation prompt, and empties those of the turns."""

    name: Literal["kimi-k2.5"] = "kimi-k2.5"
    thinking: bool = True


class Llama3RendererConfig(FamilyConfig):
    """Options of Llama 3.1, 3.2 and 3.3.

    Attributes:
        date_string: the day that the system block tells; the clock is never read.
        tools_in_user_message: tools stand in the first user's turn; `False`: in the system block.
    """

    day = ("date_string", "%d %b %Y")

    name: Literal["llama-3"] = "llama-3"
    date_string: str = "26 Jul 2024"
    tools_in_user_message: bool = True


class Llama30RendererConfig(FamilyConfig):
    """Llama 3 as it first came has no options of its own."""

    name: Literal["llama-3.0"] = "llama-3.0"


class GemmaRendererConfig(FamilyConfig):
    """Gemma has no options of its own."""

    name: Literal["gemma"] = "gemma"


class MistralRendererConfig(FamilyConfig):
    """Mistral has no options of its own."""

    name: Literal["mistral"] = "mistral"


class Phi3RendererConfig(FamilyConfig):
    """Phi-3 has no options of its own."""

    name: Literal["phi-3"] = "phi-3"


class Phi35RendererConfig(FamilyConfig):
    """Phi-3.5 has no options of its own."""

    name: Literal["phi-3.5"] = "phi-3.5"


class Phi4RendererConfig(FamilyConfig):
    """Phi-4 has no options of its own."""

    name: Literal["phi-4"] = "phi-4"


class Phi4MiniRendererConfig(FamilyConfig):
    """Phi-4-mini has no options of its own."""

    name: Literal["phi-4-mini"] = "phi-4-mini"


class _NemotronConfig(FamilyConfig):
    """Nemotron's options.

    Attributes:
        enable_thinking: `False` supplies an empty thinking block in the generation prompt.
        truncate_history_thinking: `False` keeps the reasoning of all turns.
    """

    enable_thinking: bool = True
    truncate_history_thinking: bool = True


class Nemotron3RendererConfig(_NemotronConfig):
    """Nemotron 3.

    Attributes:
        low_effort: asks the last user's turn for little thinking; Super's, which Nano does not know.
        ultra: the format is Ultra's, as by the name `nemotron-3-ultra`; `None`: where the tokenizer's name is Ultra's.
    """

    name: Literal["nemotron-3"] = "nemotron-3"
    low_effort: bool = False
    ultra: bool | None = None

    @model_validator(mode="after")
    def _check_effort(self) -> Self:
        if self.ultra and self.low_effort:
            raise ValueError("low_effort is Super's; expected nemotron-3-ultra with medium_effort, which is Ultra's")
        return self


class Nemotron3UltraRendererConfig(_NemotronConfig):
    """Nemotron 3 Ultra; `medium_effort` asks the last user's turn for efficient thinking."""

    name: Literal["nemotron-3-ultra"] = "nemotron-3-ultra"
    medium_effort: bool = False


class LagunaXS2RendererConfig(FamilyConfig):
    """Laguna XS.2.

    Attributes:
        enable_thinking: the generation prompt opens a think block; else it supplies the end of one.
        render_assistant_messages_raw: contents of assistants are what was sampled, think tags and calls included; the
            messages' reasoning and tool calls are not written beside them.
    """

    name: Literal["laguna-xs.2"] = "laguna-xs.2"
    enable_thinking: bool = False
    render_assistant_messages_raw: bool = False


class GptOssRendererConfig(FamilyConfig):
    """gpt-oss.

    Attributes:
        conversation_start_date: the day that the system block tells, 2026-01-31; `None` leaves the line out, as
            `openai-harmony` does. The clock is never read.
        text_before_calls: the channel of a content beside a tool call where there is no reasoning: analysis, as the
            official template writes it, or commentary, as the model itself does. Beside reasoning it is commentary.
    """

    day = ("conversation_start_date", "%Y-%m-%d")

    name: Literal["gpt-oss"] = "gpt-oss"
    reasoning_effort: Literal["low", "medium", "high"] = "medium"
    conversation_start_date: str | None = None
    knowledge_cutoff: str = "2024-06"
    model_identity: str = "You are ChatGPT, a large language model trained by OpenAI."
    text_before_calls: Literal["analysis", "commentary"] = "analysis"


class MiniMaxM2RendererConfig(FamilyConfig):
    """MiniMax M2.5: what stands in for a system message that is not there, or is empty."""

    name: Literal["minimax-m2"] = "minimax-m2"
    model_identity: str = "You are a helpful assistant. Your name is MiniMax-M2.5 and is built by MiniMax."


class RawRendererConfig(FamilyConfig):
    """No markers: what stands between two texts."""

    name: Literal["raw"] = "raw"
    separator: str = " "


class NgptRendererConfig(FamilyConfig):
    """The house format of document 000: what stands in for a system message that is not there."""

    name: Literal["ngpt"] = "ngpt"
    default_system_text: str = "you are a helpful assistant."


RendererConfig = Annotated[
    AutoRendererConfig
    | DefaultRendererConfig
    | Qwen25RendererConfig
    | Qwen3RendererConfig
    | Qwen3VLRendererConfig
    | Qwen35RendererConfig
    | Qwen36RendererConfig
    | DeepSeekV3RendererConfig
    | GLM45RendererConfig
    | GLM5RendererConfig
    | GLM51RendererConfig
    | KimiK2RendererConfig
    | KimiK25RendererConfig
    | Llama3RendererConfig
    | Llama30RendererConfig
    | GemmaRendererConfig
    | MistralRendererConfig
    | Phi3RendererConfig
    | Phi35RendererConfig
    | Phi4RendererConfig
    | Phi4MiniRendererConfig
    | LagunaXS2RendererConfig
    | GptOssRendererConfig
    | MiniMaxM2RendererConfig
    | Nemotron3RendererConfig
    | Nemotron3UltraRendererConfig
    | ChatMLRendererConfig
    | RawRendererConfig
    | NgptRendererConfig,
    Field(discriminator="name"),
]

BaseRendererConfig = FamilyConfig  # the name in the known package
Config = TypeVar("Config", FamilyConfig, DefaultRendererConfig)


def config_from_name(name: str) -> FamilyConfig | DefaultRendererConfig:
    """The config of a renderer's name, all defaults.

    Raises:
        UsageError: no such renderer.
    """
    return config_of({"name": name})


def config_of(fields: Mapping[str, Any]) -> FamilyConfig | DefaultRendererConfig:
    """A config from its fields, told by `name`.

    Raises:
        UsageError: no such renderer, or a field that it does not have.
    """
    name, known = fields.get("name"), [name for kind in _kinds() for name in _names(kind)]
    if name not in known:
        near = did_you_mean(name, known) if isinstance(name, str) else ""
        raise UsageError(f"no renderer {name!r}; expected one of {', '.join(known)}{near}")
    kind: Any = next(kind for kind in _kinds() if name in _names(kind))
    made: FamilyConfig | DefaultRendererConfig = with_options(kind(name=name), fields)
    return made


def with_options(config: Config, options: Mapping[str, Any]) -> Config:
    """A config with some of its options changed.

    Raises:
        UsageError: an option that it does not have, or a value that the option does not take.
    """
    try:
        return type(config).model_validate(config.model_dump(exclude_unset=True) | dict(options))
    except ValidationError as error:
        raise _explained(error, config) from error


def _kinds() -> tuple[type[FamilyConfig] | type[DefaultRendererConfig], ...]:
    """The classes of all configs."""
    return get_args(get_args(RendererConfig)[0])


def _names(kind: type[BaseModel]) -> tuple[str, ...]:
    """The names of renderers that a class is the config of."""
    return get_args(kind.model_fields["name"].annotation)


def _explained(error: ValidationError, config: FamilyConfig | DefaultRendererConfig) -> UsageError:
    """The first of pydantic's findings in our words."""
    first, name = error.errors()[0], config.name
    field = ".".join(map(str, first["loc"]))
    options = [option for option in type(config).model_fields if option != "name"]
    if first["type"] == "extra_forbidden":
        near = did_you_mean(field, options)
        return UsageError(f"renderer {name}: no option {field!r}; expected one of {', '.join(options)}{near}")
    expected = first["msg"].removeprefix("Value error, ")
    return UsageError(f"renderer {name}: {field} is {first['input']!r}: {expected}" if field else f"{name}: {expected}")
