"""The only door to optional libraries: CuPy, ml_dtypes, tokenizers."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from types import ModuleType
from typing import Any

from octavo.errors import MissingDependencyError

__all__ = [
    "cuda_ready",
    "require_cublas",
    "require_cupy",
    "require_ml_dtypes",
    "require_tokenizers",
]

# The wheels that install the package `cupy`: with two of them it is a mixture of both.
_CUPY_WHEELS = ("cupy", "cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x")
_EXTRAS = "octavo[cuda12] or octavo[cuda13], to match your driver"
# CUDA runtime status codes.
_DRIVER_TOO_OLD, _NO_DEVICE = 35, 100


def require_cupy() -> ModuleType:
    """Returns the `cupy` module, ready to run.

    Raises:
        MissingDependencyError: CuPy is not installed, twice installed or broken, or finds no
            driver, too old a driver, or no device; the error says which, and what to do.
    """
    if importlib.util.find_spec("cupy") is None:
        raise MissingDependencyError("cupy", f"install {_EXTRAS}")
    wheels = [name for name in _CUPY_WHEELS if _is_installed(name)]
    if len(wheels) > 1:
        both = " and ".join(wheels)
        reason = f"{both} overwrite each other's files: uninstall both, then install {_EXTRAS}"
        raise MissingDependencyError("cupy", reason)
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        lines = [line for line in str(error).splitlines() if line.strip("= ")]
        reason = f"its import fails ({' '.join(lines[:1])}): reinstall {_EXTRAS}"
        raise MissingDependencyError("cupy", reason) from error
    runtime: Any = cupy.cuda.runtime
    try:
        runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        raise MissingDependencyError("cupy", _why_no_device(runtime, error)) from error
    return cupy


def _is_installed(distribution: str) -> bool:
    try:
        importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _why_no_device(runtime: Any, error: Any) -> str:
    """What CUDA's first answer means for whoever installed this."""
    if error.status == _NO_DEVICE:
        return "no CUDA device is present, or CUDA_VISIBLE_DEVICES hides it"
    if error.status != _DRIVER_TOO_OLD:
        return str(error)
    driver = int(runtime.driverGetVersion())
    if driver == 0:
        return "there is no CUDA driver: install NVIDIA's, or run where there is one"
    needed = _version(int(runtime.runtimeGetVersion()))
    return (
        f"the CUDA driver is for CUDA {_version(driver)} and too old for CUDA {needed}: update it, "
        "or install the octavo extra for an older CUDA"
    )


def _version(number: int) -> str:
    """CUDA's 12090 is 12.9."""
    return f"{number // 1000}.{number % 1000 // 10}"


def cuda_ready() -> bool:
    """Tells whether CuPy is installed and sees at least one device."""
    try:
        require_cupy()
    except MissingDependencyError:
        return False
    return True


def require_cublas(cupy: Any) -> None:
    """Sees that CuPy can multiply matrices.

    Raises:
        MissingDependencyError: cuBLAS is not there: the extras bring a compiler and no more.
    """
    try:
        cupy.cuda.get_cublas_handle()
    except (ImportError, RuntimeError) as error:
        reason = "install cuda-toolkit[cublas], of the version that CuPy is for"
        raise MissingDependencyError("cublas", reason) from error


def require_ml_dtypes() -> ModuleType:
    """Returns the `ml_dtypes` module, NumPy's bfloat16 and fp8.

    Raises:
        MissingDependencyError: It is not installed.
    """
    if importlib.util.find_spec("ml_dtypes") is None:
        raise MissingDependencyError("ml_dtypes", "install octavo[attention]")
    return importlib.import_module("ml_dtypes")


def require_tokenizers() -> ModuleType:
    """Returns the `tokenizers` module, text to tokens and back.

    Raises:
        MissingDependencyError: It is not installed.
    """
    if importlib.util.find_spec("tokenizers") is None:
        raise MissingDependencyError("tokenizers", "install octavo[text], or give token ids")
    return importlib.import_module("tokenizers")
