"""Looking at data.

::

    example.py        one example as a list of tokens that know what they are
    tokens.py         of a cache or episodes       rendered.py   of a conversation       show.py, html.py   it shown
    command.py        `niels-gpt explore`: server.py (HTTP) < api.py, requests.py (what is asked and told) < the rest
    gallery.py        all renderers at hand        rendering.py, wordless.py, modes.py, strip.py   tokens in columns
    dataset.py        rows by number               lines.py, chats.py (files), stored.py (maps), survey.py (histograms)
    training_rows.py  rows as they are trained     drift.py   two renderings      findings.py   the doctor's report
    export.py         one HTML file                static/    the page
"""
