"""Proving the attribution of a rendering by rendering alone, and where tracing gives the same.

The oracle replaces contents by letters that occur nowhere else, and renders beginnings of the conversation::

    all messages            <u>Hi<e> <a>Yo<e>
    with substitutes        <u>㐀㐁<e> <a>㐂㐃<e>      whose each content is     `substitution.py`
    messages[:1]            <u>㐀㐁<e>                 where turns end            `turn_ends.py`, `headers.py`
    messages[:1], prompt    <u>㐀㐁<e> <a>             where sampling begins      `oracle.py`
    messages[:2], question  <u>㐀㐁<e> <a>㐂㐃<e> <u>  what stops the answer      `stops.py`

`renderings.py` makes these renderings and finds the places in them that correspond. Each question has a class,
which inherits from the one before it: `Renderings`, `Stops`, `Headers`, `TurnEnds`, and `_Turns` in `oracle.py`.
`proof.py` holds the result and makes pieces of it. `certificate.py` compares the oracle with tracing on probe
conversations.
"""
