"""What the keys of messages mean in the field: the names of each thing, those that are refused, those that are read.

`docs/messages.md` says the same in a table, which a test walks through every door.
"""

from __future__ import annotations

from typing import Final

# Roles of other formats -> ours.
ROLES: Final = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "function_call": "assistant",  # of ShareGPT; its content is the call
    "function_response": "tool",
}
# Those of a turn with `from` and `value`, as ShareGPT has it. A chat template may know `observation` as its own role.
TURN_ROLES: Final = {
    **{role: role for role in ("system", "developer", "user", "assistant", "tool")},
    **ROLES,
    "observation": "tool",
}

# The names of reasoning; of two that are filled the texts must be equal. The first is ours.
REASONING: Final = (
    "reasoning_content",  # DeepSeek, Qwen, vLLM
    "reasoning",  # vLLM, OpenRouter
    "thinking",  # Ollama, the template of gpt-oss
    "reasoning_text",
    "reasoning_details",  # OpenRouter, MiniMax: a list of objects
    "thinking_blocks",  # LiteLLM: Anthropic's blocks
)
# The fields of an entry of such a list, or of a part of a content, that hold its text.
REASONING_TEXTS: Final = ("text", "thinking", "reasoning", "summary", "content")
REASONING_PARTS: Final = ("thinking", "reasoning")  # types of a content's parts

# Whether a message is trained -> what its value means: true for "trained".
FLAGS: Final = {
    "train": True,
    "training": True,  # axolotl
    "trainable": True,
    "train_on_turn": True,
    "loss": True,  # ms-swift, XTuner
    "loss_mask": True,  # verl
    "step_loss_mask": True,  # slime
    "masked": False,  # torchtune
}
# How much a message counts in the loss.
WEIGHTS: Final = ("weight", "loss_weight", "loss_scale")  # OpenAI, LLaMA-Factory, ms-swift

# Fields that hold what an answer says, or whether it is trained, and that nothing here can read -> the way out.
REFUSED: Final = {
    "function_call": "a list of tool_calls, which took its place",
    "refusal": "the text in 'content', as the model is to write it; or drop the row",
    "mask": "'train', true or false: by 'mask' some tools mean a message that is trained, and others one that is not",
    "train_detail": "'train' of the whole message: weights of parts of a message are not supported. Make messages of "
    "the parts, or drop the row",
}

# The codes of what reading changes; nothing is lost by any of them.
CHANGES: Final = frozenset(
    {"arguments_decoded", "tools_decoded", "reasoning_renamed", "loss_flag_read", "role_renamed"}
)

# What is read of a message, a part of its content, a call, its function, a tool and its function. Other keys stay,
# because a chat template may read any key, and are counted.
MESSAGE: Final = frozenset(
    {"role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name", "train", "weight"}
)
ORDINARY: Final = MESSAGE - {"train", "weight"}
PART: Final = frozenset({"type", "text", "image", "image_url", "url", "path", "base64"})
CALL: Final = frozenset({"id", "type", "function"})
CALL_FUNCTION: Final = frozenset({"name", "arguments"})
TOOL: Final = frozenset({"type", "function"})
TOOL_FUNCTION: Final = frozenset(
    {"name", "description", "parameters", "strict", "return", "returns", "response", "defer_loading"}
)
SCHEMAS: Final = ("parameters", "input_schema", "inputSchema")  # OpenAI, Anthropic, MCP
DECLARATIONS: Final = ("functionDeclarations", "function_declarations")  # Gemini: several tools in one
