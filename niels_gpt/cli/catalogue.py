"""`niels-gpt renderers | rules`: lists of all renderers and rules, as tables and as JSON."""

from __future__ import annotations

import inspect
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

from rich.console import RenderableType
from rich.text import Text

from niels_gpt.cli.options import Json, grouped
from niels_gpt.cli.terminal import key_values, out, print_json, table_of
from niels_gpt.options import Argument

if TYPE_CHECKING:
    from pydantic import BaseModel


# Descriptions of options whose config class has no section "Attributes:".
_HELP = {
    "enable_thinking": "False: the generation prompt supplies an empty thinking block",
    "add_vision_id": "number the images of the conversation (`Picture 1: `)",
    "thinking": "False: the generation prompt closes the thinking block, and those of all turns are empty",
    "preserve_thinking": "keep the reasoning of all turns",
    "separator": "the text between two messages",
    "model_identity": "what the system block says of the model where the conversation has no system message",
    "medium_effort": "ask the last user's turn for efficient thinking",
    "default_system_text": "the system message of a conversation without one",
    "reasoning_effort": "how long the model reasons, as the system block says",
    "knowledge_cutoff": "the month that the system block names as the end of the model's knowledge",
    "tool_parser": "how tool calls are read from completions",
    "reasoning_parser": "how reasoning is read from completions",
    "text_before_calls": "the channel of a content beside a tool call where there is no reasoning",
}

