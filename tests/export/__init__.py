"""Tests of `niels_gpt.export`."""
