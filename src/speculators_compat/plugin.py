"""The entry point `vllm.general_plugins`: vLLM calls it in each of its processes, workers among them."""

from __future__ import annotations


def register() -> None:
    """Make sure that the package is active in this process; importing it has already done so."""
    from speculators_compat import activate

    activate()
