"""What the columns of one row mean, where they are those of a known format: pure functions of the row.

::

    chat_shapes.py      the formats of conversations, and which of them a row has
    provider_shapes.py  those of Anthropic, Gemini and Harmony
    preference_rows.py  completions that are compared or judged
    media_columns.py    columns of images beside the messages, which are refused
"""
