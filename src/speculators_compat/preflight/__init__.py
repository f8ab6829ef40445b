"""Tries the extraction of a large model in a minute, on a small one of its shape, before twenty minutes of loading it."""
