"""The public names of renderers in one module, as in the `renderers` package: values, masks, `create_renderer`."""

from niels_gpt.messages import (
    Content,
    ContentPart,
    ImagePart,
    Message,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolCallFunction,
    ToolSpec,
    VideoPart,
)
from niels_gpt.renderers.bridges import reject_assistant_in_extension, trim_to_turn_close
from niels_gpt.renderers.completions.parsed import (
    CallClosed,
    ContentDelta,
    Event,
    ParsedResponse,
    ParsedToolCall,
    ReasoningDelta,
    RenderedConversation,
    Stopped,
    ToolCallParseStatus,
)
from niels_gpt.renderers.completions.stream import ResponseParser
from niels_gpt.renderers.conversation import should_preserve_past_thinking
from niels_gpt.renderers.encode import attribute_text_segments
from niels_gpt.renderers.images.processors import MultiModalData, PlaceholderRange
from niels_gpt.renderers.kinds import MODEL_KINDS, Kind
from niels_gpt.renderers.loss import LossOn, extract_message_tool_names
from niels_gpt.renderers.masks import (
    batch_weights,
    build_training_sample,
    build_training_samples,
    build_trajectory_step,
)
from niels_gpt.renderers.pool import RendererPool, is_multimodal
from niels_gpt.renderers.protocol import MultimodalRenderer, Renderer, StreamingRenderer
from niels_gpt.renderers.registry import (
    MODEL_RENDERER_MAP,
    MULTIMODAL_MODELS,
    RENDERER_REGISTRY,
    create_renderer,
    create_renderer_pool,
)
from niels_gpt.renderers.types import Piece, RenderedBatch, RenderedTokens
from niels_gpt.tokenizer.hub import FASTOKENS_INCOMPATIBLE, TRUSTED_REVISIONS
from niels_gpt.tokenizer.hub import load_hf_tokenizer as load_tokenizer

__all__ = [
    "FASTOKENS_INCOMPATIBLE",
    "MODEL_KINDS",
    "MODEL_RENDERER_MAP",
    "MULTIMODAL_MODELS",
    "RENDERER_REGISTRY",
    "TRUSTED_REVISIONS",
    "CallClosed",
    "Content",
    "ContentDelta",
    "ContentPart",
    "Event",
    "ImagePart",
    "Kind",
    "LossOn",
    "Message",
    "MultiModalData",
    "MultimodalRenderer",
    "ParsedResponse",
    "ParsedToolCall",
    "Piece",
    "PlaceholderRange",
    "ReasoningDelta",
    "RenderedBatch",
    "RenderedConversation",
    "RenderedTokens",
    "Renderer",
    "RendererPool",
    "ResponseParser",
    "Stopped",
    "StreamingRenderer",
    "TextPart",
    "ThinkingPart",
    "ToolCall",
    "ToolCallFunction",
    "ToolCallParseStatus",
    "ToolSpec",
    "VideoPart",
    "attribute_text_segments",
    "batch_weights",
    "build_training_sample",
    "build_training_samples",
    "build_trajectory_step",
    "create_renderer",
    "create_renderer_pool",
    "extract_message_tool_names",
    "is_multimodal",
    "load_tokenizer",
    "reject_assistant_in_extension",
    "should_preserve_past_thinking",
    "trim_to_turn_close",
]
