"""Tests of the commands that run on what is already there: no vLLM."""
