"""Dialects: how formats write tool calls and declare tools, and how both are read. Several families share one.

::

    base.py          what a dialect implements, `CallDialect`, and what they share
    json_calls.py    a JSON object a call: Hermes, Llama          named_calls.py  calls that begin with a name:
    lists.py         all calls in one list between tags                           Mistral since Tekken v11, Gemma 4
    sections.py      all calls in one section                     xml_tags.py     arguments as tags
    dsml.py          DeepSeek's markup since V4                   inkling.py      Inkling's messages by kind
    harmony.py       gpt-oss's messages in channels               typescript.py   declarations as TypeScript types

    json_values.py   JSON in completions                          notations.py    arguments that are not JSON
"""
