"""What the columns of one row mean, where they are those of a known format: pure functions of the row.

::

    shapes.py           the table of shapes, one line each, and which of them a row has
    chats.py            a row as a conversation
    preference_rows.py  a row as completions that are compared or judged
    provider_shapes.py  messages as Anthropic, Gemini and Harmony write them
"""
