"""Tests of `niels_gpt.imports`."""
