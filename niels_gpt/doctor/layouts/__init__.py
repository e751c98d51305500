"""Where turns begin and end in rows of ids that came without any facts, as another program has written them.

::

    probes.py      small conversations, and how a renderer writes them
    inference.py   probes of a renderer -> its layout; the layout is trusted if it finds every turn of the probes
    layout.py      Layout: what turns look like in ids
    turns.py       rows of ids and a layout -> turns
    headers.py     rows of ids and a layout -> headers that the format does not write
"""
