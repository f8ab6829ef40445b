"""speculators 0.4 returns results sorted by request id as text, so the eleventh prompt comes before the third."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from speculators_compat.adapter import Adapter, Finding, generator_method, mentions
from speculators_compat.extraction import current


def in_input_order(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    results = wrapped(*args, **kwargs)
    extraction = current()
    if extraction is None or len(extraction.prompt_lengths) != len(results):
        return results
    by_request = dict(zip(sorted(extraction.prompt_lengths), results, strict=True))
    return [by_request[request_id] for request_id in extraction.prompt_lengths]


def probe() -> Finding:
    from speculators.data_generation import vllm_hidden_states_generator as generator

    if mentions(vars(generator.VllmHiddenStatesGenerator)["generate"], "sorted"):
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
