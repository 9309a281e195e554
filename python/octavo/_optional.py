"""The only door to optional libraries: CuPy, ml_dtypes, tokenizers."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from octavo.errors import MissingDependencyError

__all__ = ["cuda_ready", "require_cupy", "require_ml_dtypes", "require_tokenizers"]

# CUDA runtime status codes that tell why no device answers.
_NO_DEVICE = {
    35: "the CUDA driver is absent or older than the runtime",
    100: "no CUDA device is present",
}


def require_cupy() -> ModuleType:
    """Returns the `cupy` module, ready to run.

    Raises:
        MissingDependencyError: CuPy is not installed, or finds no driver or no device; the
            error says which.
    """
    if importlib.util.find_spec("cupy") is None:
        reason = "install octavo[cuda12] or octavo[cuda13], to match your driver"
        raise MissingDependencyError("cupy", reason)
    cupy = importlib.import_module("cupy")
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        reason = _NO_DEVICE.get(error.status, str(error))
        raise MissingDependencyError("cupy", reason) from error
    return cupy


def cuda_ready() -> bool:
    """Tells whether CuPy is installed and sees at least one device."""
    try:
        require_cupy()
    except MissingDependencyError:
        return False
    return True


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
