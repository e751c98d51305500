"""Datasets at URLs. How it works and what it costs: docs/scale.md.

::

    publish.py        a finished directory -> a URL: what is missing there, manifest last
    fetch.py          a URL -> a local directory that readers open, manifest last

Builds on several processes and machines: `niels_gpt.builds.executor`.
"""
