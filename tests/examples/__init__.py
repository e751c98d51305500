"""Tests that run `examples/`."""
