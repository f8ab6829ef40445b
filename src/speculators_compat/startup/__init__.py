"""The folder that `speculators-compat run` puts on the PYTHONPATH; Python imports `sitecustomize` from it."""
