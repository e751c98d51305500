"""Where text and chats come from. A source knows files and formats, never a tokenizer.

::

    base.py         what a source is
    chat_file.py    conversations of the user's own files      dialects.py, records.py: their shapes, their files
    text_files.py   documents of the user's own text files
    roam.py         a folder of markdown notes
    hub.py          data sets on the Hugging Face hub: fineweb_edu, wikitext, gutenberg, dolly, oasst1
    rejections.py   rows that are not used: counted, written down, and at some point too many

A source yields what it read in order; a row that cannot be used comes out as `Rejected` in its place, so that
whoever consumes the source decides how many are too many.
"""
