"""ngpt: the package's own format for models trained from scratch. A sentinel, a text, an end of turn."""

from __future__ import annotations

from typing import Literal

from niels_gpt.errors import MessageError
from niels_gpt.renderers.conversation import ConversationView
from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.family import Family
from niels_gpt.renderers.options import FamilyConfig
from niels_gpt.renderers.unsupported import refuse_tools
from niels_gpt.tokenizer.sentinels import SPECIAL_TOKENS


class NgptRendererConfig(FamilyConfig):
    """Options of ngpt; `default_system_text` is written where a conversation has no system message."""

    name: Literal["ngpt"] = "ngpt"
    default_system_text: str = "you are a helpful assistant."


_SYSTEM, _USER, _ASSISTANT, _END = SPECIAL_TOKENS


class NgptRenderer(Family):
    """Turns between sentinels; `format.sft.serialize_chat_to_ids` writes the same ids.

    With `<sys>`, `<usr>`, `<asst>` and `<eot>` for the four sentinels::

        <sys>you are a helpful assistant.<eot><usr>hello<eot><asst>hi<eot>
    """

    name = "ngpt"
    config_class = NgptRendererConfig
    roles = ("system", "user", "assistant")
    stops = (_END,)
    controls = (_SYSTEM, _USER, _ASSISTANT)
    has_reasoning = False

    def begin(self, view: ConversationView, out: Emitter) -> int:
        """Check the conversation; write the default system turn, of no message, where there is none.

        Raises:
            MessageError: `unsupported_field`: tools, calls or reasoning; `late_system`.
        """
        refuse_tools(view, self.name)
        for index, message in enumerate(view.messages):
            field = next((name for name in ("tool_calls", "reasoning_content") if message.get(name)), None)
            if field is not None:
                raise MessageError(
                    "unsupported_field", f"message {index}: {field} has no place in the ngpt format; remove it"
                )
            if index and message["role"] == "system":
                raise MessageError(
                    "late_system", f"message {index}: a system message after others; expected at most one, first"
                )
        if view.roles[0] != "system":
            out.scaffold(_SYSTEM)
            out.untrusted_label(self.config.default_system_text, -1)
            out.scaffold(_END)
        return 0

    def system(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a system message."""
        out.turn(_SYSTEM, view.text(index), _END, index)

    def user(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a user message."""
        out.turn(_USER, view.text(index), _END, index)

    def assistant(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write an assistant message."""
        out.scaffold(_ASSISTANT, index)
        out.model_text(view.text(index), index)
        out.model_markup(_END, index)

    def generation_prompt(self, view: ConversationView, out: Emitter) -> None:
        """Write the assistant's sentinel."""
        out.scaffold(_ASSISTANT)
