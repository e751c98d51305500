"""Rows that are left out on purpose. Each check is a value with one method, and `ChatFiles` applies them.

::

    filters.py        the protocol of all checks; roles, numbers of messages, lengths, patterns, languages
    duplicates.py     rows that are in the data twice, or nearly
    contamination.py  rows that contain a stretch of words of a benchmark
    ngrams.py         words and their n-grams, for both
"""