_PARSERS = ("tool_parser", "reasoning_parser")
_TYPES: dict[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


@grouped
def renderers(
    name: Annotated[str | None, Argument("A renderer: list its options.", "NAME")] = None,
    as_json: Json = False,
) -> None:
    """List all renderers with their models; with NAME the options of one.

    Families without a grammar are rendered through their own chat template: listed with the parsers that read them and
    with what is proven. Options are set with --renderer-option NAME=VALUE in every command that renders.

    Example: niels-gpt renderers qwen3
    """
    from niels_gpt.renderers.registry import FAMILIES, config_from_name
    from niels_gpt.renderers.template.known import TEMPLATE_FAMILIES

    # Not of these: to `config_from_name` their names are the template's.
    if name is not None and name not in TEMPLATE_FAMILIES:
        config_from_name(name)  # refuses an unknown name, with the nearest
    names = [*FAMILIES, "template", *TEMPLATE_FAMILIES] if name is None else [name]
    entries = [_template_family(each) if each in TEMPLATE_FAMILIES else _renderer(each) for each in names]
    if as_json:
        print_json(entries if name is None else entries[0])
        return
    if name is not None:
        _print_entry(entries[0])
        return
    table = table_of("renderer", "models", "options of its own; of chat templates what is proven")
    for entry in entries:
        own = [option["name"] for option in entry.get("options", ()) if not option["shared"]]
        more = f" and {len(entry['models']) - 1} more" if len(entry["models"]) > 1 else ""
        models = "".join(model.partition("/")[2] for model in entry["models"][:1]) + more
        last = Text(entry["proven"] if "proven" in entry else "\n".join(own))
        table.add_row(Text(entry["name"], style="bold"), Text(models), last)
    out().print(table)
    out().print(Text("All models and options of one: niels-gpt renderers NAME", style="dim"))


def _template_family(name: str) -> dict[str, Any]:
    """The entry of a family without a grammar: its models, its parsers, and what is proven of its template."""
    from niels_gpt.renderers.template.known import TEMPLATE_FAMILIES

    family = TEMPLATE_FAMILIES[name]
    return {
        "name": name,
        "served": "template",
        "about": f"{family.title}, by its own chat template",
        "models": [*family.models],
        **{parser: family.options.get(parser) for parser in _PARSERS},
        "proven": family.proven,
        "stops": [*family.stops],
        "notes": family.notes,
    }


def _renderer(name: str) -> dict[str, Any]:
    """The entry of a renderer: its name, description, known models and options."""
    from niels_gpt.renderers.options import FamilyConfig
    from niels_gpt.renderers.registry import MODEL_RENDERER_MAP, RENDERER_REGISTRY, config_from_name

    config = type(config_from_name(name))
    # The descriptions are those of the docstrings, so that help and documentation cannot differ.
    described = _attributes(config)
    options = [
        {
            "name": option,
            "type": _type_name(field.annotation),
            "default": field.default,
            "help": described.get(option) or _HELP.get(option, ""),
            "shared": option in FamilyConfig.model_fields,
        }
        for option, field in config.model_fields.items()
        if option != "name"
    ]
    about = inspect.getdoc(RENDERER_REGISTRY[name]) or ""
    if not issubclass(config, FamilyConfig):
        about = "The tokenizer's own chat template, for every model without a family."
    return {
        "name": name,
        "served": "template" if name == "template" else "grammar",
        "about": " ".join(about.split("\n\n")[0].split()),
        "models": [model for model, family in MODEL_RENDERER_MAP.items() if family == name],
        "options": options,
    }


def _print_entry(entry: dict[str, Any]) -> None:
    rows = [("models", "\n".join(entry["models"]) or "any")]
    for option in entry.get("options", ()):
        default = "none" if option["default"] is None else repr(option["default"])
        rows.append((option["name"], f"{option['type']}, default {default}: {option['help']}"))
    if "proven" in entry:
        stops = ", ".join(stop or "the next turn's opener, or ordinary text" for stop in entry["stops"])
        rows += [(kind.replace("_", " "), entry[kind] or "none") for kind in (*_PARSERS, "proven")]
        rows += [("turns end in", stops or "not judged"), ("notes", entry["notes"])]
        last = "Probe by probe, for your copy: niels-gpt doctor template DIRECTORY"
    elif entry["name"] == "template":
        last = "Set any variable of the chat template with --renderer-option NAME=VALUE; VALUE is read as JSON."
    else:
        last = "Set one with --renderer-option NAME=VALUE, such as enable_thinking=false"
    out().print(key_values(f"{entry['name']}  {entry['about']}", rows))
    out().print(Text(f"\n{last}", style="dim"))


def _attributes(config: type[BaseModel]) -> dict[str, str]:
    """Option -> its description in the section "Attributes:" of the docstrings of a config class and its bases."""
    found: dict[str, str] = {}
    # Bases first, so that a subclass may describe an option anew.
    for kind in reversed(config.__mro__):
        _, _, section = (inspect.cleandoc(kind.__doc__ or "")).partition("Attributes:\n")
        # The section ends at the next line that is not indented: the closing text, or another section.
        section = re.split(r"\n\S", section)[0]
        for name, text in re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", section, flags=re.MULTILINE):
            found[name] = " ".join(text.split())
    return found


def _type_name(annotation: Any) -> str:
    """The type of VALUE in words: "true or false" for `bool | None`, "low or high" for `Literal["low", "high"]`."""
    if get_origin(annotation) is Literal:
        return " or ".join(map(str, get_args(annotation)))
    # None means that the option is not given, so it is no value that can be typed on a command line.
    parts = [part for part in get_args(annotation) or (annotation,) if part is not type(None)]
    return " or ".join(_TYPES.get(part, str(part)) for part in parts)


@grouped
def rules(
    name: Annotated[str | None, Argument("A rule: explain it.", "RULE")] = None,
    as_json: Json = False,
) -> None:
    """List the doctor's rules; with RULE what one means, its cause, the fix, and threads.

    Example: niels-gpt rules eot-not-trained
    """
    from niels_gpt.doctor.rules import RULES, rule_of
    from niels_gpt.doctor.show import explain, listing

    if as_json:
        print_json(asdict(rule_of(name)) if name is not None else [asdict(rule) for rule in RULES.values()])
        return
    page: RenderableType = listing() if name is None else explain(rule_of(name))
    out().print(page)
