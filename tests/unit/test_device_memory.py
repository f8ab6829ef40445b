"""Platforms that are not here: the real ones need an XPU or an NPU, so torch and vLLM's platform are stand-ins."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from speculators_compat.adapters.device_memory import PlatformTorch, free_and_total_memory, release_cached_memory
from speculators_compat.errors import ContractError


def use_platform(monkeypatch: pytest.MonkeyPatch, device_type: str, device: Any = None, cpu_space: int = 0) -> ModuleType:
    torch: Any = ModuleType("torch")
    if device is not None:
        setattr(torch, device_type, device)
    platforms: Any = ModuleType("vllm.platforms")
    platforms.current_platform = SimpleNamespace(
        device_type=device_type, is_cpu=lambda: device_type == "cpu", get_device_total_memory=lambda: cpu_space
    )
    for name, module in {"torch": torch, "vllm": ModuleType("vllm"), "vllm.platforms": platforms}.items():
        monkeypatch.setitem(sys.modules, name, module)
    return torch  # type: ignore[no-any-return]


@pytest.mark.parametrize("device_type", ["cuda", "xpu", "npu"])
def test_the_platforms_own_device_answers(monkeypatch: pytest.MonkeyPatch, device_type: str) -> None:
    emptied: list[str] = []
    device = SimpleNamespace(mem_get_info=lambda: (10, 20), empty_cache=lambda: emptied.append(device_type))
    torch = use_platform(monkeypatch, device_type, device)
    assert free_and_total_memory() == (10, 20)
    release_cached_memory()
    assert emptied == [device_type]
    if device_type != "cuda":
        torch.cuda = SimpleNamespace(is_available=lambda: False)  # type: ignore[attr-defined]
        seen_by_upstream = PlatformTorch(torch)
        assert seen_by_upstream.cuda.mem_get_info() == (10, 20)
        assert seen_by_upstream.cuda.is_available() is False


def test_a_cpu_answers_with_its_kv_cache_space(monkeypatch: pytest.MonkeyPatch) -> None:
    use_platform(monkeypatch, "cpu", SimpleNamespace(), cpu_space=2**30)
    assert free_and_total_memory() == (2**30, 2**30)
    release_cached_memory()


def test_a_platform_that_cannot_tell_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    use_platform(monkeypatch, "abacus")
    with pytest.raises(ContractError, match="'abacus' found, whose torch module has no mem_get_info"):
        free_and_total_memory()
