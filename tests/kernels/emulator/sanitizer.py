"""The environment of a process whose kernels are sanitized: the sanitizer must be there first."""

import os
import subprocess
from functools import cache
from pathlib import Path

_LIBRARIES = {"": (), "address": ("libasan.so", "libubsan.so"), "thread": ("libtsan.so",)}
_OPTIONS = {
    # Python never frees everything.
    "ASAN_OPTIONS": "detect_leaks=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1",
}
_ROOT = Path(__file__).resolve().parents[3]


def environment(sanitize: str) -> dict[str, str]:
    """This process's environment, for one whose launchers are sanitized by default.

    Args:
        sanitize: "", "address" (with undefined behaviour) or "thread".
    """
    paths = [str(_ROOT / folder) for folder in ("tests/kernels", "tests/python", "python")]
    given = os.environ | _OPTIONS | {"CUEMU_SANITIZE": sanitize, "PYTHONPATH": ":".join(paths)}
    preloaded = " ".join(_library(name) for name in _LIBRARIES[sanitize])
    return given | ({"LD_PRELOAD": preloaded} if preloaded else {})


@cache
def _library(name: str) -> str:
    command = ["g++", f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
