"""`speculators-compat run` beside plain Python, on scripts that import made-up modules of upstream's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ADAPTED = "import sys; print('speculators_compat' in sys.modules)"
COMMAND = (sys.executable, "-m", "speculators_compat", "run")


def start(folder: Path, *command: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, cwd=folder, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def outcome(folder: Path, *command: str, **environment: str) -> tuple[int, str, str]:
    process = start(folder, *command, **environment)
    output, errors = process.communicate(timeout=60)
    return process.returncode, output, errors


SCRIPTS = {
    "arguments": "import sys; print(sys.argv, sys.path[0], __name__, __file__, __spec__)",
    "an exit code": "import sys; sys.exit(7)",
    "a message at the exit": "raise SystemExit('no more')",
    "a traceback": "def fail():\n    1 / 0\n\nfail()",
    "interpreter options": "import sys; print(sys.flags, sys.warnoptions)",
    "a pickle of __main__": "import pickle\nclass A: pass\nprint(pickle.loads(pickle.dumps(A)))",
    "death by a signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_run_as_python_runs_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPTS[name])
    arguments = ("script.py", "--help", "-m", "x", "--", "-h")
    plain = outcome(tmp_path, sys.executable, *arguments)
    assert outcome(tmp_path, *COMMAND, *arguments) == plain
    options = ("-X", "dev", "-W", "error::UserWarning", "-u")
    plain = outcome(tmp_path, sys.executable, *options, *arguments)
    assert outcome(tmp_path, sys.executable, *options, "-m", "speculators_compat", "run", *arguments) == plain


@pytest.mark.parametrize(
    "start", [("-um", "speculators_compat"), ("-u", "-c", "from speculators_compat.cli import main; main()")]
)
def test_options_are_told_from_how_the_command_was_named(tmp_path: Path, start: tuple[str, ...]) -> None:
    (tmp_path / "script.py").write_text("import sys; print(sys.argv, sys.stdout.write_through)")
    plain = outcome(tmp_path, sys.executable, "-u", "script.py", "x")
    assert outcome(tmp_path, sys.executable, *start, "run", "script.py", "x") == plain


def test_a_module_is_run_as_python_runs_it(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text("import sys; print(sys.argv, __spec__.name)")
    plain = outcome(tmp_path, sys.executable, "-m", "package", "--help", "-m")
    assert outcome(tmp_path, *COMMAND, "-m", "package", "--help", "-m") == plain
    assert outcome(tmp_path, *COMMAND, "-mpackage", "--help", "-m") == plain
    assert plain[0] == 0


def test_ctrl_c_reaches_the_script_itself(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import time; print('ready', flush=True); time.sleep(60)")
    process = start(tmp_path, *COMMAND, "script.py")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == -signal.SIGINT
    assert errors.endswith("KeyboardInterrupt\n")
    assert "speculators_compat" not in errors


def test_it_is_active_in_the_script_and_in_what_the_script_starts(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        f"{ADAPTED}\n"
        "import multiprocessing, subprocess\n"
        f"def look():\n    {ADAPTED}\n\n"
        "if __name__ == '__main__':\n"
        "    process = multiprocessing.get_context('spawn').Process(target=look); process.start(); process.join()\n"
        f"    print(subprocess.run([sys.executable, '-c', {ADAPTED!r}], capture_output=True, text=True).stdout)\n"
    )
    code, output, errors = outcome(tmp_path, *COMMAND, "script.py")
    assert code == 0, errors
    # Once more where the spawned process imports its main module.
    assert output.split() == ["True"] * 4


def test_without_it_nothing_is_active(tmp_path: Path) -> None:
    assert outcome(tmp_path, sys.executable, "-c", ADAPTED)[1] == "False\n"


def test_the_users_own_sitecustomize_and_path_stay(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "sitecustomize.py").write_text("MINE = 1")
    (tmp_path / "script.py").write_text("import sys, sitecustomize; print(sitecustomize.MINE, *sys.path, sep='\\n')")
    plain = outcome(tmp_path, sys.executable, "script.py", PYTHONPATH="mine")
    assert outcome(tmp_path, *COMMAND, "script.py", PYTHONPATH="mine") == plain
    assert plain[1].startswith("1\n")


@pytest.mark.parametrize("broken", ["import no_such_module", "raise RuntimeError('no_such_module')"])
def test_an_error_in_the_users_own_sitecustomize_is_not_swallowed_and_swallows_nothing(tmp_path: Path, broken: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(broken)
    (tmp_path / "script.py").write_text(ADAPTED)
    code, output, errors = outcome(tmp_path, *COMMAND, "script.py", PYTHONPATH=str(tmp_path))
    assert (code, output) == (0, "True\n")
    assert "no_such_module" in errors


def test_an_interpreter_that_cannot_be_activated_does_not_run_the_script(tmp_path: Path) -> None:
    (tmp_path / "start.py").write_text(
        "import os, subprocess, sys\n"
        "environment = {**os.environ, 'SPECULATORS_COMPAT_DISABLE': 'no_such_adapter'}\n"
        "sys.exit(subprocess.run([sys.executable, '-c', 'print(1)'], env=environment).returncode)\n"
    )
    code, output, errors = outcome(tmp_path, *COMMAND, "start.py")
    assert (code, output) == (1, "")
    assert "SwitchError: SPECULATORS_COMPAT_DISABLE names no_such_adapter" in errors


def test_another_environment_with_speculators_but_without_the_package_says_so(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import subprocess, sys\nsubprocess.run([sys.executable, '-S', '-c', 'import sitecustomize'])\n"
    )
    (tmp_path / "speculators.py").write_text("")
    _, _, errors = outcome(tmp_path, *COMMAND, "script.py", PYTHONPATH=str(tmp_path))
    assert "has speculators, but no speculators-compat" in errors
    (tmp_path / "speculators.py").unlink()
    assert outcome(tmp_path, *COMMAND, "script.py", PYTHONPATH=str(tmp_path))[2] == ""


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ((*COMMAND, "no_such_script.py"), "Found no script no_such_script.py"),
        ((sys.executable, "-E", "-m", "speculators_compat", "run", __file__), "would run the script unadapted"),
    ],
)
def test_what_cannot_be_run_adapted_is_not_run(tmp_path: Path, command: tuple[str, ...], words: str) -> None:
    code, _, errors = outcome(tmp_path, *command)
    assert code == 2
    assert words in errors


def test_starting_costs_little(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("")
    started = time.perf_counter()
    outcome(tmp_path, *COMMAND, "script.py")
    assert time.perf_counter() - started < 1
