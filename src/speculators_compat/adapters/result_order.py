"""speculators 0.4 returns results sorted by request id as text, so the eleventh prompt comes before the third."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from speculators_compat.adapter import Adapter, Finding, generator_method, mentions
from speculators_compat.errors import CaptureError
from speculators_compat.extraction import current


def in_input_order(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    results = wrapped(*args, **kwargs)
    extraction = current()
    lengths = extraction.prompt_lengths if extraction is not None else {}
    by_request = dict(zip(sorted(lengths), results, strict=False))
    in_order = [by_request[request_id] for request_id in lengths if request_id in by_request]
    if [len(result["input_ids"]) for result in in_order] != list(lengths.values()) or len(results) != len(lengths):
        raise CaptureError(
            f"{len(results)} results cannot be matched with the {len(lengths)} prompts that were submitted; none are returned. "
            "SPECULATORS_COMPAT_DISABLE=result_order leaves them in speculators' order, sorted by request id as text."
        )
    return in_order


def probe() -> Finding:
    if mentions("generate", "sorted"):
        return Finding.broken("speculators sorts request ids as text")
    return Finding.intact("speculators keeps the order of the input")


ADAPTER = Adapter(
    name="result_order",
    contract="generate() returns results in the order of its input.",
    symptom="Silently wrong: with more than 10 prompts, results 2 and later belong to other prompts",
    vllm=">=0.11.0",
    speculators=">=0.4.0,<0.5.0",
    broken_by="speculators 0.4.0: for req_id in sorted(request_id_to_idx); not a vLLM change",
    removable_when="speculators 0.4 is no longer supported",
    probe=probe,
    patches=(generator_method("generate", in_input_order),),
)
