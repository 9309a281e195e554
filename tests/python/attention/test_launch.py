"""What a kernel is launched with is held to what it declares, before it starts."""

import types

import ml_dtypes
import numpy as np
import pytest

from octavo.attention.launch import Kernel, check_arguments
from octavo.errors import RequestError

KERNEL = Kernel(
    "mix.cu",
    "mix<__half,__nv_fp8_e4m3,128>",
    (
        ("out", "*float32"),
        ("q", "const *float16"),
        ("bias", "const *bfloat16"),
        ("pages", "const *float8_e4m3"),
        ("tables", "const *int32"),
        ("stride", "int64"),
        ("count", "int32"),
        ("scale", "float32"),
    ),
    128,
)
GOOD = {
    "out": np.zeros(4, np.float32),
    "q": np.zeros(4, np.float16),
    "bias": np.zeros(4, ml_dtypes.bfloat16),
    "pages": np.zeros(4, ml_dtypes.float8_e4m3fn),
    "tables": np.zeros(4, np.int32),
    "stride": np.int64(2**33),
    "count": np.int32(7),
    "scale": np.float32(0.5),
}
READ_ONLY = np.zeros(4, np.float32)
READ_ONLY.flags.writeable = False
TAKES = {name: f"kernel {KERNEL.name} takes {kind}, given is " for name, kind in KERNEL.params}

BAD = [
    ("out", np.zeros(4, np.float64), "an array of float64"),
    ("out", READ_ONLY, "an array that is read-only"),
    ("out", np.zeros(4, ">f4"), "an array of >f4"),
    ("out", [0.0], "a list, no array of numpy"),
    ("out", np.float32(0), "a float32, no array of numpy"),
    ("q", GOOD["bias"], "an array of bfloat16"),
    ("q", np.zeros(4, np.uint16), "an array of uint16"),
    ("bias", GOOD["q"], "an array of float16"),
    ("pages", np.zeros(4, np.int8), "an array of int8"),
    ("pages", np.zeros(4, ml_dtypes.float8_e5m2), "an array of float8_e5m2"),
    ("tables", np.zeros(4, np.int64), "an array of int64"),
    ("tables", np.zeros(4, np.uint32), "an array of uint32"),
    ("stride", np.int32(2), "a scalar of int32"),
    ("stride", 2, "a int"),
    ("stride", None, "a NoneType"),
    ("stride", np.zeros(1, np.int64), "a ndarray"),
    ("count", np.uint32(7), "a scalar of uint32"),
    ("count", True, "a bool"),
    ("count", np.bool_(1), "a scalar of bool"),
    ("scale", 0.5, "a float"),
    ("scale", np.float64(0.5), "a scalar of float64"),
]


def check(**changed):
    check_arguments(np, KERNEL, list((GOOD | changed).values()))


def test_what_the_cases_differ_from_is_good():
    check()


@pytest.mark.parametrize(("name", "value", "given"), BAD)
def test_bad_argument_is_named_with_its_kernel(name, value, given):
    with pytest.raises(RequestError) as caught:
        check(**{name: value})
    assert (caught.value.argument, caught.value.message) == (name, TAKES[name] + given)


def test_null_is_a_pointer():
    check(out=None, q=None, bias=None, pages=None, tables=None)


def test_fp8_may_be_bytes():
    check(pages=np.zeros(4, np.uint8))


def test_an_array_that_is_only_read_may_be_read_only_and_strided():
    q = np.zeros((4, 4), np.float16)[::2, ::-1]
    q.flags.writeable = False
    check(q=q)


@pytest.mark.parametrize("count", [0, 7, 9])
def test_number_of_arguments_is_checked_first(count):
    with pytest.raises(RequestError) as caught:
        check_arguments(np, KERNEL, [None] * count)
    assert caught.value.argument == "args"
    assert caught.value.message == f"kernel {KERNEL.name} takes 8, given are {count}"


@pytest.mark.parametrize("kind", ["*float64", "const *void", "float16", "long", "float *", ""])
def test_unknown_type_of_a_parameter_is_refused(kind):
    kernel = Kernel("x.cu", "x", (("x", kind),), 32)
    with pytest.raises(RequestError, match=f"params: '{kind}' is no type".replace("*", r"\*")):
        check_arguments(np, kernel, [None])


def test_arrays_of_another_module_are_refused():
    other = types.ModuleType("other")
    other.ndarray = type("ndarray", (), {})
    with pytest.raises(RequestError, match=r"out: .* given is a ndarray, no array of other"):
        check_arguments(other, KERNEL, list(GOOD.values()))
