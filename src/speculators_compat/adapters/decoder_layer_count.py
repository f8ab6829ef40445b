"""Upstream reads the number of decoder layers from a config, where it lies deeper, or goes by another name, than it knows."""

from __future__ import annotations

from typing import Any

from speculators_compat.adapter import Adapter, Finding, Patch, accepts, require
from speculators_compat.errors import ContractError
from speculators_compat.import_hooks import GENERATOR_MODULE
from speculators_compat.patching import Proxy


class TextConfigFinder(Proxy):
    """`AutoConfig`, answering with the layer count of the language model as vLLM finds it."""

    def from_pretrained(self, path: Any, *args: Any, **kwargs: Any) -> Any:
        from vllm.transformers_utils.config import get_config, get_hf_text_config

        def as_vllm_reads_it() -> Any:
            return get_config(path, trust_remote_code=kwargs.get("trust_remote_code", False))

        try:
            config = self.__wrapped__.from_pretrained(path, *args, **kwargs)
        except (ImportError, AttributeError, KeyError, OSError, TypeError, ValueError):
            # A model type, or a file format, that vLLM may read all the same; if not, vLLM's error comes with this one.
            config = as_vllm_reads_it()
        if hasattr(config, "num_hidden_layers") or hasattr(config, "text_config"):
            return config
        return ConfigWithLayerCount(config, get_hf_text_config(as_vllm_reads_it()).num_hidden_layers)


class ConfigWithLayerCount(Proxy):
    """A config that knows `num_hidden_layers`, however deep the text config lies."""

    def __init__(self, config: Any, layers: int) -> None:
        super().__init__(config)
        self._self_layers = layers

    @property
    def num_hidden_layers(self) -> int:
        return self._self_layers


def probe() -> Finding:
    from vllm.transformers_utils import config

    if not accepts(config.get_config, "trust_remote_code", "vllm.transformers_utils.config.get_config"):
        raise ContractError("vllm.transformers_utils.config.get_config does not accept trust_remote_code")
    require(config, "vllm.transformers_utils.config", "get_hf_text_config")
    return Finding.broken("speculators looks at the config and its text_config only")


ADAPTER = Adapter(
    name="decoder_layer_count",
    contract="The config, or its text_config, has num_hidden_layers, and transformers can load it.",
    symptom="ValueError: Cannot determine num_layers from config; ValueError: The checkpoint you are trying to load has model "
    "type ... but Transformers does not recognize this architecture",
    vllm=">=0.11.0",
    speculators="<0.5.0",
    broken_by="speculators: AutoConfig and two attribute names; vLLM has configs of its own "
    "(vllm/transformers_utils/config.py) and nests the text config as thinker_config, llm_config, ...",
    removable_when="speculators asks vLLM's ModelConfig",
    probe=probe,
    patches=(Patch(GENERATOR_MODULE, "AutoConfig", stand_in=TextConfigFinder),),
)
