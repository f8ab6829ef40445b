"""A `Request` no longer takes the end-of-sequence token, which speculators passes and a prefill does not need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from speculators_compat.adapter import Adapter, Finding, accepts, generator_global

PARAMETER = "eos_token_id"


def without_eos_token(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Leave the token away: no request here lives to see a sampled one."""
    kwargs.pop(PARAMETER, None)
    return wrapped(*args, **kwargs)


def probe() -> Finding:
    from vllm.v1.request import Request

    if accepts(Request, PARAMETER, "vllm.v1.request.Request"):
        return Finding.intact(f"Request takes {PARAMETER}")
    return Finding.broken(f"speculators passes {PARAMETER}, which Request does not take")


ADAPTER = Adapter(
    name="request_eos_token",
    contract="A Request can be built with eos_token_id.",
    symptom="TypeError: Request.__init__() got an unexpected keyword argument 'eos_token_id'",
    vllm=">=0.17.0",
    speculators="<0.5.0",
    broken_by="vllm/v1/request.py, 0.17.0: eos_token_id moved into SamplingParams",
    removable_when="speculators 0.3 and 0.4 are no longer supported",
    probe=probe,
    patches=(generator_global("Request", without_eos_token),),
)
