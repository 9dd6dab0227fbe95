"""What every test may use. A part's own fixtures live in its own folder's conftest."""

import gc
import itertools
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from cantrip_acp.substrate.substrate import close_shared
from cantrip_acp.text import redaction

# A shell may have been started with SIGINT ignored (`nohup`, CI): children would inherit it, and tests of ^C would lie.
signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    # `nohup make test`: the run itself goes on when its terminal closes, and what it starts begins with the default again,
    # since a handler, unlike SIG_IGN, is not inherited.
    signal.signal(signal.SIGHUP, lambda number, frame: None)

# No test reads the developer's own keys, recipes or state, and none leaves anything behind in them.
_OURS = ("CANTRIP_", "ANTHROPIC_", "OPENAI_", "GEMINI_", "GOOGLE_", "OPENROUTER_", "OLLAMA_", "OTEL_")

# Nor do a user's wishes for a terminal reach tests of what terminals show.
_TERMINAL = ("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS", "LINES", "PYTHONUNBUFFERED")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, help="the first seed of the casts of a real model")
    parser.addoption("--casts", type=int, help="how many casts of a real model, each with the next seed")


def pytest_configure(config: pytest.Config) -> None:
    for name in [name for name in os.environ if name.startswith(_OURS) or name in _TERMINAL]:
        del os.environ[name]
    # Nor from the keyring of whoever runs them.
    os.environ["PYTHON_KEYRING_BACKEND"] = "keyring.backends.null.Keyring"
    # For fixtures that outlive a test; each test has folders of its own on top (`_own_folders`).
    os.environ["CANTRIP_STATE_DIR"] = tempfile.mkdtemp(prefix="cantrip-tests-")
    # Real models compute with one thread: threads that wait for each other spin, and other tests run at the same time.
    os.environ["OMP_NUM_THREADS"] = "1"
    # What tests download is kept with the tools that they use.
    os.environ["CANTRIP_CACHE_DIR"] = str(Path(sys.prefix) / "cache")


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(os.environ.pop("CANTRIP_STATE_DIR"), ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays until the end, so the garbage collector need never look at it: neither now, when
    it finds nothing, nor in any of its later rounds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the tests that share a fixture of their module run in one process, so that the fixture is made once."""
    # Before xdist, which writes the groups into the ids.
    for item in items:
        fixtures = item._fixtureinfo.name2fixturedefs.values() if isinstance(item, pytest.Function) else ()
        shared = any(definitions[-1].scope == "module" for definitions in fixtures)
        if shared and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


# No example has a time limit, and none is too slowly made: on a busy machine any may be. A fixture for all examples is what a test
# wants that has one. CI tries the same examples each time, so that a commit fails for what it changed; elsewhere every run looks
# for new ones.
hypothesis.settings.register_profile(
    "tests",
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture],
)
hypothesis.settings.load_profile("tests")


@pytest.fixture
def anyio_backend() -> str:
    """The product runs on asyncio alone (anyio's other back end would need trio)."""
    return "asyncio"


_numbers = itertools.count()


def _new_folder(factory: pytest.TempPathFactory, name: str) -> Path:
    """A folder with the next number. (pytest's own `mktemp` first reads the names of all folders that there are: after
    thousands of tests, that took longer than the tests.)"""
    folder = factory.getbasetemp() / f"{name}{next(_numbers)}"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder of this test."""
    return _new_folder(tmp_path_factory, re.sub(r"\W", "_", request.node.name)[:30])


@pytest.fixture(autouse=True)
def _own_folders(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """State and configuration folders of this test alone, for code that runs here and for every process it starts."""
    base = _new_folder(tmp_path_factory, "cantrip")
    # A process learns the secrets that it meets. Another test's, met before, may begin like a text that this one streams, and
    # what may be a secret's beginning is held back.
    redaction.shared.cache_clear()
    monkeypatch.setenv("CANTRIP_STATE_DIR", str(base / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(base / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(base / "state-home"))
    yield
    # A process keeps its substrate open, and this one would soon have those of a thousand tests.
    for folder in (base, tmp_path):
        close_shared(folder)


_STARTS_A_PROCESS = frozenset(("subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.exec", "pty.spawn"))
_in_unit_test = False


def _forbid_processes(event: str, args: tuple[Any, ...]) -> None:
    if _in_unit_test and event in _STARTS_A_PROCESS:
        raise AssertionError(f"a unit test started a process ({event} {args[:1]}): move it to the folder `integration`")


sys.addaudithook(_forbid_processes)  # cannot be removed: it looks at `_in_unit_test`


@pytest.fixture(autouse=True)
def _no_processes(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test in a folder `unit` starts no process: one that needs a process is an integration test."""
    global _in_unit_test
    _in_unit_test = "unit" in request.path.relative_to(Path(__file__).parent).parts
    yield
    _in_unit_test = False
