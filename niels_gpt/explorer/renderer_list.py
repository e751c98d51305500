"""All renderers that the page offers: every family, each tokenizer's own template, a template file, and bare text.

A family whose tokenizer is not available is also offered: it then writes text with its attribution, but no ids.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from niels_gpt.errors import UsageError
from niels_gpt.explorer.rendering import RAW, TextOnlyEncoder, bare_text_table, rendered_table
from niels_gpt.explorer.token_columns import LossMode, TokenTable
from niels_gpt.messages import Message, normalise
from niels_gpt.renderers.family import Family
from niels_gpt.renderers.registry import (
    FAMILIES,
    RendererOptions,
    automatic_renderer,
    clock_on,
    config_of,
    create_renderer,
    typed_options,
)
from niels_gpt.renderers.template.known import TEMPLATE_FAMILIES
from niels_gpt.renderers.template.renderer import DefaultRenderer, DefaultRendererConfig, load_template
from niels_gpt.tokenizer.load import open_encoder
from niels_gpt.tokenizer.pieces import PieceEncoder

TEMPLATE, FILE = "template", "file"
_TOKENIZER_FILES = ("tokenizer.json", "spm.model")
MOST_CHARACTERS = 2_000_000  # of a conversation: about half a million tokens, and 100 bytes each for the page
_MOST_ENCODERS = 12  # of a hundred megabytes each


@dataclass(frozen=True)
class RendererChoice:
    """How a conversation is to be rendered.

    Attributes:
        renderer: a family, "template" (the tokenizer's own, or `source`), "file" (--template), or "raw".
        tokenizer: a name of `RendererList.tokenizers`; empty for text without ids.
        source: the text of a chat template, with "template".
    """

    renderer: str
    tokenizer: str = ""
    source: str | None = None


AUTOMATIC: Final = RendererOptions()


class RendererList:
    """Tokenizers by name, and renderers, made when they are first used. Methods may be called from several threads.

    Args:
        tokenizers: directories, hub names, or directories of tokenizer directories.
        chosen: how rows are rendered with the first tokenizer; default by its name.

    Attributes:
        tokenizers: path or hub name by the short name that the page shows.
        automatic: the renderer of each tokenizer where none is named, as in every command.
        first: what files are rendered with unless the page chooses otherwise.

    Raises:
        UsageError: nothing usable at a path, or a template without a tokenizer to go with it.
    """

    def __init__(self, tokenizers: Sequence[str] = (), chosen: RendererOptions = AUTOMATIC) -> None:
        self._chosen, renderer, template = chosen, chosen.name, chosen.template
        self.tokenizers = _by_name(tokenizers)
        self.automatic = {name: automatic_renderer(place) for name, place in self.tokenizers.items()}
        self._template, self._clock, self._dated = template, clock_on(chosen.date), chosen.date is not None
        # The page asks for several formats at once: two tokenizers load side by side, the same one not twice.
        self._loading = {name: threading.Lock() for name in self.tokenizers}
        self._encoders = lru_cache(_MOST_ENCODERS)(open_encoder)
        self._renderers = lru_cache(_MOST_ENCODERS)(self._create)
        if template is not None:
            if not self.tokenizers:
                raise UsageError(f"{template}: a chat template needs a tokenizer; pass --tokenizer DIR with it")
            load_template(template)
        if renderer not in (*FAMILIES, *TEMPLATE_FAMILIES, "auto", "default", TEMPLATE):
            create_renderer(TextOnlyEncoder(()), renderer)  # raises, and names the known ones
        # The first of the tokenizers that belongs to each family. A family that the user names is taken for the first
        # tokenizer, whatever its directory looks like.
        self._family_tokenizers: dict[str, str] = {}
        for name, automatic in self.automatic.items():
            if renderer in FAMILIES:
                self._family_tokenizers.setdefault(renderer, name)
            if automatic.renderer in FAMILIES:
                self._family_tokenizers.setdefault(automatic.renderer, name)
        self.first = self._first(renderer)
        RendererOptions(
            TEMPLATE if self.first.renderer == FILE else self.first.renderer, options=self._chosen.options
        ).check()

    def _first(self, renderer: str) -> RendererChoice:
        """The choice with which files are rendered unless the page makes another."""
        first = next(iter(self.tokenizers), "")
        if self._template is not None:
            return RendererChoice(FILE, first)
        if renderer in FAMILIES:
            return RendererChoice(renderer, self._family_tokenizers.get(renderer, first))
        if not first:
            # Without a tokenizer the page still shows text with its attribution; any family would do.
            return RendererChoice("qwen3")
        return RendererChoice(self.automatic[first].renderer if renderer == "auto" else TEMPLATE, first)

    def listed(self) -> list[dict[str, str]]:
        """The entries, each with its `title` and the `renderer` and `tokenizer` that it offers.

        Bare text, all families, the tokenizers' own templates, and the template file.
        """
        first = self.first.tokenizer
        shown = [("bare text", RAW, first)]
        shown += [(name, name, self._family_tokenizers.get(name, "")) for name in FAMILIES]
        shown += [
            (f"template of {name}", TEMPLATE, name)
            for name, automatic in self.automatic.items()
            if automatic.renderer != "ngpt"  # our own models have none
        ]
        if self._template is not None:
            shown.append((self._template.name, FILE, first))
        return [{"title": title, "renderer": renderer, "tokenizer": name} for title, renderer, name in shown]

    def encoder(self, name: str) -> PieceEncoder:
        """A tokenizer, loaded at its first use.

        Raises:
            UsageError: no such name. TokenizerError: it cannot be used.
        """
        if name not in self.tokenizers:
            known = ", ".join(self.tokenizers) or "none; start with --tokenizer DIR"
            raise UsageError(f"no tokenizer {name!r}; known: {known}")
        with self._loading[name]:
            return self._encoders(self.tokenizers[name])

    def renderer(self, choice: RendererChoice) -> Family | DefaultRenderer:
        """The renderer of a choice that is not bare text; a family without a tokenizer writes text only.

        Raises:
            UsageError: no such renderer. TokenizerError, TemplateError: renderer and tokenizer do not fit.
        """
        return self._renderers(choice)

    def _create(self, choice: RendererChoice) -> Family | DefaultRenderer:
        made: Family | DefaultRenderer
        name = choice.renderer
        # Other families do not have the options that the command line set for this one.
        options = self._chosen.options if name == self.first.renderer else {}
        family = FAMILIES.get(name)
        if family is None and name not in (TEMPLATE, FILE):
            create_renderer(TextOnlyEncoder(()), name)  # raises, and names the known ones
        options = typed_options(DefaultRendererConfig if family is None else family.config_class, options)
        if not choice.tokenizer:
            if family is None:
                raise UsageError("a chat template needs a tokenizer: start with --tokenizer DIR, then choose one")
            config: Any = config_of({"name": name, **options})
            made = family(TextOnlyEncoder([*family.controls, *family.stops]), config)
        elif family is None:
            source = load_template(self._template) if name == FILE and self._template else choice.source
            made = DefaultRenderer(self.encoder(choice.tokenizer), template=source, clock=self._clock, **options)
        else:
            option, form = family.config_class.day
            day = {option: self._clock(form)} if option and self._dated else {}
            made = create_renderer(self.encoder(choice.tokenizer), {"name": name, **day, **options})
        return made.lists_unwritten()  # the page shows what is left out

    def table(
        self,
        messages: object,
        tools: Any,
        choice: RendererChoice,
        modes: Sequence[LossMode],
        *,
        prompt: bool = False,
        kwargs: Mapping[str, Any] | None = None,
    ) -> TokenTable:
        """A conversation rendered as chosen.

        Args:
            prompt: add the generation prompt.
            kwargs: the conversation's `chat_template_kwargs`.

        Raises:
            MessageError: the renderer refuses the conversation. Else as `renderer`.
        """
        conversation = normalise(messages)
        check_size(conversation, tools)
        if choice.renderer == RAW:
            encoder = self.encoder(choice.tokenizer) if choice.tokenizer else None
            return bare_text_table(conversation, modes, encoder, choice.tokenizer)
        title = choice.renderer if choice.renderer in FAMILIES else "template"
        labels = {"title": title, "renderer": choice.renderer, "tokenizer": choice.tokenizer}
        renderer = self.renderer(choice).with_kwargs(kwargs)
        return rendered_table(renderer, conversation, tools, modes, prompt=prompt, **labels)


def check_size(messages: Sequence[Message], tools: Any) -> None:
    """Refuse a conversation that is too long for a page.

    Raises:
        UsageError: more than `MOST_CHARACTERS`, tool declarations included.
    """
    size = len(json.dumps([messages, tools or ""], ensure_ascii=False, default=str))
    if size > MOST_CHARACTERS:
        raise UsageError(
            f"the conversation has {size:,} characters; the page shows at most {MOST_CHARACTERS:,}. "
            "Look at longer ones in a terminal: niels-gpt show"
        )


def _by_name(sources: Sequence[str]) -> dict[str, str]:
    """Tokenizers by a short name: the directory's, with a number where two have the same."""
    named: dict[str, str] = {}
    for source in sources:
        path = Path(source).expanduser()
        if not path.is_dir():
            places = [str(path) if path.exists() else source]  # a name on the hub stays as it is
        elif any((path / name).is_file() for name in _TOKENIZER_FILES):
            places = [str(path)]
        else:  # a directory of tokenizer directories; in order, so that the first one is always the same
            places = sorted(
                str(child) for child in path.iterdir() if any((child / name).is_file() for name in _TOKENIZER_FILES)
            )
        if not places:
            raise UsageError(
                f"{source}: no tokenizer there: expected {' or '.join(_TOKENIZER_FILES)}, or directories that hold one"
            )
        for place in places:
            # A relative path such as "." has no name of its own.
            base = Path(place).resolve().name if Path(place).exists() else place
            name, number = base, 2
            while name in named:
                name, number = f"{base} ({number})", number + 1
            named[name] = place
    return named
