"""A CuPy without a GPU: its arrays lie in NumPy's memory, and are none of NumPy's.

What CuPy refuses is refused: a NumPy array among the operands, one where an array of the device is
expected, a conversion that nobody asked for, a dtype that it does not have. What changes an array
in place happens when its stream runs, which is late (`fake_cuda`); what makes a new array runs its
stream first, as if somebody had waited.
"""

from __future__ import annotations

import operator
import sys
from types import ModuleType, SimpleNamespace

import ml_dtypes
import numpy as np

from support.fake_cuda import RawModule, World, make_cuda

_KNOWN = {*"?bhilqBHILQefdFD"}
_COMPARED = ("lt", "le", "gt", "ge", "eq", "ne")
_COMPUTED = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")
_BITS = ("and_", "or_", "xor", "lshift", "rshift")
_UNARY = ("neg", "pos", "abs", "invert")
_VIEWS = ("reshape", "swapaxes", "transpose")
_METHODS = ("astype", "sum", "max", "min", "mean", "any", "all", "copy", "ravel", "argmax")
# Functions whose result is NumPy's also in CuPy.
_PLAIN = {"dtype", "issubdtype", "finfo", "errstate"}


def _check_dtype(dtype):
    if dtype.char not in _KNOWN and dtype != ml_dtypes.bfloat16:
        raise ValueError(f"Unsupported dtype {dtype}")


class Flags:
    """Those that CuPy has: not that of writing."""

    def __init__(self, flags):
        self.c_contiguous, self.f_contiguous = flags.c_contiguous, flags.f_contiguous
        self.owndata = flags.owndata


class MemoryPointer:
    def __init__(self, array):
        self._array, self.device_id = array, array.device_id
        self.ptr = array.host.ctypes.data

    def _bytes(self):
        assert self._array.flags.c_contiguous
        return self._array.host.reshape(-1).view(np.uint8)

    def copy_to_host_async(self, address, size, stream):
        mine = self._bytes()
        assert size == mine.size
        theirs = _host_bytes(address, size)
        if not self._array.world.is_pinned(address):
            # A copy to pageable memory waits.
            stream.run()
            theirs[:] = mine
            return
        stream.put(lambda: theirs.__setitem__(slice(None), mine))

    def copy_from_host_async(self, address, size, stream):
        mine, theirs = self._bytes(), _host_bytes(address, size)
        assert size == mine.size
        if not self._array.world.is_pinned(address):
            theirs = theirs.copy()
        stream.put(lambda: mine.__setitem__(slice(None), theirs))


def _host_bytes(address, size):
    interface = {"data": (address, False), "shape": (size,), "typestr": "|u1", "version": 3}
    return np.asarray(SimpleNamespace(__array_interface__=interface))


class ndarray:  # noqa: N801 - CuPy's name
    """An array on a device: NumPy's memory behind a wall."""

    __array_priority__ = 100

    def __init__(self, world, host, device_id=None):
        _check_dtype(host.dtype)
        self.world, self.host = world, host
        self.device_id = world.device if device_id is None else device_id

    shape = property(lambda self: self.host.shape)
    strides = property(lambda self: self.host.strides)
    dtype = property(lambda self: self.host.dtype)
    ndim = property(lambda self: self.host.ndim)
    size = property(lambda self: self.host.size)
    nbytes = property(lambda self: self.host.nbytes)
    itemsize = property(lambda self: self.host.itemsize)
    flags = property(lambda self: Flags(self.host.flags))
    data = property(MemoryPointer)

    @property
    def T(self):  # noqa: N802 - NumPy's name
        return self._like(self.host.T)

    def _like(self, host):
        return ndarray(self.world, host, self.device_id)

    def view(self, dtype=None):
        return self._like(self.host.view(dtype))

    def get(self):
        self.world.stream().run()
        return self.host.copy()

    def set(self, array, stream=None):
        assert isinstance(array, np.ndarray)
        assert (array.shape, array.dtype, self.flags.c_contiguous) == (self.shape, self.dtype, True)
        mine, given = self.host, array.copy()
        (stream or self.world.stream()).put(lambda: mine.__setitem__(..., given))

    def item(self):
        return self.get().item()

    def tolist(self):
        return self.get().tolist()

    def __getitem__(self, key):
        parts = key if isinstance(key, tuple) else (key,)
        if all(part is None or isinstance(part, (slice, int)) for part in parts):
            # A single element is a view, too.
            return self._like(self.host[(*parts, Ellipsis)])
        self.world.stream().run()
        return self._like(np.asarray(self.host[_unwrapped(key)]))

    def __setitem__(self, key, value):
        mine, key, value = self.host, _unwrapped(key), _unwrapped(value)
        self.world.stream().put(lambda: mine.__setitem__(key, value))

    def __len__(self):
        return len(self.host)

    def __iter__(self):
        return (self[index] for index in range(len(self)))

    def __bool__(self):
        return bool(self.get())

    def __int__(self):
        return int(self.get())

    def __float__(self):
        return float(self.get())

    def __index__(self):
        return operator.index(self.get())

    def __array__(self, *_, **__):
        raise TypeError("Implicit conversion to a NumPy array is not allowed")

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        assert method == "__call__"
        return _call(self.world, ufunc, inputs, options)

    def __array_function__(self, function, *_):
        raise TypeError(f"numpy.{function.__name__} of an array on a device")

    __hash__ = None


