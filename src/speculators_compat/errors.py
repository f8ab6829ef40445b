"""The exceptions of this package: one family, and each message says what was found, what was expected and what to do."""

from __future__ import annotations


class SpeculatorsCompatError(Exception):
    """Base of every exception that speculators-compat raises on its own account."""


class ContractError(SpeculatorsCompatError):
    """A symbol of speculators or vLLM is missing or has a shape that no adapter knows."""


class RemovedError(SpeculatorsCompatError, ModuleNotFoundError):
    """The installed speculators no longer has `VllmHiddenStatesGenerator`."""


class SwitchError(SpeculatorsCompatError, ValueError):
    """An environment switch names something that does not exist."""


class ConfigurationError(SpeculatorsCompatError, ValueError):
    """A vLLM configuration under which hidden states cannot be captured correctly."""


class LayerError(SpeculatorsCompatError, ValueError):
    """`layer_ids` does not name decoder layers."""


class PromptError(SpeculatorsCompatError, ValueError):
    """`token_ids` does not hold prompts of token ids; nothing has been scheduled."""


class ModelError(SpeculatorsCompatError, RuntimeError):
    """The model has no residual stream that can be captured after each decoder layer."""


class CaptureError(SpeculatorsCompatError, RuntimeError):
    """Hidden states are incomplete or cannot be attributed, so none are returned."""
