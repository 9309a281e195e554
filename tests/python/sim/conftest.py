import os
import signal
from pathlib import Path

import pytest

from octavo.cli import main

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def real_trace():
    """A function that gives the path of a published trace, or skips the test where it is absent."""
    folder = Path(os.environ.get("OCTAVO_TRACES", ROOT.parent / "shared" / "traces"))

    def path(name: str) -> Path:
        if not (folder / name).exists():
            pytest.skip(f"the published trace {name} is not here: name its folder in OCTAVO_TRACES")
        return folder / name

    return path


@pytest.fixture
def octavo(capsys):
    """A function that runs the command and gives its exit code, output and errors."""

    def run(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def written(tmp_path):
    """A function that writes a trace file and gives its path."""

    def write(text: str, name: str = "trace.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode())
        return path

    return write


@pytest.fixture
def listening():
    """Ctrl-C raises, here and in what is started: tests run in the background had it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
