"""The drift watch: what this package and speculators build on in vLLM, read from any release's sources."""
