"""Conversations -> ids, with the origin of every token (DESIGN 2).

::

    what one calls      base.py       everything that document 003 names, in one place
                        registry.py   which renderer for which model; opening.py, options.py: from a command line
                        training.py   samples with masks; loss.py: which tokens count
                        client.py     completions from an inference server; limits.py: how long a prompt may be
                        pool.py       several renderers behind one

    families            qwen3.py  glm5.py  kimi_k2.py  ngpt.py     one grammar each; configs.py: their options
      and their engine  engine.py     rendering, parsing and bridging, written once
                        script.py     what a grammar writes on;  chat.py: what it reads
                        calls.py      dialects of tool calls, written and read side by side; bare_json.py: two more
                        typescript.py tools as TypeScript;  refusals.py: what formats have no place for
                        thinking.py   reasoning in tags
                        completion.py sampled ids as text, each character with its token
                        bridge.py     the next prompt behind what was sampled

    any template        template.py   TemplateRenderer; default.py: from a config, with parsers.py
                        jinja.py      the environment that templates run in
                        traced.py     text that remembers where it came from
                        ownership.py  which message every character belongs to
                        turns.py      which part of an assistant's turn the model itself would emit

    values              rendered.py   RenderedTokens, RenderedBatch;  parsing.py: ParsedResponse
                        protocol.py   what a renderer can do
                        batch.py      many scripts as ids in one go;  segments.py: attribution without a renderer
"""
