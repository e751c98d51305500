"""Where text and chats come from. A source knows files and formats, never a tokenizer.

::

    chat_file.py    conversations of the user's own JSON-lines files
    text_files.py   documents of the user's own text files

A source yields what it read in order; a row that cannot be used comes out as `Rejected` in its place, so that
whoever consumes the source decides how many are too many.
"""
