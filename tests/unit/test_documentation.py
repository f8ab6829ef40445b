"""What the README and the pages of architectures and of pairs say is what the rows say that runs have left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from speculators_compat.plan import TESTED_VLLM
from speculators_compat.registry import ADAPTERS
from tests.matrix.page import KNOWN_PAIRS, LINES, known_pairs
from tests.matrix.page import page as pairs_page
from tests.registry.table import counts, page

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return json.loads((ROOT / "docs/architectures.json").read_text())  # type: ignore[no-any-return]


def test_the_page_is_written_from_the_rows(rows: list[dict[str, Any]]) -> None:
    assert (ROOT / "docs/architectures.md").read_text() == page(rows)


def test_no_architecture_is_wrong_or_fails(rows: list[dict[str, Any]]) -> None:
    assert not [row for row in rows if row["result"] in ("WRONG", "FAILED")]


def test_the_readme_counts_as_the_rows_do(rows: list[dict[str, Any]]) -> None:
    text, multimodal = counts(rows, "text"), counts(rows, "multimodal")
    said = [
        f"all {len(rows)} architectures",
        f"Of {text.total()} for text, {text['right']} give right states, {text['refused']} are refused",
        f"and {text['not run']} were not run; of {multimodal.total()} multimodal ones, given text,",
        f"{multimodal['right']} are right, {multimodal['refused']} refused",
        f"{multimodal['refused']} refused and {multimodal['not run']} not run",
    ]
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert not [words for words in said if words not in readme]


def test_the_changelog_names_every_adapter() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert not [adapter.name for adapter in ADAPTERS if f"`{adapter.name}`" not in changelog]


def test_the_page_of_pairs_is_written_from_the_rows() -> None:
    assert (ROOT / "docs/compatibility.md").read_text() == pairs_page(pairs())
    assert KNOWN_PAIRS.read_text() == known_pairs(pairs())


def test_every_pair_is_right_or_refused() -> None:
    assert not [row for row in pairs() if row["result"] not in ("right", "refused")]


def test_every_minor_within_the_tested_bounds_has_been_run_with_both_lines() -> None:
    run = {(Version(row["vllm"]).release[:2], row["speculators"]) for row in pairs()}
    minors = {minor for minor, _ in run}
    assert run == {(minor, line) for minor in minors for line in LINES}
    bounds = sorted(Version(bound.version).release[:2] for bound in SpecifierSet(TESTED_VLLM))
    assert (min(minors), max(minors)) == tuple(bounds)
    assert len(minors) == bounds[1][1] - bounds[0][1] + 1


def test_rows_and_records_agree_on_adapters() -> None:
    """Each row knows the adapters whose record names its vLLM, and no others; none is applied outside of its record."""
    for row in pairs():
        names = {adapter.name for adapter in ADAPTERS}
        recorded = {a.name for a in ADAPTERS if Version(row["vllm"]) in SpecifierSet(a.vllm, prereleases=True)}
        assert recorded <= set(row.get("adapters", names)) <= names, row["vllm"]
    for adapter in ADAPTERS:
        applied = [row for row in pairs() if row.get("adapters", {}).get(adapter.name) == "applied"]
        outside = [row["vllm"] for row in applied if Version(row["vllm"]) not in SpecifierSet(adapter.vllm, prereleases=True)]
        assert not outside, f"{adapter.name} is applied outside of its record, {adapter.vllm}: {outside}"


def test_model_runner_v2_was_run_wherever_the_page_says_so() -> None:
    for row in pairs():
        if "skipped" in row and Version(row["vllm"]) >= Version("0.23"):
            assert not [test for test in row["skipped"] if "test_model_runner_v2" in test], row["vllm"]


def pairs() -> list[dict[str, Any]]:
    return json.loads((ROOT / "docs/compatibility.json").read_text())  # type: ignore[no-any-return]
