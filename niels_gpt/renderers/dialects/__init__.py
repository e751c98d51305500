"""Dialects: how formats write tool calls and declare tools, and how both are read. Several families share one.

::

    base.py          what a dialect implements, `CallDialect`, and what they share
    hermes.py        a JSON object between tags                   bare_json.py    JSON without tags
    lists.py         all calls in one list between tags           named_calls.py  calls that begin with a name
    sections.py      all calls in one section                     xml_tags.py     arguments as tags
    dsml.py          DeepSeek's markup since V4                   gemma_calls.py  Gemma 4's notation
    harmony.py       gpt-oss's messages in channels               inkling.py      Inkling's messages by kind
    typescript.py    declarations as TypeScript types

    json_values.py   JSON in completions                          notations.py    arguments that are not JSON
"""
