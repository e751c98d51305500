"""How tokens are shown, in terminals, notebooks, reports and the page.

::

    rows.py       kinds, colours, texts of tokens; `TokenRow`, in which everything shows its tokens
    terminal.py   running text in colour             html.py    spans with tooltips
    example.py    one example as a training step sees it: ids, kinds, targets, loss
    table.py      an example in a terminal: legend, running text, a table of ids and targets
"""
