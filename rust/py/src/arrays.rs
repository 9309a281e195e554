//! Arrays in and out: token ids and integers from whatever Python holds them in, and NumPy views over our memory.
//!
//! An `int32` array is read where it lies. Everything else is copied once, element by element checked, and refused
//! with the name of the argument and the index of the element.

use std::ffi::c_int;
use std::ops::Deref;

use numpy::npyffi::{self, NpyTypes, PY_ARRAY_API};
use numpy::{
    Element, PyArray1, PyArray2, PyArrayDescrMethods, PyArrayMethods, PyReadonlyArray1, PyUntypedArray,
    PyUntypedArrayMethods,
};
use pyo3::exceptions::{PyException, PyMemoryError, PyOverflowError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::type_object::PyTypeInfo as _;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyList, PyRange, PyRangeMethods, PyString, PyTuple};

use crate::errors::{Failure, Outcome};

/// An argument that may be left out; `None` is not the same as leaving it out, and is refused like any wrong value.
pub(crate) struct Given<'py>(pub(crate) Option<Bound<'py, PyAny>>);

impl<'py> Given<'py> {
    /// What `read` makes of the argument, or `default`.
    pub(crate) fn read<T>(&self, default: T, read: impl Fn(&Bound<'py, PyAny>) -> Outcome<T>) -> Outcome<T> {
        self.0.as_ref().map_or(Ok(default), read)
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for Given<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        Ok(Self(Some(object.to_owned())))
    }
}

/// Token ids as the core reads them.
pub(crate) enum Tokens<'py> {
    /// An `int32` array, where it lies.
    Borrowed(PyReadonlyArray1<'py, i32>),
    /// A converted copy.
    Owned(Vec<i32>),
}

impl Tokens<'_> {
    /// The ids as a vector of their own.
    pub(crate) fn into_vec(self) -> Vec<i32> {
        match self {
            Self::Borrowed(_) => self.to_vec(),
            Self::Owned(tokens) => tokens,
        }
    }
}

impl Default for Tokens<'_> {
    fn default() -> Self {
        Self::Owned(Vec::new())
    }
}

impl Deref for Tokens<'_> {
    type Target = [i32];

    fn deref(&self) -> &[i32] {
        match self {
            // Only contiguous arrays are borrowed.
            Self::Borrowed(array) => array.as_slice().unwrap_or_default(),
            Self::Owned(tokens) => tokens,
        }
    }
}

/// Reads token ids: a one-dimensional integer array, a list, a tuple, a range, or what NumPy makes of it. That none is
/// negative is for the core to check, which reads them anyway.
pub(crate) fn tokens<'py>(object: &Bound<'py, PyAny>, argument: &str) -> Outcome<Tokens<'py>> {
    if let Ok(array) = object.cast::<PyArray1<i32>>()
        && array.is_c_contiguous()
        && !is_masked(array.as_any())?
        && let Ok(array) = array.try_readonly()
    {
        return Ok(Tokens::Borrowed(array));
    }
    let wide = integers(object, argument)?;
    let narrow = |(i, &token): (usize, &i64)| {
        i32::try_from(token).map_err(|_| Failure::request(argument, format!("token {i} is {token}, beyond int32")))
    };
    Ok(Tokens::Owned(wide.iter().enumerate().map(narrow).collect::<Outcome<_>>()?))
}

/// The bytes of a one-dimensional uint8 array, or of an object that shows its memory.
pub(crate) fn bytes(object: &Bound<'_, PyAny>, argument: &str) -> Outcome<Vec<u8>> {
    let refused = || Failure::request(argument, "is no one-dimensional uint8 array, nor bytes");
    if let Ok(array) = object.cast::<PyUntypedArray>() {
        let array = array.cast::<PyArray1<u8>>().map_err(|_| refused())?;
        return Ok(array.readonly().as_array().to_vec());
    }
    if object.is_instance_of::<PyString>() {
        return Err(refused());
    }
    let numpy = object.py().import("numpy")?;
    let array = numpy.call_method1("frombuffer", (object, "uint8")).map_err(|_| refused())?;
    Ok(array.cast::<PyArray1<u8>>().map_err(|_| refused())?.readonly().as_array().to_vec())
}

/// A uint8 array into which a plan can be written: one-dimensional, contiguous, writable, and aligned for int64.
pub(crate) fn writable_bytes<'py>(object: &Bound<'py, PyAny>, argument: &str) -> Outcome<Bound<'py, PyArray1<u8>>> {
    let array = object.cast::<PyArray1<u8>>().ok().filter(|array| array.is_c_contiguous());
    let array = array.filter(|array| array.data().align_offset(align_of::<u64>()) == 0);
    match array {
        Some(array) if array.try_readwrite().is_ok() => Ok(array.clone()),
        _ => Err(Failure::request(argument, "is no writable, contiguous, 8-byte aligned uint8 array of one dimension")),
    }
}

