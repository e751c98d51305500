"""Files and directories that are whole or absent, wherever they lie.

::

    files.py          one file: written aside, flushed, renamed;  staging.py: a directory likewise
    locks.py          locks between processes, released however a process ends
    checksums.py      size and sha256 of a file
    manifests.py      the JSON file that is written last: its fields, its own hash, and the files that it lists

    remote.py         files at URLs, read by ranges;  remote_manifests.py: which manifest a dataset in a store has
    retries.py        which requests to a store are repeated, how often, and after how long
    shard_cache.py    files of remote datasets on this machine, bounded, shared by all processes
"""
