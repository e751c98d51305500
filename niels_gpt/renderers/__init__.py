"""Conversations -> ids, with the origin of every token (DESIGN 2).

::

    what one calls      base.py       everything that document 003 names, in one place
                        registry.py   which renderer for which model; opening.py, options.py: from a command line
                        training.py   samples with masks; loss.py: which tokens count
                        client.py     completions from an inference server; limits.py: how long a prompt may be
                        pool.py       several renderers behind one

    families            one file and one grammar each: qwen25 qwen3 qwen3_vl qwen35 qwen36 glm45 glm5 kimi_k2 kimi_k25
                        minimax_m2 deepseek_v3 nemotron3 laguna llama3 gemma mistral phi gpt_oss chatml raw ngpt;
                        configs.py: their options
      and their engine  engine.py     rendering, parsing and bridging, written once
                        script.py     what a grammar writes on;  chat.py: what it reads
                        calls.py      dialects of tool calls, written and read side by side; hermes.py, tags.py,
                        bare_json.py, sections.py, harmony.py   more of them;  json_values.py: JSON in completions
                        typescript.py, harmony_tools.py: tools as TypeScript;  refusals.py
                        thinking.py   reasoning in tags
                        images.py     images in messages; vision.py, processors.py: as tokens
                        shapes.py     what a grammar writes around texts, learned once; kinds.py, stand_ins.py,
                        odd_texts.py  how it is learned and when it holds; filling.py: texts filled in;
                        runs.py, apart.py: those that are encoded alone, where they touch nothing else
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