/// Where an array's memory lies: first byte, length.
pub(crate) fn memory(array: &Bound<'_, PyArray1<u8>>) -> (usize, usize) {
    (array.data().addr(), array.dims()[0])
}

/// Writes `bytes` to the front of an array that was found writable; false, with nothing written, where it is too short. What
/// the array's own class says about its length is not asked.
pub(crate) fn write_front(array: &Bound<'_, PyArray1<u8>>, bytes: &[u8]) -> bool {
    let Ok(mut array) = array.try_readwrite() else { return false };
    match array.as_slice_mut().ok().and_then(|all| all.get_mut(..bytes.len())) {
        Some(front) => front.copy_from_slice(bytes),
        None => return false,
    }
    true
}

/// An int32 matrix that can be written: contiguous and writable.
pub(crate) fn writable_matrix<'py>(object: &Bound<'py, PyAny>, argument: &str) -> Outcome<Bound<'py, PyArray2<i32>>> {
    match object.cast::<PyArray2<i32>>() {
        Ok(array) if array.is_c_contiguous() && array.try_readwrite().is_ok() => Ok(array.clone()),
        _ => Err(Failure::request(argument, "is no writable, contiguous int32 array of two dimensions")),
    }
}

/// Many prompts: a list or tuple whose items are token ids, refused by the index of the first that is not.
pub(crate) fn prompts<'py>(object: &Bound<'py, PyAny>) -> Outcome<Vec<Tokens<'py>>> {
    if !object.is_instance_of::<PyList>() && !object.is_instance_of::<PyTuple>() {
        return Err(Failure::request("prompts", "is no list or tuple of token ids"));
    }
    let read = |(i, item): (usize, PyResult<Bound<'py, PyAny>>)| tokens(&item?, &format!("prompts[{i}]"));
    object.try_iter()?.enumerate().map(read).collect()
}

/// Reads integers of 64 bits from the same kinds of objects.
pub(crate) fn integers(object: &Bound<'_, PyAny>, argument: &str) -> Outcome<Vec<i64>> {
    if let Ok(array) = object.cast::<PyUntypedArray>() {
        if is_masked(array.as_any())? {
            return Err(Failure::request(argument, "is a masked array: what the mask hides is no value"));
        }
        return from_array(array, argument);
    }
    if let Ok(range) = object.cast::<PyRange>() {
        return from_range(range, argument);
    }
    if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
        return from_items(object, argument);
    }
    let text = object.is_instance_of::<PyString>() || object.is_instance_of::<PyBytes>();
    if text || object.is_instance_of::<PyByteArray>() || object.is_none() {
        return Err(not_integers(object, argument));
    }
    let numpy = object.py().import("numpy")?;
    // What is no array is refused as an argument; no memory, or an interrupt, is none of the argument's faults.
    let array = numpy.call_method1("asarray", (object,)).map_err(|error| {
        let py = object.py();
        let is_ordinary = error.is_instance_of::<PyException>(py) && !error.is_instance_of::<PyMemoryError>(py);
        if is_ordinary { not_integers(object, argument) } else { Failure::from(error) }
    })?;
    from_array(array.cast::<PyUntypedArray>().map_err(|_| not_integers(object, argument))?, argument)
}

/// Whether an array carries a mask, as `numpy.ma` has them; a plain array answers at once.
fn is_masked(array: &Bound<'_, PyAny>) -> PyResult<bool> {
    if array.get_type().is(PyUntypedArray::type_object(array.py())) {
        return Ok(false);
    }
    array.hasattr(intern!(array.py(), "mask"))
}

/// One time or other real number; one that no float holds is a `RequestError`.
pub(crate) fn real(object: &Bound<'_, PyAny>, argument: &str) -> Outcome<f64> {
    object.extract::<f64>().map_err(|error| {
        let wide = error.is_instance_of::<PyOverflowError>(object.py());
        if wide { Failure::request(argument, "is beyond every float") } else { error.into() }
    })
}

/// One integer of 64 bits; what has no index is a `TypeError`, what is wider a `RequestError`.
pub(crate) fn integer(object: &Bound<'_, PyAny>, argument: &str) -> Outcome<i64> {
    object.extract::<i64>().map_err(|error| {
        let wide = error.is_instance_of::<PyOverflowError>(object.py());
        if wide { Failure::request(argument, "does not fit in 64 bits") } else { error.into() }
    })
}

/// One count: an integer that is not negative.
pub(crate) fn count(object: &Bound<'_, PyAny>, argument: &str) -> Outcome<usize> {
    non_negative(integer(object, argument)?, argument)
}

