"""Which row comes at which place: arithmetic on seed, epoch and position, so that resuming replays nothing.

::

    sampling.py   `Sampling`: what a user sets (proportions, groups, seed), and the order that follows from it
    order.py      `Order`: every row once, mixtures, curricula, windows of shards, random draws
    mixture.py    how many rows of each part an epoch has, from the wanted proportions: `mixture.json`
    states.py     checkpoint states: a place as plain values, and back
"""
