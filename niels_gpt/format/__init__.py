"""From token ids to what a model trains on: loss masks, fitting, packing, tensors.

::

    sft.py        the sentinel format: serialise a chat, mask it, fit it to S tokens, collate
    fitting.py    the policies for rows that are longer than a window, and how they cut a mask
    packing.py    which texts share a row (best-fit decreasing), and their layout: segments, positions, cu_seqlens
    attention.py  attention masks that keep a packed text from seeing its neighbours
    gather.py     x and y from rows; the one place where targets are shifted
    collate.py    arrays of rows as tensors, on a device

In a mask, `True` means trained, here and everywhere. `niels_gpt.store.masks` has the masks of rows of sentinels.
"""