ndarray.__module__ = "cupy"


def _matmul(one, other):
    """NumPy widens the product of bfloat16, cuBLAS does so inside only."""
    return operator.matmul(one, other).astype(np.result_type(one, other))


def _binary(function, *, mirrored=False):
    def method(self, other):
        pair = (other, self) if mirrored else (self, other)
        return _call(self.world, function, pair, {})

    return method


def _inplace(function):
    def method(self, other):
        # At once, like everything that computes: late are copies and what is put into an array.
        self.host[...] = _call(self.world, function, (self, other), {}).host
        return self

    return method


def _unary(function):
    return lambda self: _call(self.world, function, (self,), {})


def _forwarded(name):
    function = getattr(np.ndarray, name)
    return lambda self, *args, **options: _call(self.world, function, (self, *args), options)


def _viewing(name):
    def method(self, *args):
        result = getattr(self.host, name)(*args)
        if not np.shares_memory(result, self.host):
            self.world.stream().run()
            result = getattr(self.host, name)(*args)
        return self._like(result)

    return method


for _name in (*_COMPARED, *_COMPUTED, *_BITS):
    _function, _plain = getattr(operator, _name), _name.rstrip("_")
    _function = _matmul if _name == "matmul" else _function
    setattr(ndarray, f"__{_plain}__", _binary(_function))
    if _name not in _COMPARED:
        setattr(ndarray, f"__r{_plain}__", _binary(_function, mirrored=True))
        setattr(ndarray, f"__i{_plain}__", _inplace(_function))
for _name in _UNARY:
    setattr(ndarray, f"__{_name}__", _unary(getattr(operator, _name)))
for _name in _METHODS:
    setattr(ndarray, _name, _forwarded(_name))
for _name in _VIEWS:
    setattr(ndarray, _name, _viewing(_name))


def _unwrapped(value):
    """NumPy's array behind one of the device; one of NumPy's is refused, numbers are not."""
    if isinstance(value, ndarray):
        return value.host
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type {type(value)}")
    if isinstance(value, (tuple, list)):
        return type(value)(_unwrapped(part) for part in value)
    return value


def _wrapped(world, value):
    if isinstance(value, tuple):
        return tuple(_wrapped(world, part) for part in value)
    # What is a number in NumPy is an array without axes in CuPy.
    if isinstance(value, (np.ndarray, np.generic)):
        return ndarray(world, np.asarray(value))
    return value


def _call(world, function, args, options):
    world.stream().run()
    plain = {name: _unwrapped(value) for name, value in options.items()}
    out = plain.get("out")
    result = function(*map(_unwrapped, args), **plain)
    return options["out"] if out is not None else _wrapped(world, result)


class FakeCupy(ModuleType):
    """The module `cupy`."""

    def __init__(self, world):
        super().__init__("cupy")
        self.world = world
        self.ndarray = ndarray
        self.cuda = make_cuda(world)
        self.RawModule = lambda **options: RawModule(world, **options)

    def asarray(self, value, dtype=None, *, blocking=False):
        if isinstance(value, ndarray):
            return value if dtype is None or value.dtype == dtype else value.astype(dtype)
        # The host's array may change as soon as this returns.
        given = np.array(value, dtype=dtype, order="C")
        if blocking:
            return ndarray(self.world, given)
        array = self.empty(given.shape, given.dtype)
        self.world.stream().put(lambda: array.host.__setitem__(..., given))
        return array

    def array(self, value, dtype=None, order="K"):
        if isinstance(value, ndarray):
            return _call(self.world, np.array, (value,), {"dtype": dtype, "order": order})
        return self.asarray(value, dtype)

    def empty(self, shape, dtype=np.float64):
        host = np.empty(shape, dtype)
        host.reshape(-1).view(np.uint8)[...] = 0xCB
        return ndarray(self.world, host)

    def take(self, values, indices, axis=None, out=None):
        if out is None:
            return _call(self.world, np.take, (values, indices, axis), {})
        assert (values.dtype, values.shape[1:]) == (out.dtype, out.shape[1:])
        to, found, at = out.host, values.host, indices.host
        self.world.stream().put(lambda: to.__setitem__(..., np.take(found, at, axis)))
        return out

    def asnumpy(self, array):
        return array.get() if isinstance(array, ndarray) else np.asarray(array)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(np, name)
        if name in _PLAIN or isinstance(found, (type, float)) or not callable(found):
            return found
        return lambda *args, **options: _call(self.world, found, args, options)


def install(monkeypatch, world=None):
    """Makes `import cupy` give one of these. Returns it."""
    from octavo import _optional  # noqa: PLC0415 - patched, not used

    cupy = FakeCupy(world or World())
    found = _optional.importlib.util.find_spec

    def find_spec(name):
        return "there" if name == "cupy" else found(name)

    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(_optional.importlib.util, "find_spec", find_spec)
    return cupy
