"""One architecture of each structural kind, by the sweep's own tool; the whole registry is in docs/architectures.md."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.registry.faults import FAULTS, Fault

ROOT = Path(__file__).parents[2]
KINDS = {
    "LlamaForCausalLM": "hidden and residual",
    "GPT2LMHeadModel": "the stream alone, layers at transformer.h, learned positions",
    "OPTForCausalLM": "layers at model.decoder",
    "BloomForCausalLM": "attention biases in place of positions",
    "Cohere2ForCausalLM": "a stale residual that the next layer is handed; attention beside MLP; a sliding-window mix",
    "StableLmForCausalLM": "a stale residual that nobody is handed",
    "Exaone4ForCausalLM": "norms behind attention and MLP",
    "Gemma3ForCausalLM": "embeddings scaled, norms before and behind",
    "GraniteMoeForCausalLM": "residual multipliers, experts",
    "HunYuanDenseV1ForCausalLM": "three values returned",
    "MiniCPMForCausalLM": "hidden and None",
    "ChatGLMModel": "layers at transformer.encoder, remote code",
    "Qwen2VLForConditionalGeneration": "a wrapper whose language model is a whole causal LM",
    "Idefics3ForConditionalGeneration": "a wrapper whose language model is a bare stack",
    "MistralForCausalLM": "every layer slides",
    "DeciLMForCausalLM": "layers without attention, without MLP, and with different KV caches",
    "GritLM": "an architecture that vLLM would run as an embedder",
    "Qwen2_5OmniForConditionalGeneration": "the text config two levels deep",
    "OuroForCausalLM": "layers that run several times",
}
REFUSED = {"OuroForCausalLM": "runs 2 times in one forward pass"}


def rows_of(module: str, results: Path, *arguments: str) -> dict[str, dict[str, Any]]:
    command = [sys.executable, "-m", f"tests.registry.{module}", str(results), *arguments]
    subprocess.run(command, cwd=ROOT, check=True, timeout=900)
    return {path.stem: json.loads(path.read_text()) for path in results.glob("*.json")}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return rows_of("sweep", tmp_path_factory.mktemp("sweep"), "--only", *KINDS)


@pytest.fixture(scope="module")
def broken_rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return rows_of("sabotage", tmp_path_factory.mktemp("sabotage"))


@pytest.mark.timeout(900)
@pytest.mark.xdist_group("sweep")
@pytest.mark.parametrize("architecture", KINDS)
def test_states_are_right_or_refused(rows: dict[str, dict[str, Any]], architecture: str) -> None:
    row = rows[architecture]
    if architecture in REFUSED:
        assert row["result"] == "refused"
        assert REFUSED[architecture] in row["words"]
    else:
        assert row["result"] == "right", row


@pytest.mark.timeout(900)
@pytest.mark.xdist_group("sabotage")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_sweep_sees_what_is_wrong(broken_rows: dict[str, dict[str, Any]], fault: Fault) -> None:
    assert fault.architecture in KINDS
    row = broken_rows[fault.name]
    assert row["result"] == fault.result, row
    assert fault.words in row["words"]
    assert row["deviation"] is None or row["deviation"] > 0.05
