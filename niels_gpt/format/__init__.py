"""Ids -> masks, fitting, tensors.

::

    sft.py        document 000's four functions: serialise, mask, pack to S tokens, collate
    masks.py      which tokens of a sentinel-marked row are trained, on whole arrays
    fitting.py    named ways to make a row fit
    packing.py    which pieces share a row: best-fit decreasing
    layout.py     where pieces lie in a batch: segments, positions, seams, cu_seqlens
    attention.py  masks that keep attention inside a segment
    collate.py    rows of ids and masks -> x, y and mask tensors; the one place where targets are shifted

In a mask `True` means trained, here and everywhere.
"""
