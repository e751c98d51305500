"""TemplateRenderer: any Jinja chat template, unmodified, with attribution for every token.

How a character of the output gets its facts, in the order in which it happens:

1. `renderer.py` passes the messages to the template as strings that carry their origin (`TrackedStr`): content of
   message 3 has origin 3, roles, names and tools have origin LABEL.
2. `execution/` runs the template in transformers' environment. Its string constants have origin LITERAL; string
   operations and filters keep origins. Each loop over the messages reports which message it is at. A template is a
   program from someone else, so its work and memory are limited; `isolation.py` runs it in a process of its own.
3. The output is cut into spans of one origin, each with the message it belongs to (`attribution.py`): scaffold
   belongs to the message whose iteration wrote it, content to its own message.
4. In an assistant's turn, `sampled_span.py` finds what the model itself emits: everything after the generation prompt,
   up to and with the stop token. `tracing.py` puts these steps together.
5. `proofs/` decides whether tracing can be trusted for this kind of conversation: on probes it must agree with an
   oracle, which finds the same facts by rendering alone. Where it does not, the oracle's facts are used.
6. Only LITERAL spans are encoded with control tokens; all others are encoded as text. The ids are attributed by the
   same code as those of the families (`renderers/encode.py`).
7. Where the template did more with texts than copy them, `neutral.py` checks that they did not decide which LITERAL
   control tokens there are.

::

    template   {% for m in messages %}<u>{{ m.content }}<e>{% endfor %}     messages  user "Hi"
    output     <u>      Hi     <e>
    origin     LITERAL  0      LITERAL
    message    0        0      0
    content    no       yes    no

`renderers/parsers.py` reads completions; `bridge.py` extends a prompt by the next turn. `known.py` lists families that
are rendered so; `probe_results.py` reports what is proven of a template.
"""
