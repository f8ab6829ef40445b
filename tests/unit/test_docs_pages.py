"""The pages that docs/generate.py makes, and what has to be on those that are written by hand."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

import speculators_compat
from docs import generate
from speculators_compat import errors
from speculators_compat.adapter import Adapter
from speculators_compat.registry import ADAPTERS

ROOT = Path(__file__).parents[2]
ROWS = json.loads(generate.ROWS.read_text())
EACH = pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.name)


def written(page: str) -> str:
    return (ROOT / "docs" / page).read_text()


@EACH
def test_a_page_begins_with_its_whole_symptom(adapter: Adapter) -> None:
    title, fence, symptom, end, *rest = [line for line in generate.page(adapter, ROWS).splitlines() if line]
    assert (title, symptom, end) == (f"# {adapter.name}", adapter.symptom, "```")
    assert fence.startswith("```")
    text = "\n".join(rest).replace("\\", "")
    for field in (adapter.contract, adapter.broken_by, adapter.removable_when, adapter.vllm, adapter.speculators):
        assert field in text


@EACH
def test_a_page_can_be_reached(adapter: Adapter) -> None:
    """From the menu, from the list of contracts, and from each of its messages."""
    config = SimpleNamespace(nav=[{"Contracts": []}])
    generate.on_config(config)
    assert f"contracts/{adapter.name}.md" in config.nav[0]["Contracts"]
    assert f"({adapter.name}.md)" in generate.index()
    leading = [line for line in generate.symptoms().splitlines() if f"(contracts/{adapter.name}.md)" in line]
    assert len(leading) == len(list(generate.messages(adapter)))
    assert all(message in "\n".join(leading) for message in generate.messages(adapter))


@pytest.mark.parametrize(
    ("marks", "said"),
    [
        ("..++.+", "vLLM 2 to 3, 5"),
        ("+.....", "vLLM 0"),
        ("++++++", "every vLLM from 0 to 5"),
        ("......", "none"),
    ],
)
def test_releases_are_drawn_together(marks: str, said: str) -> None:
    assert generate.runs([(str(release), mark == "+") for release, mark in enumerate(marks)]) == said


def test_every_patch_is_listed() -> None:
    table = generate.patches()
    assert not [patch.target for adapter in ADAPTERS for patch in adapter.patches if f"`{patch.target}`" not in table]


@pytest.mark.parametrize("marker", generate.MADE)
def test_what_is_made_has_its_place(marker: str) -> None:
    pages = [path for path in ROOT.glob("docs/**/*.md") if marker in path.read_text()]
    assert len(pages) == 1


def test_every_error_is_explained() -> None:
    page = written("troubleshooting.md")
    names = [name for name, thing in vars(errors).items() if inspect.isclass(thing)]
    assert len(names) > 8
    assert not [name for name in names if f"`{name}`" not in page]


def test_every_public_name_is_in_the_reference() -> None:
    page = written("api.md")
    by_the_module = vars(errors).keys() if "::: speculators_compat.errors" in page else set()
    assert not [name for name in speculators_compat.__all__ if name not in by_the_module and name not in page]


def test_every_environment_variable_is_in_the_reference() -> None:
    page = written("commands.md")
    sources = "".join(path.read_text() for path in ROOT.glob("src/**/*.py"))
    found = set(re.findall(r"SPECULATORS_COMPAT_[A-Z][A-Z_]*", sources))
    assert {"SPECULATORS_COMPAT_DISABLE", "SPECULATORS_COMPAT_ACTIVE"} <= found
    assert not sorted(name for name in found if f"`{name}`" not in page)
