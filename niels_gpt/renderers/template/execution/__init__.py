"""Running a chat template: in transformers' environment, with the origin of every character, within limits.

From the bottom to the top, each file imports those before it:

1. `provenance.py`: strings that keep the origin of each character.
2. `filters.py`: Jinja's filters on such strings; `reads.py`: which of the caller's texts a template looks at.
3. `jinja.py`: the environment, which compiles templates to code that keeps origins and reports its loops.
4. `budget.py`: how much work a rendering may do; `sizes.py`: how large a result would be; `bounds.py`: checks both
   before an operation runs.
5. `run.py`: compiles and runs a template, and names every failure.
6. `static_analysis.py`: what the source shows without a conversation: a fixed generation prompt, searched strings.
"""
