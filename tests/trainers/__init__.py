"""Tests of `niels_gpt.trainers`."""
