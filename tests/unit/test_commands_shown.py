"""Every command that is shown is run by something, and the Python that is shown is Python."""

from __future__ import annotations

import ast
import re

import pytest

from tests.commands_shown import COMMANDS, ROOT, Session, commands, snippets

NOXFILE = (ROOT / "noxfile.py").read_text()


def sessions() -> set[str]:
    functions = (node for node in ast.walk(ast.parse(NOXFILE)) if isinstance(node, ast.FunctionDef))
    return {node.name for node in functions if any("nox.session" in ast.unparse(one) for one in node.decorator_list)}


def test_some_are_found() -> None:
    assert len(list(commands())) > 10
    assert len(list(snippets())) > 2


@pytest.mark.parametrize(("command", "page"), sorted(set(commands())))
def test_what_runs_a_command_is_known(command: str, page: str) -> None:
    assert command in COMMANDS, f"{page} shows a command that tests/commands_shown.py does not know"


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_known_is_shown(command: str) -> None:
    assert command in {shown for shown, _ in commands()}


@pytest.mark.parametrize("command", COMMANDS)
def test_sessions_exist(command: str) -> None:
    how = COMMANDS[command]
    named = re.findall(r"nox -s ([\w ]+)", command)
    wanted = {name for names in named for name in names.split()} | ({how.name} if isinstance(how, Session) else set())
    assert wanted <= sessions()


@pytest.mark.parametrize("source", [pytest.param(source, id=name) for source, name in snippets()])
def test_python_compiles(source: str) -> None:
    compile(source, "shown", "exec")


def test_the_pins_that_are_shown_are_those_of_the_noxfile() -> None:
    pins = re.findall(r"[\w-]+==([\w.]+)", (ROOT / "docs/guides/cpu.md").read_text())
    assert len(pins) > 5
    assert not [version for version in pins if f'"{version}"' not in NOXFILE and f'=={version}"' not in NOXFILE]
