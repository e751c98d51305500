"""Builds on several processes and machines, and datasets at URLs. How it works and what it costs: docs/scale.md.

::

    executor.py       UnitExecutor: a build in units (builds.units), which survives a crash; LocalRunner
    process_pool.py   the worker processes of LocalRunner; those that die are replaced
    ray_executor.py   RayRunner: units on a Ray cluster
    ---------------------------------------------------------------------------------------------------
    publish.py        a finished directory -> a URL: what is missing there, manifest last
    fetch.py          a URL -> a local directory that readers open, manifest last
"""
