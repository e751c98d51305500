"""Proving the attribution of a rendering by rendering alone, and where tracing gives the same.

The oracle replaces contents by letters that occur nowhere else, and renders beginnings of the conversation::

    all messages            <u>Hi<e> <a>Yo<e>
    with substitutes        <u>㐀㐁<e> <a>㐂㐃<e>      whose each content is     `substitution.py`
    messages[:1]            <u>㐀㐁<e>                 where turns end            `turn_ends.py`, `headers.py`
    messages[:1], prompt    <u>㐀㐁<e> <a>             where sampling begins      `oracle.py`
    messages[:2], question  <u>㐀㐁<e> <a>㐂㐃<e> <u>  what stops the answer      `stops.py`

`renderings.py` makes these renderings and finds the places in them that correspond. The three heuristics above it are
one class for each question, each on top of the one before: `Renderings`, `Stops`, `Headers`, `TurnEnds`, and the
oracle's own. `proof.py` is the result, and becomes pieces there. `certificate.py` compares the oracle with tracing on
probe conversations.
"""
