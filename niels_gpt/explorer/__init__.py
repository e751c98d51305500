"""Looking at data.

::

    tokens.py   one example as a list of tokens that know what they are
    show.py     the same in a terminal, in colour
    html.py     the same as HTML
"""
