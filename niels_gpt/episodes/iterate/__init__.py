"""Ways to iterate over the batches of a split: one after the other, from a thread, from worker processes.

::

    split_iterator   SplitIterator     what a loader holds for each split: the place of the next batch
    prefetch         Prefetch          a background thread makes batches while the last is used
    iterable         EpisodeIterable   for torch's DataLoader: worker w of W makes batches w, w + W, ...
    pass_starts      SharedStart       where the pass of each worker begins; in memory that all processes share
    workers          EpisodeWorkers    passes over it that record which batches were used

All give the same batches in the same order, and a state counts the batches that were handed out, never those that wait.
`SplitLoader` (split_loader.py) has a method for each of them.
"""
