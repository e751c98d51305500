"""Conversations -> ids, with the origin of every token (DESIGN 2).

::

    base.py      RenderedTokens and what is read off it; build_training_sample
    template.py  TemplateRenderer: any Jinja chat template, unchanged, with full attribution
    turns.py     which part of an assistant's turn the model itself would emit
    jinja.py     the environment that templates run in
    traced.py    text that remembers where it came from
"""
