"""Which row comes at which place: arithmetic on seed, epoch and position, so that resuming replays nothing.

::

    sampling.py   `Sampling`: what a user sets (proportions, groups, seed), and the schedule that follows from it
    schedule.py   the order of rows over epochs; of whole groups; of windows of shards in a store
    mixture.py    how many rows of each part an epoch has, from the wanted proportions: `mixture.json`
    metadata.py   types and sources of episodes, by which they are grouped
    states.py     checkpoint states: a place as plain values, and back
"""
