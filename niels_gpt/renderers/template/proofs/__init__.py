"""Proving the attribution of a rendering by rendering alone.

The oracle puts letters into contents (`letters.py`), and renders beginnings of the conversation::

    all messages            <u>Hi<e> <a>Yo<e>
    with letters            <u>①②<e> <a>③④<e>
    messages[:1]            <u>①②<e>
    messages[:1], prompt    <u>①②<e> <a>
    messages[:2], question  <u>①②<e> <a>③④<e> <u>

In the order in which it happens:

1. `oracle.py` has the whole of it, step by step.
2. `renderings.py` makes these renderings when they are needed, and finds the places in them that correspond.
   `usual.py` has those of short probe messages: what a template writes wherever nothing is special.
3. `headers.py` finds where the first turn begins, `turn_ends.py` where each turn ends.
4. `starts.py` finds where the model's part of an answer begins, `stops.py` where it ends.
5. `owners.py` finds from all this whose each character is, and `proof.py` holds the result.

The same messages may be written differently as history (reasoning is dropped after the next user message), so two
renderings are aligned at the last character of a content that both have.

`probes.py` has the conversations on which `niels-gpt doctor template` tries it.
"""
