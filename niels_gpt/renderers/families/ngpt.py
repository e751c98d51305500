"""ngpt: the package's own format for models trained from scratch. A sentinel, a text, an end of turn."""

from __future__ import annotations

from typing import Literal

from niels_gpt.renderers.family import ConversationView, Emitter, Family, FamilyConfig
from niels_gpt.renderers.refusals import refuse_late_system
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
    end_turn = (_END, "")
    stops = (_END,)
    controls = (_SYSTEM, _USER, _ASSISTANT)
    has_reasoning = False
    system_turn, user_turn = (_SYSTEM, _END), (_USER, _END)
    assistant_header = _ASSISTANT

    def begin(self, view: ConversationView, out: Emitter) -> int:
        """Check the conversation; write the default system turn, of no message, where there is none.

        Raises:
            MessageError: `late_system`.
        """
        for index, role in enumerate(view.roles):
            if index and role == "system":
                refuse_late_system(index, self.name)
        if not view.has_system:
            out.labelled(_SYSTEM, self.config.default_system_text, _END, -1)
        return 0

    def assistant(self, view: ConversationView, index: int, out: Emitter) -> None:
        out.assistant_turn(_ASSISTANT, view.text(index), *self.end_turn, index)
