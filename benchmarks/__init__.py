"""Benchmarks: ours beside the alternatives, `python -m benchmarks` (`make bench`); see README.md."""
