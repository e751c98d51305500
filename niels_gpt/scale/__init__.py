"""Builds on several processes and machines, and caches that live elsewhere.

::

    engine.py    the portions of a build, unit by unit: kept beside the output until it is complete
    kept.py      the folder of finished units                units.py   one unit: written aside, committed by rename
    local.py     runs units in processes of this machine     pool.py    those processes: watched, replaced
    rays.py      runs them on a Ray cluster
    options.py   what the command lines say of all this
    ---------------------------------------------------------------------------------------------------
    publish.py   a finished directory -> a URL, manifest last             locks.py   one publisher at a time
    uploads.py   one file -> a store                      parts.py   to S3, part by part, going on where it was cut off
    fetch.py     a URL -> a local directory that readers open, evicted by size when room is short

Why units, and what it takes to build very much: `docs/scale.md`.
"""
