"""Every architecture of vLLM's registry, run through real extraction from a tiny checkpoint; see `sweep`."""
