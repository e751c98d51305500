"""All ways to render that are at hand: every family, each tokenizer's own template, a template file, bare text."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from niels_gpt.errors import UsageError
from niels_gpt.explorer.modes import LossMode
from niels_gpt.explorer.rendering import RAW, raw_strip, script_strip, tokens_strip
from niels_gpt.explorer.strip import Strip
from niels_gpt.explorer.wordless import NoTokenizer
from niels_gpt.messages import Message, normalise
from niels_gpt.renderers.default import DefaultRenderer
from niels_gpt.renderers.engine import Family
from niels_gpt.renderers.opening import clock_on
from niels_gpt.renderers.registry import FAMILIES, MODEL_RENDERER_MAP, create_renderer
from niels_gpt.renderers.template import load_template
from niels_gpt.tokenizer.hf import parsed
from niels_gpt.tokenizer.opening import open_encoder
from niels_gpt.tokenizer.protocol import PieceEncoder

TEMPLATE, FILE = "template", "file"
_TOKENIZER_FILES = ("tokenizer.json", "spm.model")
MOST_CHARACTERS = 2_000_000  # of a conversation: about half a million tokens, and 100 bytes each for the page
_MOST_ENCODERS = 8  # of a hundred megabytes each
_BY_FOLDER = {hub.split("/")[1].casefold(): name for hub, name in MODEL_RENDERER_MAP.items()}


@dataclass(frozen=True)
class Choice:
    """How a conversation is to be rendered.

    Attributes:
        renderer: a family, "template" (the tokenizer's own, or `source`), "file" (--template), or "raw".
        tokenizer: the name of one of the gallery's; empty for text alone.
        source: the text of a chat template, with "template".
    """

    renderer: str
    tokenizer: str = ""
    source: str | None = None


@dataclass(frozen=True)
class Exhibit:
    """An entry of the zoo: what it is called, and how it is rendered."""

    title: str
    renderer: str
    tokenizer: str
    note: str = ""


class Gallery:
    """Tokenizers by name, and renderers made of them when they are first asked for.

    Args:
        tokenizers: directories, hub names, or directories of tokenizer directories.
        renderer: what the first tokenizer is for; default by its name.
        template: a file with a chat template, for the first tokenizer.
        date: what templates are told that ask for the day, as 2026-01-31.

    Raises:
        UsageError: nothing usable at a path, or a template without a tokenizer to go with it.
    """

    def __init__(
        self,
        tokenizers: Sequence[str] = (),
        *,
        renderer: str | None = None,
        template: Path | None = None,
        date: str | None = None,
    ) -> None:
        self.tokenizers = _named(tokenizers)
        self._template, self._clock, self._dated = template, clock_on(date), date is not None
        self._encoders: OrderedDict[str, PieceEncoder] = OrderedDict()
        self._renderers: OrderedDict[Choice, Family | DefaultRenderer] = OrderedDict()
        self._lock = threading.Lock()
        self._loading: dict[str, threading.Lock] = {name: threading.Lock() for name in self.tokenizers}
        if template is not None:
            if not self.tokenizers:
                raise UsageError(f"{template}: a chat template needs a tokenizer; pass --tokenizer DIR with it")
            load_template(template)
        if renderer is not None and renderer not in (*FAMILIES, "auto", "default", TEMPLATE):
            create_renderer(NoTokenizer(()), renderer)  # says which are known
        self._family_tokenizers = self._by_family(renderer)
        self.first = self._first(renderer)

    def _by_family(self, renderer: str | None) -> dict[str, str]:
        """Of each family the first tokenizer that is its own."""
        found: dict[str, str] = {}
        for name, place in self.tokenizers.items():
            family = family_of(place)
            if renderer in FAMILIES and not found:
                found[renderer] = name
            if family is not None:
                found.setdefault(family, name)
        return found

    def _first(self, renderer: str | None) -> Choice:
        """What files are rendered with unless the page chooses otherwise."""
        first = next(iter(self.tokenizers), "")
        if self._template is not None:
            return Choice(FILE, first)
        if renderer in FAMILIES:
            return Choice(str(renderer), self._family_tokenizers.get(str(renderer), first))
        if not first:
            return Choice("qwen3")
        own = next((family for family, name in self._family_tokenizers.items() if name == first), None)
        return Choice(own or TEMPLATE, first) if renderer in (None, "auto") else Choice(TEMPLATE, first)

    def exhibits(self) -> list[Exhibit]:
        """Everything that can be shown: bare text, all families, the tokenizers' own templates."""
        first = self.first.tokenizer
        shown = [Exhibit("bare text", RAW, first, "contents with a space between: what a base model would be given")]
        shown += [Exhibit(name, name, self._family_tokenizers.get(name, "")) for name in FAMILIES]
        shown += [
            Exhibit(f"template of {name}", TEMPLATE, name)
            for name, place in self.tokenizers.items()
            if family_of(place) != "ngpt"  # our own models have none
        ]
        if self._template is not None:
            shown.append(Exhibit(self._template.name, FILE, first, "--template"))
        return shown

    def encoder(self, name: str) -> PieceEncoder:
        """A tokenizer, loaded once; the least recently used leaves when there are many.

        Raises:
            UsageError: no such name. TokenizerError: it cannot be used.
        """
        if name not in self.tokenizers:
            known = ", ".join(self.tokenizers) or "none; start with --tokenizer DIR"
            raise UsageError(f"no tokenizer {name!r}; known: {known}")
        with self._loading[name]:
            with self._lock:
                found = self._encoders.get(name)
            if found is None:
                found = open_encoder(self.tokenizers[name])
            with self._lock:
                self._encoders[name] = found
                self._encoders.move_to_end(name)
                while len(self._encoders) > _MOST_ENCODERS:
                    gone, _ = self._encoders.popitem(last=False)
                    for choice in [choice for choice in self._renderers if choice.tokenizer == gone]:
                        del self._renderers[choice]
        return found

    def renderer(self, choice: Choice) -> Family | DefaultRenderer:
        """The renderer of a choice that is not bare text; families without a tokenizer can write scripts alone.

        Raises:
            UsageError: no such renderer. TokenizerError, TemplateError: they do not go together.
        """
        with self._lock:
            found = self._renderers.get(choice)
        if found is None:
            found = self._made(choice)
            with self._lock:
                self._renderers[choice] = found
                while len(self._renderers) > 4 * _MOST_ENCODERS:
                    self._renderers.popitem(last=False)
        return found

    def _made(self, choice: Choice) -> Family | DefaultRenderer:
        name = choice.renderer
        if name in FAMILIES and not choice.tokenizer:
            family = FAMILIES[name]
            return family(NoTokenizer([*family.controls, *family.stops]))
        if name in (TEMPLATE, FILE) and not choice.tokenizer:
            raise UsageError("a chat template needs a tokenizer: start with --tokenizer DIR, then choose one")
        if name not in (*FAMILIES, TEMPLATE, FILE):
            create_renderer(NoTokenizer(()), name)  # says which are known
        encoder = self.encoder(choice.tokenizer)
        if name in FAMILIES:
            option, form = FAMILIES[name].config_class.day
            told = {option: self._clock(form)} if option and self._dated else {}
            return create_renderer(encoder, {"name": name, **told})
        source = load_template(self._template) if name == FILE and self._template else choice.source
        return DefaultRenderer(encoder, template=source, clock=self._clock)

    def strip(
        self, messages: object, tools: Any, choice: Choice, modes: Sequence[LossMode], *, prompt: bool = False
    ) -> Strip:
        """A conversation rendered as chosen.

        Args:
            prompt: with the generation prompt behind it.

        Raises:
            MessageError: the renderer refuses the conversation. Else as `renderer`.
        """
        given = normalise(messages)
        check_size(given, tools)
        if choice.renderer == RAW:
            encoder = self.encoder(choice.tokenizer) if choice.tokenizer else None
            return raw_strip(given, modes, encoder, choice.tokenizer)
        title = choice.renderer if choice.renderer in FAMILIES else "template"
        told = {"title": title, "renderer": choice.renderer, "tokenizer": choice.tokenizer}
        renderer = self.renderer(choice)
        if isinstance(renderer, Family) and isinstance(renderer.encoder, NoTokenizer):
            return script_strip(renderer, given, tools, modes, prompt=prompt, **told)
        return tokens_strip(renderer, given, tools, modes, prompt=prompt, **told)


def characters(messages: Sequence[Message], tools: Any) -> int:
    """How long a conversation is, tool declarations included."""
    fields = (value for message in messages for value in message.values())
    return sum(len(held) if isinstance(held, str) else _length(held) for held in (*fields, tools))


def _length(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False, default=str)) if value else 0


