"""TemplateRenderer: any Jinja chat template, unmodified, with attribution for every token.

How a character of the output gets its facts, in the order in which it happens:

1. `environment.py` runs the template in transformers' environment, `isolation.py` in a process of its own. The text of
   this plain rendering is what ids are made of; nothing below changes it.
2. `letters.py` renders once more with a letter in the place of the first and last visible character of every content
   and label, and `stretches.py` finds them. What is in no text was written by the template (`strings.py` finds which
   texts it looks for, so that they stay).
3. `gaps.py` cuts out what is between the contents of two messages. How a gap divides into turns is remembered: the
   oracle is asked once, about a short conversation of fixed texts (`standins.py`), and `divisions.py` keeps its answer.
4. `proofs/` is the oracle, which proves the facts of a conversation by rendering alone. It attributes a conversation
   itself where letters or remembered gaps do not fit.
5. `attributor.py` puts these together and writes the pieces, which `renderers/encode.py` encodes as those of families.
   `unwritten.py` says which texts the template passes over.

::

    messages   user "Hi", assistant "Yo"      template  {% for m in messages %}<{{ m.role[0] }}>{{ m.content }}<e>...
    output     <u>       Hi       <e><a>                   Yo     <e>
    texts                0                                 1
    gaps       -1 to 0            0 to 1                          1 to the end
    kinds      TEMPLATE  CONTEXT  TEMPLATE (0), TEMPLATE (1)  REPLY  STOP

`renderer.py` is the renderer, `bridge.py` extends a prompt by the next turn, `renderers/parsers.py` reads completions.
`known.py` lists families that are rendered so; `probe_results.py` reports what is proven of a template.
"""
