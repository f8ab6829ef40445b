"""Left to choose, vLLM runs some decoders as embedding models, which have no prefill of the kind that upstream schedules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from speculators_compat.adapter import Adapter, Finding, accepts, generator_global

PARAMETER = "runner"


def that_generates(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    kwargs.setdefault(PARAMETER, "generate")
    return wrapped(*args, **kwargs)


def probe() -> Finding:
    from vllm.config import ModelConfig

    if not accepts(ModelConfig, PARAMETER, "vllm.config.ModelConfig"):
        return Finding.intact(f"ModelConfig has no field {PARAMETER}")
    return Finding.broken(f"speculators leaves {PARAMETER} to vLLM")


ADAPTER = Adapter(
    name="generate_runner",
    contract="A ModelConfig is for generating text.",
    symptom="AssertionError in the worker (pooling_params is not None), for GritLM and for checkpoints that bring a "
    "sentence-transformers config",
    vllm=">=0.11.0",
    speculators="<0.5.0",
    broken_by="vllm/config/model.py: runner is 'auto' by default, and picks 'pooling' for some checkpoints",
    removable_when="speculators passes runner='generate'",
    probe=probe,
    patches=(generator_global("ModelConfig", that_generates),),
)
