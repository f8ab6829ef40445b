"""`SchedulerConfig` cannot be built without `is_encoder_decoder`, which speculators 0.3 does not pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from speculators_compat.adapter import Adapter, Finding, generator_global, mentions, parameters

FIELD = "is_encoder_decoder"


def with_required_field(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Say what upstream means: it drives decoder-only models."""
    kwargs.setdefault(FIELD, False)
    return wrapped(*args, **kwargs)


def probe() -> Finding:
    from vllm.config import SchedulerConfig

    field = parameters(SchedulerConfig, "vllm.config.SchedulerConfig").get(FIELD)
    if field is None or field.default is not field.empty:
        return Finding.intact(f"SchedulerConfig can be built without {FIELD}")
    if mentions("_create_vllm_config", FIELD):
        return Finding.intact(f"speculators passes {FIELD} itself")
    return Finding.broken(f"SchedulerConfig requires {FIELD}, which speculators does not pass")


ADAPTER = Adapter(
    name="scheduler_config_fields",
    contract="A SchedulerConfig can be built from the three limits that speculators passes.",
    symptom="ValidationError: 1 validation error for SchedulerConfig is_encoder_decoder Field required",
    vllm=">=0.12.0",
    speculators="<0.4.0",
    broken_by="vllm/config/scheduler.py, 0.12.0: is_encoder_decoder became a required init field",
    removable_when="speculators 0.3 is no longer supported",
    probe=probe,
    patches=(generator_global("SchedulerConfig", with_required_field),),
)
