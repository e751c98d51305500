"""One reader of what a user names, for builds, imports, the doctor and the explorer.

::

    columns    input_ids, labels, masks, position_ids ... of other trainers  ->  TokenRows
    rows       TokenRows: many rows of ids, concatenated
"""
