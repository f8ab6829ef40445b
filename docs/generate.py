"""A hook of mkdocs: a page for each adapter, from its record, and what other pages say of all adapters and commands."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import click

from speculators_compat.adapter import Adapter
from speculators_compat.cli import main
from speculators_compat.extraction import CORE_PATCHES
from speculators_compat.import_hooks import GENERATOR_MODULE, WORKER_MODULE
from speculators_compat.registry import ADAPTERS

ROWS = Path(__file__).with_name("compatibility.json")
FOLDER = "contracts"
PAGE = """\
# {name}

``` {{ .text .symptom }}
{symptom}
```

{why}

Contract
:   {contract}

Broken
:   on vLLM `{vllm}`, for speculators `{speculators}`

Broken by
:   {broken_by}

Applied
:   {applied}

    These are the [pairs that were run](../compatibility.md), on a CPU. On other releases, and on GPUs, a probe of the real
    symbols decides in the same way.

Can go when
:   {removable_when}

Switched off
:   by `SPECULATORS_COMPAT_DISABLE={name}`, before Python starts. The other adapters stay; the symptom above may appear.

??? note "Source: `{path}`"

    ```python
{source}
    ```
"""
PLACES = {GENERATOR_MODULE: "caller", WORKER_MODULE: "worker"}


def escaped(text: str) -> str:
    """Plain text as Markdown, but for code in backticks. Names with underscores, in particular, are no emphasis."""
    return re.sub(r"`[^`]*`|([\\*_<>|\[\]])", lambda found: f"\\{found[1]}" if found[1] else found[0], text)


def messages(adapter: Adapter) -> Iterator[str]:
    """What a user may see, one by one."""
    for message in adapter.symptom.split(";"):
        yield re.sub(r"^(or|then)\b,?\s*", "", message.strip())


def page(adapter: Adapter, rows: list[dict[str, Any]]) -> str:
    """An adapter's page, in Markdown."""
    module = sys.modules[adapter.probe.__module__]
    text = Path(module.__file__ or "").read_text()
    return PAGE.format(
        name=adapter.name,
        symptom=adapter.symptom,
        why=module.__doc__,
        contract=escaped(adapter.contract),
        vllm=adapter.vllm,
        speculators=adapter.speculators,
        broken_by=escaped(adapter.broken_by),
        applied=applied(adapter, rows),
        removable_when=escaped(adapter.removable_when),
        path="/".join(["src", *module.__name__.split(".")]) + ".py",
        source="\n".join(f"    {line}".rstrip() for line in text.splitlines()),
    )


def applied(adapter: Adapter, rows: list[dict[str, Any]]) -> str:
    """On which of the tested releases of vLLM, for each of the tested speculators."""
    ran = [row for row in rows if "adapters" in row]
    lines = list(dict.fromkeys(row["speculators"] for row in ran))
    return "; ".join(
        f"with speculators {line} on "
        + runs([(row["vllm"], row["adapters"].get(adapter.name) == "applied") for row in ran if row["speculators"] == line])
        for line in lines
    )


def runs(marked: list[tuple[str, bool]]) -> str:
    """The releases that are marked, neighbours drawn together: `vLLM 0.11.0 to 0.13.0, 0.16.0`."""
    if all(mark for _, mark in marked):
        return f"every vLLM from {marked[0][0]} to {marked[-1][0]}"
    groups = [[release for release, _ in group] for mark, group in groupby(marked, lambda pair: pair[1]) if mark]
    spans = [group[0] if len(group) == 1 else f"{group[0]} to {group[-1]}" for group in groups]
    return f"vLLM {', '.join(spans)}" if spans else "none"


def table(*header: str, rows: list[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, ("---",) * len(header), *rows))


def link(adapter: Adapter, start: str = f"{FOLDER}/") -> str:
    return f"[{escaped(adapter.name)}]({start}{adapter.name}.md)"


def index() -> str:
    """All adapters, in the order in which they are applied."""
    rows = [
        (link(adapter, ""), escaped(adapter.contract), f"`{adapter.vllm}`", f"`{adapter.speculators}`") for adapter in ADAPTERS
    ]
    return table("adapter", "what speculators relies on", "vLLM", "speculators", rows=rows)


def symptoms() -> str:
    """Every message, and the page of the adapter that cures it."""
    found = sorted((message, adapter.name) for adapter in ADAPTERS for message in messages(adapter))
    pages = {adapter.name: link(adapter) for adapter in ADAPTERS}
    return table("what you see", "page", rows=[(f"`` {message} ``", pages[name]) for message, name in found])


def patches() -> str:
    """Every name that is patched, where, and for which adapters."""
    owners: dict[tuple[str, str], list[str]] = {}
    for adapter in ADAPTERS:
        for preparation in adapter.preparations:
            owners.setdefault(("before it is imported", preparation.module), []).append(link(adapter))
        for patch in adapter.patches:
            owners.setdefault((PLACES[patch.module], patch.target), []).append(link(adapter))
    for patch in CORE_PATCHES:
        owners.setdefault((PLACES[patch.module], patch.target), []).append("`extraction.py`")
    rows = [(place, f"`{target}`", ", ".join(names)) for (place, target), names in owners.items()]
    return table("process", "name", "by", rows=sorted(rows, key=lambda row: row[0]))


def commands() -> str:
    """What `--help` says, of each command."""
    with click.Context(main, info_name="speculators-compat", terminal_width=100) as context:
        found = [(name, main.get_command(context, name)) for name in main.list_commands(context)]
        helps = {name: command.get_help(click.Context(command, context, name)) for name, command in found if command}
    return "\n\n".join(f"## {name}\n\n```text\n{text}\n```" for name, text in helps.items())


MADE = {"{{ contracts }}": index, "{{ symptoms }}": symptoms, "{{ patches }}": patches, "{{ commands }}": commands}


def on_config(config: Any) -> None:
    section = next(entry["Contracts"] for entry in config.nav if "Contracts" in entry)
    section += [f"{FOLDER}/{adapter.name}.md" for adapter in ADAPTERS]


def on_files(files: Any, config: Any) -> None:
    from mkdocs.structure.files import File

    rows = json.loads(ROWS.read_text())
    for adapter in ADAPTERS:
        files.append(File.generated(config, f"{FOLDER}/{adapter.name}.md", content=page(adapter, rows)))


def on_page_markdown(markdown: str, **_: Any) -> str:
    for marker, make in MADE.items():
        if marker in markdown:
            markdown = markdown.replace(marker, make())
    return markdown
