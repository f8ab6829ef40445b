"""One module per contract that vLLM broke; `speculators_compat.registry` lists them in the order they are applied."""
