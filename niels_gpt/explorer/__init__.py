"""Look at data token by token: in the terminal (`niels-gpt show`, `render`) and on a local page (`niels-gpt explore`).

::

    one example       example_view.py (a row of a dataset of ours, as `niels_gpt.display` shows it), html.py

    the page          server.py (HTTP)  >  api.py, requests.py (typed requests, JSON answers)  >  the modules below
      renderers       renderer_list.py, rendering.py        a conversation, rendered by any family or template
      tokens          token_columns.py                      tokens as the page draws them, under every loss mask
      rows            dataset.py (protocol), chat_rows.py, line_index.py (conversations, preferences)
                      stored.py (datasets of ours)
                      sample_stats.py (histograms), training_rows.py (rows as they are trained)
      comparing       drift.py                              where two renderings differ
      doctor          findings.py                           its report
      static/         the page itself: HTML, CSS and JavaScript without a build step
"""
