"""Every vLLM with every speculators: what `nox -s matrix` runs in each environment, and the page made from its rows."""
