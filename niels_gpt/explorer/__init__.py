"""Look at data token by token on a local page (`niels-gpt explore`); examples for `niels-gpt show` and `render`.

::

    one example       example_view.py (a conversation or a stored row, as `niels_gpt.display` shows it)

    the page          server.py (HTTP)  >  api.py (a method for each request)  >  the modules below
      renderers       renderer_list.py, rendering.py        a conversation, rendered by any family or template
      tokens          token_columns.py                      tokens as the page draws them, under every loss mask
      rows            dataset.py (pages, filters), chat_rows.py, line_index.py (conversations, preferences)
                      stored.py (datasets of ours), training_rows.py (their rows as they are trained)
                      sample_stats.py (histograms)
      comparing       drift.py                              where two renderings differ
      doctor          findings.py                           its report
      static/         the page itself: HTML, CSS and JavaScript without a build step; html.py exports views of it
"""
