"""gpt-oss: Harmony. Reasoning, calls and answers go to channels of their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from niels_gpt.errors import MessageError
from niels_gpt.messages import Message, normalise
from niels_gpt.renderers.bridge import has_nothing_to_bridge
from niels_gpt.renderers.calls import schemas_of
from niels_gpt.renderers.chat import Chat, to_json
from niels_gpt.renderers.completion import Completion
from niels_gpt.renderers.configs import GptOssRendererConfig
from niels_gpt.renderers.engine import Family
from niels_gpt.renderers.harmony import CHANNEL, END, MESSAGE, START, HarmonyCalls, messages_of
from niels_gpt.renderers.harmony_tools import namespace
from niels_gpt.renderers.parsing import ParsedResponse
from niels_gpt.renderers.refusals import refuse_late_system, refuse_many_calls
from niels_gpt.renderers.rendered import RenderedTokens
from niels_gpt.renderers.script import Script
from niels_gpt.renderers.tools import Tools, tools_of


class GptOssRenderer(Family):
    """gpt-oss 20b and 120b. One call a turn, with reasoning and a text before it; the date is an option, no clock."""

    name = "gpt-oss"
    config_class = GptOssRendererConfig
    roles = ("system", "user", "assistant", "tool", "developer")
    stops = ("<|return|>", "<|call|>")
    controls = (START, CHANNEL, MESSAGE, END)
    cut_end = END
    calls = _DIALECT = HarmonyCalls()

    def begin(self, chat: Chat, out: Script) -> int:
        """The system block, which is nobody's; then the developer's with instructions and tools, if there are any."""
        out.frame(f"{START}system{MESSAGE}")
        out.label(self._system(chat), -1)
        out.frame(END)
        given = chat.roles[0] in ("system", "developer")
        instructions = chat.text(0) if given else ""
        if not instructions and not chat.tools:
            return int(given)
        owner = 0 if instructions else -1
        out.frame(f"{START}developer{MESSAGE}", owner)
        if instructions:
            out.turn("# Instructions\n\n", instructions, "\n\n", owner)
        if chat.tools:
            out.frame("# Tools\n\n", owner)
            out.label(chat.tools.written(_functions), owner)
        out.frame(END, owner)
        return int(given)

    def _system(self, chat: Chat) -> str:
        told = self.config
        date = f"Current date: {told.conversation_start_date}\n" if told.conversation_start_date else ""
        callable_ = "\nCalls to these tools must go to the commentary channel: 'functions'." if chat.tools else ""
        return (
            f"{told.model_identity}\nKnowledge cutoff: {told.knowledge_cutoff}\n{date}\n"
            f"Reasoning: {told.reasoning_effort}\n\n"
            f"# Valid channels: analysis, commentary, final. Channel must be included for every message.{callable_}"
        )

    def system(self, chat: Chat, index: int, out: Script) -> None:
        """Only the first message may be one."""
        refuse_late_system(index, self.name)

    def user(self, chat: Chat, index: int, out: Script) -> None:
        """A user message."""
        out.turn(f"{START}user{MESSAGE}", chat.text(index), END, index)

    def assistant(self, chat: Chat, index: int, out: Script) -> None:
        """Reasoning where it still counts, then a call or an answer; all behind the first role is the model's."""
        calls, analysis, preamble = chat.calls(index), chat.reasoning(index), ""
        last = index == len(chat.roles) - 1 and not chat.prompted
        out.frame(f"{START}assistant", index)
        if calls:
            refuse_many_calls(chat, index, self.name)
            analysis, preamble = self._before_call(analysis, chat.text(index))
        kept = index > chat.last_answer if calls else last
        if analysis is not None and (kept or self.keeps_thinking(chat, index)):
            self._say("analysis", analysis, f"{END}{START}assistant", out, index)
        if preamble:
            self._say("commentary", preamble, f"{END}{START}assistant", out, index)
        if calls:
            self._DIALECT.write(calls[0], out, index)
        else:
            self._say("final", chat.text(index), "<|return|>" if last else END, out, index)

    @staticmethod
    def _say(channel: str, text: str, end: str, out: Script, index: int) -> None:
        out.marks(f"{CHANNEL}{channel}{MESSAGE}", index)
        out.says(text, index)
        out.marks(end, index)

    def _before_call(self, reasoning: str | None, content: str) -> tuple[str | None, str]:
        """What stands on the channels analysis and commentary before a call.

        A text without reasoning goes to analysis, as the official template has it, unless `text_before_calls` says
        otherwise. The template refuses both beside one call; the model writes them so.
        """
        if reasoning or self.config.text_before_calls == "commentary":
            return reasoning or None, content
        return content or None, ""

    def tool(self, chat: Chat, index: int, out: Script) -> None:
        """A result as JSON, headed by the function that was called last.

        Raises:
            MessageError: the call is not among the messages (they follow a completion), and the result has no name.
        """
        called = (calls[0].name for i in range(index - 1, -1, -1) if (calls := chat.calls(i)))
        name = next(called, None) or chat.messages[index].get("name")
        if not name:
            raise MessageError(
                "missing_field", f"message {index}: name is missing; expected the function that gpt-oss heads it by"
            )
        out.frame(f"{START}functions.", index)
        out.label(name, index)
        out.turn(f" to=assistant{CHANNEL}commentary{MESSAGE}", to_json(chat.text(index)), END, index)

    def prompt(self, chat: Chat, out: Script) -> None:
        """The model writes channel and recipient itself."""
        out.frame(f"{START}assistant")

    def parse_response(self, token_ids: Sequence[int], *, tools: Any = None) -> ParsedResponse:
        """Analysis is reasoning, what goes to a function is a call, all else, a preamble too, is content."""
        said, schemas = Completion(self.encoder, token_ids, self._stop_ids), schemas_of(tools_of(tools))
        told = [message for message in messages_of(said) if message.recipient is None]
        thoughts = (said.told(each.body, each.stop) for each in told if each.channel == "analysis")
        texts = (said.told(each.body, each.stop) for each in told if each.channel != "analysis")
        calls = (block.call for block in self._DIALECT.read(said, 0, schemas))
        return ParsedResponse(_joined(texts), _joined(thoughts) or None, [call for call in calls if call is not None])

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: Sequence[int],
        previous_completion_ids: Sequence[int],
        new_messages: Sequence[Message],
        *,
        tools: Any = None,
    ) -> RenderedTokens | None:
        """As everywhere; results without a name have that of the call that was sampled, for it heads them."""
        if has_nothing_to_bridge(previous_prompt_ids, new_messages):
            return None
        calls = self.parse_response(previous_completion_ids).tool_calls
        given = normalise(new_messages)
        if calls and calls[-1].name:
            name = calls[-1].name
            given = [{"name": name, **message} if message["role"] == "tool" else message for message in given]
        return super().bridge_to_next_turn(previous_prompt_ids, previous_completion_ids, given, tools=tools)


def _functions(tools: Tools) -> str:
    return namespace("functions", tools)


def _joined(texts: Iterable[str]) -> str:
    """Messages on one channel as one text."""
    return "\n".join(text for text in texts if text)
