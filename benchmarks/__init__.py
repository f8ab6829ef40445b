"""How fast hidden states are extracted, beside the model's own prefill and beside others: `python -m nox -s benchmark`."""
