"""`FamilyConfig`: the options that all families have, and how options are checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from niels_gpt.errors import UsageError, did_you_mean
from niels_gpt.renderers.notes import OnUnwritten

Config = TypeVar("Config", bound=BaseModel)


class FamilyConfig(BaseModel):
    """The options of all families. Each family's config adds its own; unknown options are refused.

    Attributes:
        preserve_all_thinking: keep the reasoning of all turns, also where the template drops it from history.
        preserve_thinking_between_tool_calls: keep it in the current tool cycle, see `should_preserve_past_thinking`.
        special_tokens_in_content: what the spelling of a control token in a content becomes: ordinary text, an error,
            or the token.
        on_unwritten: what becomes of conversations with a text that the format has no place for (`notes.py`).

    Class attributes:
        day: the option that holds a date, and its form (`strftime`), for `--date`; "" where the format writes none.
    """

    # Options may begin with "model_", as model_identity does: pydantic before 2.10 warns of them otherwise.
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    day: ClassVar[tuple[str, str]] = ("", "")

    name: str
    preserve_all_thinking: bool = False
    preserve_thinking_between_tool_calls: bool = False
    special_tokens_in_content: Literal["text", "error", "parse"] = "text"
    on_unwritten: OnUnwritten = "content"


class PlainConfig(FamilyConfig):
    """The config of families without options of their own: here a new one is named."""

    name: Literal[
        "chatml", "deepseek-r1", "deepseek-r1-0528", "deepseek-r1-distill", "gemma", "kimi-k2-thinking", "llama-3.0",
        "mistral", "mistral-v7", "mistral-v11", "mistral-v13", "qwen2.5",
    ]  # fmt: skip


def with_options(config: Config, options: Mapping[str, Any]) -> Config:
    """A config with some of its options changed.

    Raises:
        UsageError: an option that it does not have, or a value that the option does not take.
    """
    try:
        return type(config).model_validate(config.model_dump(exclude_unset=True) | dict(options))
    except ValidationError as error:
        # The first of pydantic's errors: a union of types gives one for each of them, and the others repeat it.
        first, name = error.errors()[0], getattr(config, "name", "")
        field = ".".join(map(str, first["loc"]))
        known = [option for option in type(config).model_fields if option != "name"]
        if first["type"] == "extra_forbidden":
            near = did_you_mean(field, known)
            text = f"renderer {name}: no option {field!r}; expected one of {', '.join(known)}{near}"
        else:
            # pydantic puts this before the text of a validator's own error; such an error may be of no single field.
            expected = first["msg"].removeprefix("Value error, ")
            text = f"renderer {name}: {field} is {first['input']!r}: {expected}" if field else f"{name}: {expected}"
        raise UsageError(text) from error
