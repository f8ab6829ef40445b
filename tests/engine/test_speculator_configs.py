"""speculators' own configs, built, saved and loaded again: transformers 5 makes that impossible without the package."""

from __future__ import annotations

import pytest

from tests.engine.support import run_script

SCRIPT = """
    import speculators_compat
    import sys
    from pathlib import Path
    from speculators import SpeculatorModelConfig, SpeculatorsConfig, VerifierConfig
    from speculators.models.eagle import EagleSpeculatorConfig
    from speculators.models.eagle3 import Eagle3SpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from transformers import LlamaConfig

    for algorithm, kind, fields in (
        ("eagle", EagleSpeculatorConfig, {"layernorms": True}),
        ("eagle3", Eagle3SpeculatorConfig, {"draft_vocab_size": 32}),
    ):
        config = kind(
            transformer_layer_config=LlamaConfig(hidden_size=64, num_attention_heads=4, num_hidden_layers=1),
            speculators_config=SpeculatorsConfig(
                algorithm=algorithm,
                proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=3)],
                default_proposal_method="greedy",
                verifier=VerifierConfig(name_or_path="somebody/verifier", architectures=["LlamaForCausalLM"]),
            ),
            **fields,
        )
        folder = Path(sys.argv[1], algorithm)
        config.save_pretrained(folder)
        loaded = SpeculatorModelConfig.from_pretrained(folder)
        assert type(loaded) is kind, type(loaded)
        assert {name: getattr(loaded, name) for name in fields} == fields
        assert loaded.transformer_layer_config.hidden_size == 64
        assert loaded.speculators_config.verifier.name_or_path == "somebody/verifier"
        assert loaded.speculators_config.proposal_methods[0].speculative_tokens == 3
    print("RIGHT")
"""


@pytest.mark.matrix
def test_a_config_is_built_saved_and_loaded(tmp_path_factory: pytest.TempPathFactory) -> None:
    process = run_script(SCRIPT, str(tmp_path_factory.mktemp("config")))
    assert "RIGHT" in process.stdout, process.stderr[-4000:]
