"""TemplateRenderer: any Jinja chat template, unmodified, with attribution for every token.

How a character of the output gets its facts, in the order in which it happens:

1. `renderer.py` passes the messages to the template as strings that carry their origin (`provenance.TrackedStr`):
   content of message 3 has origin 3, roles, names and tools have origin LABEL.
2. The template runs in transformers' environment (`jinja.py`). Its string constants have origin LITERAL; string
   operations and filters (`filters.py`) keep origins. Each loop over the messages reports which message it is at.
3. The output is cut into spans of one origin, each with the message it belongs to (`attribution.py`): scaffold
   belongs to the message whose iteration wrote it, content to its own message. `headers.py` finds where turns begin.
4. In an assistant's turn, `sampled_span.py` finds what the model itself emits: everything after the generation prompt,
   up to and with the stop token. `tracing.py` puts these steps together.
5. `certificate.py` decides whether tracing can be trusted for this kind of conversation, by comparing it on probes with
   `oracle.py`, which finds the same facts by rendering alone (`substitution.py`, `renderings.py`, `stops.py`,
   `turn_ends.py`). Where it cannot, the oracle's facts are used (`proof.py`).
6. Only LITERAL spans are encoded with control tokens; all others are encoded as text. The ids are attributed by the
   same code as those of the families (`renderers/encode.py`).
7. Where the template did more with texts than copy them (`reads.py`), `neutral.py` checks that they did not decide
   which LITERAL control tokens there are.

::

    template   {% for m in messages %}<u>{{ m.content }}<e>{% endfor %}     messages  user "Hi"
    output     <u>      Hi     <e>
    origin     LITERAL  0      LITERAL
    message    0        0      0
    content    no       yes    no

A template is a program from someone else: `bounds.py`, `budget.py` and `sizes.py` limit its work and memory, and
`isolation.py` runs it in a process of its own. `run.py` compiles and runs it; `parsers.py` reads completions;
`bridge.py` extends a prompt by the next turn. `known.py` lists families that are rendered so;
`probe_results.py` reports what is proven of a template.
"""
