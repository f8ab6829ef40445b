"""speculators derives pydantic models from transformers' PretrainedConfig, which is a dataclass in transformers 5."""

from __future__ import annotations

from dataclasses import is_dataclass
from importlib.util import find_spec
from typing import Any

from speculators_compat.adapter import Adapter, Finding, Preparation
from speculators_compat.import_hooks import SPECULATORS


def let_pydantic_derive_configs() -> None:
    """Make `PretrainedConfig` a base that pydantic models can have. For other configs nothing changes."""
    if find_spec("transformers") is None or not _is_dataclass():
        return
    import torch
    from transformers import configuration_utils

    # Its annotations say `torch`, which the module imports for type checkers only; pydantic reads them at run time.
    if not hasattr(configuration_utils, "torch"):
        configuration_utils.torch = torch
    _keep_dataclasses_apart(configuration_utils.PretrainedConfig)


def _is_dataclass() -> bool:
    from transformers import PretrainedConfig

    return is_dataclass(PretrainedConfig)


def _keep_dataclasses_apart(config: Any) -> None:
    """Leave to pydantic models their own `__init__`, and to their instances the `validate` that saving a config calls."""
    from pydantic import BaseModel

    making_a_dataclass = vars(config).get("__init_subclass__")
    if making_a_dataclass is None or hasattr(making_a_dataclass, "__wrapped_by_speculators_compat__"):
        return

    def init_subclass(cls: Any, /, **kwargs: Any) -> None:
        if not issubclass(cls, BaseModel):
            making_a_dataclass.__func__(cls, **kwargs)
            return
        super(config, cls).__init_subclass__(**kwargs)
        if "validate" not in vars(cls):
            cls.validate = config.validate

    replacement: Any = classmethod(init_subclass)
    replacement.__wrapped_by_speculators_compat__ = True
    config.__init_subclass__ = replacement


def probe() -> Finding:
    if not _is_dataclass():
        return Finding.intact("PretrainedConfig is a plain class")
    return Finding.broken("PretrainedConfig is a dataclass, and makes every subclass one")


ADAPTER = Adapter(
    name="transformers_configs",
    contract="A pydantic model can be derived from transformers' PretrainedConfig.",
    symptom="PydanticUndefinedAnnotation: name 'torch' is not defined, from `import speculators`; then, building a config: "
    "object has no attribute '__pydantic_fields_set__'; BaseModel.validate() missing 1 required positional argument",
    vllm=">=0.24.0",
    speculators="<0.5.0",
    broken_by="transformers 5, which vLLM requires from 0.24 on: configuration_utils.py, PreTrainedConfig.__init_subclass__",
    removable_when="speculators 0.3 and 0.4 are no longer supported",
    probe=probe,
    preparations=(Preparation(SPECULATORS, let_pydantic_derive_configs),),
)
