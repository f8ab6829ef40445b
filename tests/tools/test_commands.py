"""`doctor --probe`, `run` and the progress bar on real vLLM."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("vllm")

from tiny_checkpoints import make

import speculators_compat
from tests.engine.support import Extractor, prompt

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

# What a user has who has never heard of this package.
SCRIPT = """
    import sys
    from speculators.data_generation import VllmHiddenStatesGenerator

    generator = VllmHiddenStatesGenerator(sys.argv[1], layer_ids=[0, 2], max_model_len=600)
    prompts = [list(range(seed, seed + 300)) for seed in range(12)]
    results = generator.generate(prompts)
    assert [result["input_ids"].tolist() for result in results] == prompts
    alone = generator.generate(prompts[5:6])[0]
    assert all((a == b).all() for a, b in zip(alone["hidden_states"], results[5]["hidden_states"], strict=True))
    print("extracted", len(results))
"""


def doctor(*arguments: str) -> dict[str, object]:
    process = subprocess.run(
        [sys.executable, "-m", "speculators_compat", "doctor", "--json", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)  # type: ignore[no-any-return]


def test_the_record_says_what_the_probes_say_here() -> None:
    recorded, probed = doctor(), doctor("--probe")
    decisions = {decision.adapter.name: decision.state.value for decision in speculators_compat.status().decisions}
    for answer in (recorded, probed):
        assert {adapter["name"]: adapter["state"] for adapter in answer["adapters"]} == decisions  # type: ignore[attr-defined]


def test_a_script_that_knows_nothing_of_this_package_is_run(checkpoints: Path, tmp_path: Path) -> None:
    model = make("llama", checkpoints / "llama")
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    process = subprocess.run(
        [sys.executable, "-m", "speculators_compat", "run", str(script), str(model)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert "extracted 12" in process.stdout, process.stderr[-3000:]


def test_a_bar_with_tokens_per_second_is_shown_on_request(
    checkpoints: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [prompt(500, seed) for seed in range(20)]
    with Extractor(checkpoints, "llama") as extractor:
        extractor.generator.generate(prompts)
        assert "hidden states" not in capfd.readouterr().err
        monkeypatch.setenv("SPECULATORS_COMPAT_PROGRESS", "1")
        extractor.generator.generate(prompts)
    bar = capfd.readouterr().err.split("\r")[-1]
    assert "hidden states: 100%" in bar
    assert "10.0k/10.0k" in bar
    assert "tokens/s" in bar
