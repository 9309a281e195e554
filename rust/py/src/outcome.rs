//! `octavo.Outcome`: what a commit accepted, and who ended.

use std::sync::atomic::{AtomicUsize, Ordering};

use numpy::PyArray1;
use pyo3::prelude::*;

use crate::arrays;

/// What a commit accepted, and who ended since the outcome before. Iterating gives `(seq, tokens)`.
#[pyclass(frozen, name = "Outcome", module = "octavo._core")]
pub(crate) struct PyOutcome {
    outcome: octavo_core::Outcome,
}

impl PyOutcome {
    pub(crate) fn new(outcome: octavo_core::Outcome) -> Self {
        Self { outcome }
    }

    fn tokens_of(&self, i: usize) -> Option<(i64, Vec<i32>)> {
        let seq = self.outcome.seqs.get(i)?;
        let bound = |i: usize| self.outcome.indptr.get(i).and_then(|&at| usize::try_from(at).ok());
        let tokens = self.outcome.tokens.get(bound(i)?..bound(i + 1)?)?;
        Some((seq.raw(), tokens.to_vec()))
    }
}

#[pymethods]
#[allow(unsafe_code, reason = "views over the vectors, which a frozen object never changes")]
impl PyOutcome {
    /// int64[M]: whose tokens were accepted, in plan order.
    #[getter]
    fn seqs<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        PyArray1::from_vec(py, self.outcome.seqs.iter().map(|seq| seq.raw()).collect())
    }

    /// int32[M+1]: where each one's tokens begin.
    #[getter]
    fn indptr<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let indptr = &slf.get().outcome.indptr;
        // SAFETY: the vector belongs to `slf`, which is frozen and which the view keeps alive.
        unsafe { arrays::view::<i32>(slf.as_any(), indptr.as_ptr().cast(), &[indptr.len()]) }
    }

    /// int32: the accepted tokens, one sequence after the other.
    #[getter]
    fn tokens<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let tokens = &slf.get().outcome.tokens;
        // SAFETY: the vector belongs to `slf`, which is frozen and which the view keeps alive.
        unsafe { arrays::view::<i32>(slf.as_any(), tokens.as_ptr().cast(), &[tokens.len()]) }
    }

    /// int64[F]: who ended, in the order in which they did.
    #[getter]
    fn finished<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        PyArray1::from_vec(py, self.outcome.finished.iter().map(|seq| seq.raw()).collect())
    }

    /// uint8[F]: why, as `octavo.Reason`.
    #[getter]
    fn reasons<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u8>> {
        PyArray1::from_vec(py, self.outcome.reasons.iter().map(|&reason| reason as u8).collect())
    }

    fn __len__(&self) -> usize {
        self.outcome.seqs.len()
    }

    fn __iter__(slf: Bound<'_, Self>) -> OutcomeIterator {
        OutcomeIterator { outcome: slf.unbind(), next: AtomicUsize::new(0) }
    }

    fn __repr__(&self) -> String {
        let Self { outcome } = self;
        format!(
            "Outcome(seqs={}, tokens={}, finished={})",
            outcome.seqs.len(),
            outcome.tokens.len(),
            outcome.finished.len()
        )
    }
}

/// Goes through an `Outcome` once.
#[pyclass(frozen, module = "octavo._core")]
pub(crate) struct OutcomeIterator {
    outcome: Py<PyOutcome>,
    next: AtomicUsize,
}

#[pymethods]
impl OutcomeIterator {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self) -> Option<(i64, Vec<i32>)> {
        self.outcome.get().tokens_of(self.next.fetch_add(1, Ordering::Relaxed))
    }
}