/// Counts: integers that are not negative.
pub(crate) fn counts(object: &Bound<'_, PyAny>, argument: &str) -> Outcome<Vec<usize>> {
    let wide = integers(object, argument)?;
    wide.iter().map(|&value| non_negative(value, argument)).collect()
}

pub(crate) fn non_negative(value: i64, argument: &str) -> Outcome<usize> {
    usize::try_from(value).map_err(|_| Failure::Request {
        argument: argument.to_owned(),
        message: format!("{value} is negative"),
        limit: Some(0.0),
        excess: None,
    })
}

fn not_integers(object: &Bound<'_, PyAny>, argument: &str) -> Failure {
    let name = object.get_type().name().map_or_else(|_| "object".to_owned(), |name| name.to_string());
    Failure::request(argument, format!("a {name} is no one-dimensional array of integers"))
}

fn from_array(array: &Bound<'_, PyUntypedArray>, argument: &str) -> Outcome<Vec<i64>> {
    let dtype = array.dtype();
    if !matches!(dtype.kind(), b'i' | b'u') {
        return Err(Failure::request(argument, format!("has dtype {dtype}, not integers")));
    }
    if array.ndim() != 1 {
        return Err(Failure::request(argument, format!("has {} dimensions, not one", array.ndim())));
    }
    // Wider than int64 are only uint64 values beyond it: they turn negative, and are told apart by that.
    let unsigned = dtype.kind() == b'u' && dtype.itemsize() == 8;
    let wide = array.call_method1("astype", ("int64",))?.cast_into::<PyArray1<i64>>().map_err(PyErr::from)?;
    let values = wide.readonly().as_array().to_vec();
    match values.iter().position(|&value| unsigned && value < 0) {
        Some(i) => Err(Failure::request(argument, format!("item {i} is beyond int64"))),
        None => Ok(values),
    }
}

fn from_range(range: &Bound<'_, PyRange>, argument: &str) -> Outcome<Vec<i64>> {
    let wide = |_| Failure::request(argument, "is a range beyond 64 bits");
    let length = range.len().map_err(wide)?;
    if length > i32::MAX as usize {
        return Err(Failure::request(argument, format!("has {length} items, 2147483647 at most")));
    }
    let (first, step) = (range.start().map_err(wide)? as i64, range.step().map_err(wide)? as i64);
    // Every item lies between the range's ends, which fit.
    let next = |&value: &i64| value.checked_add(step);
    Ok(std::iter::successors(Some(first), next).take(length).collect())
}

fn from_items(items: &Bound<'_, PyAny>, argument: &str) -> Outcome<Vec<i64>> {
    // Not as many as `len` says: a subclass may say anything.
    let mut values = Vec::new();
    for (i, item) in items.try_iter()?.enumerate() {
        let item = item?;
        let value = if item.is_instance_of::<PyBool>() { None } else { item.extract::<i64>().ok() };
        let Some(value) = value else {
            let shown = item.repr().map_or_else(|_| "an object".to_owned(), |text| text.to_string());
            return Err(Failure::request(argument, format!("item {i} is {shown}, no integer of 64 bits")));
        };
        values.push(value);
    }
    Ok(values)
}

/// A read-only view over memory that `owner` keeps.
///
/// # Safety
///
/// `values` is aligned for `T`, stays allocated at its address while `owner` lives, and holds as many as `shape` says.
#[allow(unsafe_code, reason = "a view over foreign memory can only be made by hand")]
pub(crate) unsafe fn view<'py, T: Element>(
    owner: &Bound<'py, PyAny>,
    values: *const u8,
    shape: &[usize],
) -> PyResult<Bound<'py, PyAny>> {
    let py = owner.py();
    // NumPy reads at most two of them.
    let mut dims = [0_isize; 2];
    for (dim, &length) in dims.iter_mut().zip(shape) {
        *dim = length.cast_signed();
    }
    let rank = c_int::try_from(shape.len().min(2))?;
    // SAFETY: the descriptor's reference is given away, as the call takes it; `dims` outlives the call; the caller
    // vouches for the memory; without WRITEABLE nobody writes through the view. Setting the base takes over the
    // owner's reference, also when it fails.
    unsafe {
        let array = PY_ARRAY_API.PyArray_NewFromDescr(
            py,
            npyffi::get_type_object(py, NpyTypes::PyArray_Type),
            T::get_dtype(py).into_dtype_ptr(),
            rank,
            dims.as_mut_ptr(),
            std::ptr::null_mut(),
            values.cast_mut().cast(),
            npyffi::NPY_ARRAY_CARRAY_RO,
            std::ptr::null_mut(),
        );
        let view = Bound::from_owned_ptr_or_err(py, array)?;
        if PY_ARRAY_API.PyArray_SetBaseObject(py, array.cast(), owner.clone().into_ptr()) < 0 {
            return Err(PyErr::fetch(py));
        }
        Ok(view)
    }
}
