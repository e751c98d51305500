"""No markers at all: texts one behind the other, as base models read them (document 004, "raw concatenation")."""

from __future__ import annotations

from typing import Any, ClassVar

from niels_gpt.errors import TokenizerError
from niels_gpt.renderers.chat import Chat
from niels_gpt.renderers.completion import Completion
from niels_gpt.renderers.configs import FamilyConfig, RawRendererConfig
from niels_gpt.renderers.engine import Family
from niels_gpt.renderers.refusals import refuse_calls, refuse_tools
from niels_gpt.renderers.script import Script
from niels_gpt.tokenizer.encoder import Encoder


class RawRenderer(Family):
    """Texts with a separator between them, and the tokenizer's eos behind each of the assistant's, if it has one.

    A separator's newlines belong to the format, and the generation prompt supplies them; blanks at its end belong to
    the text behind them, because words and the blanks before them are one token::

        separator " "      user  What?      assistant  " Yes.<eos>"      prompt  nothing
        separator "\\n\\n"   user  What?      assistant  "Yes.<eos>"       prompt  "\\n\\n"

    Nothing says who speaks, so texts that end in white space may share a token with what follows. A tokenizer without
    eos has no stop: completions are read to their end, and nothing can be bridged behind them.

    Raises:
        TokenizerError: the tokenizer's eos is not one of its added tokens.
    """

    name = "raw"
    config_class: ClassVar[type[FamilyConfig]] = RawRendererConfig
    roles = ("system", "user", "assistant")
    stops: ClassVar[tuple[str, ...]] = ()

    def __init__(self, tokenizer: Any, config: FamilyConfig | None = None, **options: Any) -> None:
        super().__init__(tokenizer, config, **options)
        self._eos = self.encoder.special_tokens.get("eos_token", "")
        if self._eos and self._eos not in self.encoder.added_ids:
            raise TokenizerError(
                f"{self.encoder.name}: eos_token is {self._eos!r}, which is no added token; expected one. Repair "
                "tokenizer_config.json"
            )
        if self._eos and isinstance(self.encoder, Encoder):
            self.encoder = self.encoder.with_controls([self._eos])
        self._stop_ids = [self.encoder.added_ids[self._eos]] if self._eos else []
        separator: str = self.config.separator
        self._before = separator.rstrip(" ")
        self._blanks = separator[len(self._before) :]

    def begin(self, chat: Chat, out: Script) -> int:
        """Nothing."""
        refuse_tools(chat, self.name)
        return 0

    def system(self, chat: Chat, index: int, out: Script) -> None:
        """A text."""
        out.body(self._begun(out, index) + chat.text(index), index)

    def user(self, chat: Chat, index: int, out: Script) -> None:
        """A text."""
        out.body(self._begun(out, index) + chat.text(index), index)

    def assistant(self, chat: Chat, index: int, out: Script) -> None:
        """A text and the end."""
        refuse_calls(chat, index, self.name)
        out.reply(self._begun(out, index) + chat.text(index), self._eos, "", index)

    def _begun(self, out: Script, index: int) -> str:
        """Write what stands between two texts, and return the blanks that the second begins with."""
        if not out.texts:
            return ""
        out.frame(self._before, index)
        return self._blanks

    def prompt(self, chat: Chat, out: Script) -> None:
        """What of a separator is the format's."""
        out.frame(self._before)

    def read_thinking(self, said: Completion) -> tuple[str, int]:
        """The format has no reasoning; think tags are text."""
        return "", 0

    def tidy(self, content: str) -> str:
        """The separator's blanks are no content."""
        return content.removeprefix(self._blanks)
