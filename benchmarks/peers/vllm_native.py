"""vLLM's own route: the `extract_hidden_states` method, whose connector writes one safetensors file per prompt.

It needs vLLM 0.22 or later, where a file comes with a lock that tells when it is whole. Its states are maps of the files.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path

from vllm import LLM, SamplingParams
from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (
    cleanup_hidden_states,
    load_hidden_states,
)

from benchmarks.peers import Peer, States
from benchmarks.settings import Prompts, Settings

SHARED_MEMORY = Path("/dev/shm")
ROOM = 16 << 30


class Native(Peer):
    """The model, with the files in shared memory where that has 16 GiB free, else in the folder for temporary files."""

    def __init__(self, settings: Settings) -> None:
        self.layers = settings.layers
        roomy = SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free > ROOM
        folder = tempfile.mkdtemp(dir=SHARED_MEMORY if roomy else None)
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        self.llm = LLM(
            model=settings.model,
            load_format="dummy" if settings.random_weights else "auto",
            max_model_len=settings.max_model_len,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            max_num_seqs=settings.max_num_seqs,
            gpu_memory_utilization=settings.gpu_memory_utilization,
            tensor_parallel_size=settings.tensor_parallel_size,
            enforce_eager=True,
            enable_prefix_caching=False,
            speculative_config={
                "method": "extract_hidden_states",
                "num_speculative_tokens": 1,
                # Counted as EAGLE-3 does: the input of the layer after ours, which is what ours returned.
                "draft_model_config": {
                    "hf_config": {"eagle_aux_hidden_state_layer_ids": [layer + 1 for layer in sorted(settings.layers)]}
                },
            },
            kv_transfer_config={
                "kv_connector": "ExampleHiddenStatesConnector",
                "kv_role": "kv_producer",
                "kv_connector_extra_config": {"shared_storage_path": folder},
            },
        )
        self.one_token = SamplingParams(max_tokens=1, temperature=0, detokenize=False)

    def run(self, prompts: Prompts) -> States:
        outputs = self.llm.generate([{"prompt_token_ids": ids} for ids in prompts], self.one_token, use_tqdm=False)
        paths = [output.kv_transfer_params["hidden_states_path"] for output in outputs]
        stacked = [load_hidden_states(path)["hidden_states"] for path in paths]  # [tokens, layers, hidden_size]
        for path in paths:
            cleanup_hidden_states(path)
        return [states.unbind(1) for states in stacked]

    def tap(self, layers: tuple[int, ...]) -> None:
        if layers != self.layers:
            raise ValueError(f"layers {layers} need another start: the model was built for {self.layers}")


def start(settings: Settings) -> Peer:
    return Native(settings)
