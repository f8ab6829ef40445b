"""Run speculators' `VllmHiddenStatesGenerator` unchanged, and correctly, on the vLLM that is installed.

Import this package on the line before `import speculators`; there is nothing else to call.
"""

from speculators_compat._version import __version__
from speculators_compat.activation import Status, activate, deactivate, status
from speculators_compat.errors import (
    CaptureError,
    ConfigurationError,
    ContractError,
    LayerError,
    ModelError,
    PromptError,
    SpeculatorsCompatError,
    SwitchError,
)

__all__ = [
    "CaptureError",
    "ConfigurationError",
    "ContractError",
    "LayerError",
    "ModelError",
    "PromptError",
    "SpeculatorsCompatError",
    "Status",
    "SwitchError",
    "__version__",
    "activate",
    "deactivate",
    "status",
]

activate()