def check_size(messages: Sequence[Message], tools: Any) -> None:
    """Refuse what is too long for a page.

    Raises:
        UsageError: more than `MOST_CHARACTERS`.
    """
    size = characters(messages, tools)
    if size > MOST_CHARACTERS:
        raise UsageError(
            f"the conversation has {size:,} characters; the page shows at most {MOST_CHARACTERS:,}. "
            "Look at longer ones in a terminal: niels-gpt render"
        )


def _named(given: Sequence[str]) -> dict[str, str]:
    """Tokenizers by a short name: the directory's, with a number where two share one."""
    named: dict[str, str] = {}
    for place in (found for source in given for found in _places(source)):
        base = Path(place).resolve().name if Path(place).exists() else place
        name, number = base, 2
        while name in named:
            name, number = f"{base} ({number})", number + 1
        named[name] = place
    return named


def _places(source: str) -> list[str]:
    """A tokenizer, or all those in a directory of directories."""
    path = Path(source).expanduser()
    if not path.is_dir() or any((path / name).is_file() for name in _TOKENIZER_FILES):
        return [str(path) if path.exists() else source]
    inside = sorted(child for child in path.iterdir() if any((child / name).is_file() for name in _TOKENIZER_FILES))
    if not inside:
        raise UsageError(
            f"{source}: no tokenizer there: expected {' or '.join(_TOKENIZER_FILES)}, or directories that hold one"
        )
    return [str(child) for child in inside]


def family_of(place: str) -> str | None:
    """The family whose own tokenizer this is, by exact hub name or the directory's name; `None` if that is not told."""
    path = Path(place)
    if not path.exists():
        return MODEL_RENDERER_MAP.get(place)
    folder = path if path.is_dir() else path.parent
    if (folder / "spm.model").is_file() and not (folder / "tokenizer.json").is_file():
        return "ngpt"
    told = folder / "family.json"  # beside the tokenizers that tests use
    names = parsed(told.read_bytes(), str(told)).get("hub_names") if told.is_file() else []
    known = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    by_hub = next((MODEL_RENDERER_MAP[name] for name in known if name in MODEL_RENDERER_MAP), None)
    return by_hub or _BY_FOLDER.get(folder.resolve().name.casefold())
