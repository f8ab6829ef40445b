"""The entry point `vllm.general_plugins`: vLLM calls it in each of its processes, workers among them.

It is not part of the package, because importing the package activates it, and installing it must not: only processes whose
parent has activated it, which they see by an environment variable that they inherit, import it.
"""

import os


def register() -> None:
    """Activate speculators_compat in a worker whose caller has."""
    if "SPECULATORS_COMPAT_ACTIVE" in os.environ:
        import speculators_compat  # noqa: F401
