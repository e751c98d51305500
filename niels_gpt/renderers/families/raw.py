"""No markers: texts one after the other, as base models read them."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from niels_gpt.errors import TokenizerError
from niels_gpt.renderers.completions.reading import Trim
from niels_gpt.renderers.family import ConversationView, Emitter, Family, FamilyConfig
from niels_gpt.tokenizer.encoder import TokenizerAdapter


class RawRendererConfig(FamilyConfig):
    """No markers; `separator` is the text between two messages."""

    name: Literal["raw"] = "raw"
    separator: str = " "


class RawRenderer(Family):
    """Texts with a separator between them, and the tokenizer's eos after each of the assistant's, if it has one.

    A separator's newlines belong to the format, and the generation prompt supplies them. Blanks at its end belong to
    the text after them, because a word and the blank before it are one token::

        separator " "      user  What?      assistant  " Yes.<eos>"      prompt  (empty)
        separator "\\n\\n"   user  What?      assistant  "Yes.<eos>"       prompt  "\\n\\n"

    Nothing marks who is speaking, so a text that ends in white space may share a token with what follows. A tokenizer
    without eos has no stop: completions are read to their end, and a bridge cannot continue them.

    Raises:
        TokenizerError: the tokenizer's eos is not one of its added tokens.
    """

    name = "raw"
    config_class: ClassVar[type[FamilyConfig]] = RawRendererConfig
    roles = ("system", "user", "assistant")
    stops: ClassVar[tuple[str, ...]] = ()
    has_reasoning = False

    def __init__(self, tokenizer: Any, config: FamilyConfig | None = None, **options: Any) -> None:
        super().__init__(tokenizer, config, **options)
        eos = self.encoder.special_tokens.get("eos_token", "")
        if eos and eos not in self.encoder.added_ids:
            raise TokenizerError(
                f"{self.encoder.name}: eos_token is {eos!r}, which is no added token; expected one. Repair "
                "tokenizer_config.json"
            )
        # The eos is only known with the tokenizer, so what `Family` does with `stops` is done here.
        self.end_turn = (eos, "")
        if eos and isinstance(self.encoder, TokenizerAdapter):
            self.encoder = self.encoder.with_controls([eos])
        self._stop_ids = [self.encoder.added_ids[eos]] if eos else []
        separator: str = self.config.separator
        self._newlines = separator.rstrip(" ")
        self._blanks = separator[len(self._newlines) :]
        self.content_trim = Trim(prefix=self._blanks)

    def system(self, view: ConversationView, index: int, out: Emitter) -> None:
        out.content(self._separate(out, index) + view.text(index), index)

    def user(self, view: ConversationView, index: int, out: Emitter) -> None:
        out.content(self._separate(out, index) + view.text(index), index)

    def assistant(self, view: ConversationView, index: int, out: Emitter) -> None:
        out.model_reply(self._separate(out, index) + view.text(index), *self.end_turn, index)

    def _separate(self, out: Emitter, index: int) -> str:
        """Write the newlines between two texts, and return the blanks that the second begins with."""
        if not out.texts:
            return ""
        out.scaffold(self._newlines, index)
        return self._blanks

    def generation_prompt(self, view: ConversationView, out: Emitter) -> None:
        out.scaffold(self._newlines)
