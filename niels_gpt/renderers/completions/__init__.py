"""Reading completions: the ids that a model sampled become content, reasoning and tool calls.

::

    parsed.py      what is read: `ParsedResponse`, `ParsedToolCall`; events, for completions that are being sampled
    text.py        a completion as text, and the way back from its characters to its tokens
    blocks.py      `CallReader`, which dialects implement, and the blocks that they find
    reasoning.py   where reasoning is
    reading.py     `Reader`: reasoning, content and calls of a whole completion
    stream.py      `ResponseParser`: takes ids as they are sampled, returns events

`BaseRenderer` (`renderers/base_renderer.py`) makes readers; `renderers/dialects/` read the calls.
"""
