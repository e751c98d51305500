"""gpt-oss: Harmony. One assistant message is several of the format's own, each with a channel and maybe a recipient."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from niels_gpt.errors import MessageError
from niels_gpt.renderers.chat import Call, Chat, to_json
from niels_gpt.renderers.completion import Completion
from niels_gpt.renderers.configs import GptOssRendererConfig
from niels_gpt.renderers.engine import Family
from niels_gpt.renderers.harmony_tools import namespace
from niels_gpt.renderers.parsing import ParsedResponse, ParsedToolCall
from niels_gpt.renderers.parsing import ToolCallParseStatus as Status
from niels_gpt.renderers.refusals import refuse_late_system
from niels_gpt.renderers.script import Script

_RECIPIENT = re.compile(r"to=(?:functions\.)?([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>(\w+)")


class GptOssRenderer(Family):
    """gpt-oss 20b and 120b. The date is an option, never the clock."""

    name = "gpt-oss"
    config_class = GptOssRendererConfig
    roles = ("system", "developer", "user", "assistant", "tool")
    stops = ("<|return|>", "<|call|>")
    controls = ("<|start|>", "<|message|>", "<|channel|>", "<|end|>")

    def begin(self, chat: Chat, out: Script) -> int:
        """The system block of nobody's, then the developer's: instructions, and tools."""
        options = self.config
        callable_ = "\nCalls to these tools must go to the commentary channel: 'functions'." if chat.tools else ""
        date = f"Current date: {options.conversation_start_date}\n" if options.conversation_start_date else ""
        out.frame("<|start|>system<|message|>")
        out.label(
            f"{options.model_identity}\nKnowledge cutoff: {options.knowledge_cutoff}\n{date}\n"
            f"Reasoning: {options.reasoning_effort}\n\n"
            f"# Valid channels: analysis, commentary, final. Channel must be included for every message.{callable_}",
            -1,
        )
        out.frame("<|end|>")
        given = chat.roles[0] in ("system", "developer")
        instructions = chat.text(0) if given else ""
        if instructions or chat.tools:
            owner = 0 if given and instructions else -1
            out.frame("<|start|>developer<|message|>", owner)
            if instructions:
                out.frame("# Instructions\n\n", owner)
                out.body(instructions, 0)
                out.frame("\n\n", owner)
            if chat.tools:
                out.frame("# Tools\n\n", owner)
                out.label(namespace("functions", chat.tools), owner)
            out.frame("<|end|>", owner)
        return int(given)

    def system(self, chat: Chat, index: int, out: Script) -> None:
        """Only the first message may be one.

        Raises:
            MessageError: always (`late_system`).
        """
        refuse_late_system(index, self.name)

    def user(self, chat: Chat, index: int, out: Script) -> None:
        """A user message."""
        out.turn("<|start|>user<|message|>", chat.text(index), "<|end|>", index)

    def assistant(self, chat: Chat, index: int, out: Script) -> None:
        """Analysis where it still counts, then the call or the answer; all behind the first header is sampled."""
        calls, reasoning, content = chat.calls(index), chat.reasoning(index), chat.text(index)
        last = index == len(chat.roles) - 1 and not chat.prompted
        out.frame("<|start|>assistant", index)
        if calls:
            analysis = self._analysis(chat, index, calls, reasoning or "", content)
            kept = not any(self._answers(chat, later) for later in range(index + 1, len(chat.roles)))
            if analysis and (kept or self.keeps_thinking(chat, index)):
                self._say("analysis", analysis, out, index)
            self._call(calls[0], out, index)
            return
        if reasoning is not None and (last or self.keeps_thinking(chat, index)):
            self._say("analysis", reasoning, out, index)
        out.marks("<|channel|>final<|message|>", index)
        out.says(content, index)
        out.marks("<|return|>" if last else "<|end|>", index)

    def _say(self, channel: str, text: str, out: Script, index: int) -> None:
        """A message of the format's own before the last: the header behind it is the model's."""
        out.marks(f"<|channel|>{channel}<|message|>", index)
        out.says(text, index)
        out.marks("<|end|><|start|>assistant", index)

    def _call(self, call: Call, out: Script, index: int) -> None:
        out.marks(" to=functions.", index)
        out.says(call.name, index)
        out.marks("<|channel|>commentary json<|message|>", index)
        out.says(to_json(call.items, f"{call.where}.arguments"), index)
        out.marks("<|call|>", index)

    @staticmethod
    def _answers(chat: Chat, index: int) -> bool:
        return chat.roles[index] == "assistant" and not chat.messages[index].get("tool_calls")

    @staticmethod
    def _analysis(chat: Chat, index: int, calls: Sequence[Call], reasoning: str, content: str) -> str:
        """What stands before a call: reasoning or content, and the format has a place for one call and one of them."""
        if len(calls) > 1:
            raise MessageError(
                "unsupported_field",
                f"message {index}: {len(calls)} tool_calls; gpt-oss makes one call a message. Split the message",
            )
        if reasoning and content:
            raise MessageError(
                "unsupported_field",
                f"message {index}: both content and reasoning beside a tool call; gpt-oss writes one. Join them",
            )
        return reasoning or content

    def tool(self, chat: Chat, index: int, out: Script) -> None:
        """A result as JSON, headed by the function that was called last."""
        called = (calls[0].name for i in range(index - 1, -1, -1) if (calls := chat.calls(i)))
        name = next(called, None) or chat.messages[index].get("name")
        if name is None:
            raise MessageError("missing_field", f"message {index}: name is missing; gpt-oss heads results by function")
        out.frame("<|start|>functions.", index)
        out.label(name, index)
        out.frame(" to=assistant<|channel|>commentary<|message|>", index)
        out.body(to_json(chat.text(index)), index)
        out.frame("<|end|>", index)

    def prompt(self, chat: Chat, out: Script) -> None:
        """The model writes channel and recipient itself."""
        out.frame("<|start|>assistant")

    def parse_response(self, token_ids: Sequence[int], *, tools: Any = None) -> ParsedResponse:
        """Analysis is reasoning, what goes to a function is a call, all else is content."""
        said = Completion(self.encoder, token_ids, self._stop_ids)
        reasoning: list[str] = []
        content: list[str] = []
        calls: list[ParsedToolCall] = []
        at = 0
        while at < len(said.text):
            end = said.find("<|end|>", at)
            stop = len(said.text) if end < 0 else end
            body = said.find("<|message|>", at, stop)
            start = at if body < 0 else body + len("<|message|>")
            header = "" if body < 0 else said.text[at:body]
            channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
            if recipient:
                calls.append(self._read_call(said, at, start, stop, recipient[1], end < 0 and not said.stopped))
            else:
                (reasoning if channel and channel[1] == "analysis" else content).append(said.told(start, stop))
            at = stop + len("<|end|>") if end >= 0 else stop
        return ParsedResponse("".join(content), "".join(reasoning) or None, calls)

    @staticmethod
    def _read_call(said: Completion, at: int, start: int, stop: int, name: str, cut: bool) -> ParsedToolCall:
        raw = said.told(start, stop)
        try:
            held = json.loads(raw)
        except (ValueError, RecursionError):
            held = None
        if cut:
            status = Status.UNCLOSED_BLOCK
        elif held is None:
            status = Status.INVALID_JSON
        else:
            status = Status.OK if isinstance(held, dict) else Status.MALFORMED_STRUCTURE
        arguments = held if isinstance(held, dict) else raw
        return ParsedToolCall(raw, name, arguments, said.span(at, stop), status)
