"""Reading completions: the ids that a model sampled become content, reasoning and tool calls.

::

    parsed.py         what is read: `ParsedResponse`, `ParsedToolCall`; events, for completions that are being sampled
    text.py           a completion as text, and the way back from its characters to its tokens
    windows.py        searching in a text that may still grow: the same code reads whole and growing completions
    builder.py        what readers find becomes events and a `ParsedResponse`
    reasoning.py      where reasoning ends
    parser.py         `ResponseParser`: takes ids as they are sampled, returns events
    partial_json.py   JSON that is not complete yet

`BaseRenderer.read_response` (`renderers/base_renderer.py`) puts these together; `renderers/dialects/` read the calls.
"""
