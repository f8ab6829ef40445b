"""Run speculators' `VllmHiddenStatesGenerator` unchanged, and correctly, on the vLLM that is installed.

Import this package on the line before `import speculators`; there is nothing else to call.
"""

import os
import sys

from speculators_compat import import_hooks
from speculators_compat._version import __version__
from speculators_compat.errors import (
    CaptureError,
    ConfigurationError,
    ContractError,
    LayerError,
    ModelError,
    PromptError,
    RemovedError,
    SpeculatorsCompatError,
    SwitchError,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from speculators_compat.activation import Status, activate, deactivate, status
else:

    def __getattr__(name: str) -> object:
        """Import the rest of the public names when they are first used: importing the package stays cheap."""
        if name in __all__:
            from speculators_compat import activation

            return getattr(activation, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "CaptureError",
    "ConfigurationError",
    "ContractError",
    "LayerError",
    "ModelError",
    "PromptError",
    "RemovedError",
    "SpeculatorsCompatError",
    "Status",
    "SwitchError",
    "__version__",
    "activate",
    "deactivate",
    "status",
]


if import_hooks.GENERATOR_MODULE in sys.modules or "SPECULATORS_COMPAT_DISABLE" in os.environ:
    from speculators_compat.activation import activate

    activate()
else:
    import_hooks.watch()
    # See adapters/fork_safety.py: it has to be set before anybody asks torch for CUDA.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
