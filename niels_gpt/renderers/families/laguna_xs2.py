"""Laguna XS.2: turns between plain-text tags; an assistant's turn begins with a think block or its closing tag."""

from __future__ import annotations

from typing import Literal

from niels_gpt.renderers.completions.reading import ALL_SPACE
from niels_gpt.renderers.conversation import split_thinking
from niels_gpt.renderers.dialects.xml_tags import Pairs
from niels_gpt.renderers.family import ConversationView, Emitter, Family, FamilyConfig


class LagunaXS2RendererConfig(FamilyConfig):
    """Laguna XS.2.

    Attributes:
        enable_thinking: the generation prompt opens a think block; else it supplies the closing tag.
        render_assistant_messages_raw: contents of assistants are what was sampled, think tags and calls included; the
            messages' reasoning and tool calls are not written beside them.
    """

    name: Literal["laguna-xs.2"] = "laguna-xs.2"
    enable_thinking: bool = False
    render_assistant_messages_raw: bool = False


_DEFAULT_SYSTEM = (
    "You are a helpful, conversationally-fluent assistant made by Poolside. "
    "You are here to be helpful to users through natural language conversations."
)
_TOOLS = (
    "\n\n### Tools\n\nYou may call functions to assist with the user query.\n"
    "All available function signatures are listed below:\n<available_tools>\n"
)
_CALL_INSTRUCTIONS = (
    "For each function call, return an unescaped XML-like object with function name and arguments within '<tool_call>' "
    "and '</tool_call>' tags, like here:\n"
)
_CALL_INSTRUCTIONS_THINKING = (
    "Wrap your thinking in '<think>', '</think>' tags, followed by a function call. "
    f"{_CALL_INSTRUCTIONS}<think> your thoughts here </think>\n"
)
_EXAMPLE = (
    "<tool_call>function-name\n<arg_key>argument-key</arg_key>\n<arg_value>value-of-argument-key</arg_value>\n"
    "</tool_call>"
)
_STOP = "</assistant>"


class LagunaXS2Renderer(Family):
    """Laguna XS.2.

    Only `<assistant>` and `</assistant>` are control tokens; the other tags are ordinary text. Reasoning stays in
    history.
    """

    name = "laguna-xs.2"
    config_class = LagunaXS2RendererConfig
    content_trim = ALL_SPACE
    end_turn = (_STOP, "\n")
    stops = (_STOP, "〈|EOS|〉")
    controls = ("〈|EOS|〉", "<assistant>")
    calls = Pairs(separators=("\n", "\n", "\n"))
    before_first_call = "\n"
    calls_section = ("", "\n")
    system_turn = ("<system>\n", "\n</system>\n")
    user_turn = ("<user>\n", "\n</user>\n")
    tool_turn = ("<tool_response>\n", "\n</tool_response>\n")
    assistant_header = "<assistant>\n"
    thinking_prompt = ("<think>", "</think>")
    thinking_option = "enable_thinking"

    def begin(self, view: ConversationView, out: Emitter) -> int:
        """Write one system block, which belongs to no message, around the caller's text or the default one.

        An empty system message without tools turns the block off.
        """
        # The model's bos token is also its eos token: the template begins with it.
        out.scaffold("〈|EOS|〉")
        # The template applies `rstrip`: only the right end is stripped.
        text = view.text(0).rstrip() if view.has_system else _DEFAULT_SYSTEM
        if not text and not view.tools:
            return 1
        out.scaffold("<system>\n")
        if text:  # as in the template: a block that holds tools only has one newline less
            out.scaffold("\n")
        if text and view.has_system:
            out.content(text, 0)
        elif text:
            out.scaffold(text)
        if view.tools:
            instructions = _CALL_INSTRUCTIONS_THINKING if self.thinks else _CALL_INSTRUCTIONS
            declared = "".join(text + "\n" for text in view.tools.json_texts)
            out.labelled(_TOOLS, declared, f"</available_tools>\n\n{instructions}{_EXAMPLE}", -1)
        out.scaffold("\n</system>\n")
        return view.system_owner + 1

    def assistant(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a think block or its closing tag, the content and the calls, each on lines of its own."""
        out.scaffold(self.assistant_header, index)
        reasoning, content = view.reasoning(index), view.text(index)
        if self.config.render_assistant_messages_raw:
            # The template writes the tag that the prompt supplies, unless the content begins with this tag.
            if not content.startswith(self.prefill()):
                out.model_markup(self.prefill(), index)
            text = content.removesuffix("\n")
            if text.endswith(_STOP):
                # The content holds the stop: "hi\n</assistant>" or "hi\n</assistant>\n", which then has two newlines.
                out.model_reply(text.removesuffix(_STOP), _STOP, content[len(text) :] + "\n", index)
            else:
                out.model_text(content, index)
                out.model_markup("\n", index)
                out.model_reply("", *self.end_turn, index)
            return
        # The template takes a think block out of every content, also beside `reasoning_content`, which then wins.
        if "</think>" in content:
            inline, content = split_thinking(content)
            reasoning = reasoning or inline
        if reasoning:
            out.reasoning_block("<think>\n", reasoning.strip(), "\n</think>\n", index)
        else:
            out.model_markup("</think>\n", index)
        # The template writes the stripped content and a newline, or nothing: the newline before the first call is the
        # content's own, so `before_first_call` is used for reading only.
        content = content.strip()
        self.finish_turn(content and content + "\n", view, index, out, has_content=False)
