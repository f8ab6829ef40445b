"""Kimi's tokenizer is remote code; upstream trusts remote code for the config and the model, but not for the tokenizer."""

from __future__ import annotations

from typing import Any

from speculators_compat.adapter import Adapter, Finding, Patch, mentions
from speculators_compat.import_hooks import GENERATOR_MODULE
from speculators_compat.patching import Proxy


class TrustingAutoTokenizer(Proxy):
    """`AutoTokenizer`, with the trust that upstream gives to the same checkpoint's config and weights."""

    def from_pretrained(self, *args: Any, **kwargs: Any) -> Any:
        kwargs.setdefault("trust_remote_code", True)
        return self.__wrapped__.from_pretrained(*args, **kwargs)


def probe() -> Finding:
    if not mentions("__init__", "AutoTokenizer"):
        return Finding.intact("speculators' generator loads no tokenizer")
    return Finding.broken("speculators loads the tokenizer without trust_remote_code")


ADAPTER = Adapter(
    name="tokenizer_remote_code",
    contract="A checkpoint whose config may run its own code may do so for its tokenizer too.",
    symptom="ValueError: ... contains custom code which must be executed to correctly load the model. "
    "Please pass the argument `trust_remote_code=True`; or a prompt that waits for an answer",
    vllm=">=0.11.0",
    speculators="<0.5.0",
    broken_by="speculators: AutoTokenizer.from_pretrained(model_path); not a vLLM change",
    removable_when="speculators passes trust_remote_code to AutoTokenizer",
    probe=probe,
    patches=(Patch(GENERATOR_MODULE, "AutoTokenizer", stand_in=TrustingAutoTokenizer),),
)
