//! `octavo.StepPlan`: one buffer, and read-only views of its sections that keep it alive.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use numpy::{PyArray1, PyArrayMethods};
use octavo_core::{Csr, Dtype, Section, StepPlan};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::arrays;
use crate::errors::{Failure, Outcome};
use crate::scheduler::PyScheduler;

/// What becomes of a plan; shared by it and its scheduler.
#[derive(Debug, Default)]
pub(crate) struct Fate {
    state: AtomicU8,
    /// Where the plan lies in memory of the caller's: first byte, length.
    memory: Option<(usize, usize)>,
}

const COMMITTED: u8 = 1;
const VOID: u8 = 2;

impl Fate {
    pub(crate) fn new(memory: Option<(usize, usize)>) -> Self {
        Self { memory, ..Self::default() }
    }

    /// Whether the plan lies in some of this memory.
    pub(crate) fn overlaps(&self, (first, len): (usize, usize)) -> bool {
        self.memory.is_some_and(|(own, own_len)| first < own + own_len && own < first + len)
    }

    pub(crate) fn commit(&self) {
        self.state.store(COMMITTED, Ordering::Release);
    }

    pub(crate) fn cancel(&self) {
        self.state.store(VOID, Ordering::Release);
    }

    fn is(&self, fate: u8) -> bool {
        self.state.load(Ordering::Acquire) == fate
    }
}

/// Where a plan comes from.
struct Origin {
    scheduler: Py<PyScheduler>,
    /// The version of the block tables that it left.
    tables: u64,
}

/// What a step runs: flat arrays, all in one buffer. A committed or cancelled plan gives no more of them; those already
/// asked for stay as they are.
#[pyclass(frozen, name = "StepPlan", module = "octavo._core")]
pub(crate) struct PyStepPlan {
    plan: Arc<StepPlan>,
    /// The caller's memory, where the buffer was put there.
    out: Option<Py<PyArray1<u8>>>,
    /// `None` for one that was read from a buffer.
    origin: Option<Origin>,
    fate: Arc<Fate>,
}

impl PyStepPlan {
    pub(crate) fn new(
        plan: Arc<StepPlan>,
        out: Option<Py<PyArray1<u8>>>,
        scheduler: Py<PyScheduler>,
        tables: u64,
        fate: Arc<Fate>,
    ) -> Self {
        Self { plan, out, origin: Some(Origin { scheduler, tables }), fate }
    }

    /// Refuses a plan of another scheduler, and one that is out no more.
    pub(crate) fn check_out(&self, scheduler: &Bound<'_, PyScheduler>) -> Outcome<u64> {
        if !self.origin()?.scheduler.is(scheduler) {
            return Err(Failure::State("the plan is another scheduler's"));
        }
        self.check_fate()?;
        Ok(self.plan.number())
    }

    fn origin(&self) -> Outcome<&Origin> {
        self.origin.as_ref().ok_or(Failure::State("the plan was read from a buffer: its scheduler is elsewhere"))
    }

    /// The tables of the plan's rows for the lengths after it, compressed. Built when asked for, O(blocks).
    fn csr(&self, py: Python<'_>) -> Outcome<Csr> {
        self.check_fate()?;
        let origin = self.origin()?;
        let state = origin.scheduler.get().lock(py)?;
        let scheduler = state.scheduler();
        if scheduler.table_version() != origin.tables {
            return Err(Failure::State("the block tables are a later step's: ask for kv_* before the next step"));
        }
        let (tables, width) = (scheduler.block_tables(0).unwrap_or_default(), scheduler.table_width());
        let mut csr = Csr { indptr: vec![0], ..Csr::default() };
        for (&row, &len) in self.plan.rows().iter().zip(self.plan.seq_lens()) {
            let (row, len) = (row.cast_unsigned() as usize, len.cast_unsigned() as usize);
            let blocks = len.div_ceil(scheduler.block_size());
            csr.indices.extend_from_slice(&tables[row * width..][..blocks]);
            csr.indptr.push(small(csr.indices.len()));
            csr.last_page_len.push(small(len - blocks.saturating_sub(1) * scheduler.block_size()));
        }
        Ok(csr)
    }

    fn check_fate(&self) -> Outcome<()> {
        if self.fate.is(COMMITTED) {
            return Err(Failure::State("the plan was committed"));
        }
        if self.fate.is(VOID) {
            return Err(Failure::State("the plan was cancelled"));
        }
        Ok(())
    }

    /// Where the buffer lies.
    fn data(&self, py: Python<'_>) -> *const u8 {
        let own = self.plan.bytes().as_ptr();
        self.out.as_ref().map_or(own, |out| out.bind(py).data().cast_const())
    }
}

/// A number that `int32` block tables bound.
fn small(value: usize) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

/// A read-only view of the section called `name`.
#[allow(unsafe_code, reason = "a view over the plan's buffer")]
fn section<'py>(slf: &Bound<'py, PyStepPlan>, name: &str) -> Outcome<Bound<'py, PyAny>> {
    let this = slf.get();
    this.check_fate()?;
    let Some(section) = this.plan.section(name) else {
        return Err(Failure::State("the plan has no such array"));
    };
    let shape = [section.len, section.width.unwrap_or(1)];
    let shape = if section.width.is_some() { &shape[..] } else { &shape[..1] };
    // An empty section may lie behind the buffer's end.
    let offset = section.offset.min(this.plan.bytes().len());
    // SAFETY: the section lies in the buffer, aligned for its type, as the core lays it out. The buffer belongs to the
    // plan that `slf` shares, and is written only while nobody shares it (`Arc::get_mut`); or it is the caller's array,
    // which was checked to be aligned and long enough, and which `slf` keeps alive.
    let view = unsafe {
        let data = this.data(slf.py()).add(offset);
        match section.dtype {
            Dtype::I32 => arrays::view::<i32>(slf.as_any(), data, shape),
            Dtype::I64 => arrays::view::<i64>(slf.as_any(), data, shape),
        }
    };
    Ok(view?)
}

macro_rules! plan_methods {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        #[pymethods]
        impl PyStepPlan {
            $(
                $(#[$doc])*
                #[getter]
                fn $name<'py>(slf: &Bound<'py, Self>) -> Outcome<Bound<'py, PyAny>> {
                    section(slf, stringify!($name))
                }
            )+

            /// Counts the plans of this scheduler from 0.
            #[getter]
            fn number(&self) -> u64 {
                self.plan.number()
            }

            /// How many of the first rows are decodes.
            #[getter]
            fn num_decodes(&self) -> usize {
                self.plan.num_decodes()
            }

            /// Rows of finished members of a static batch that a pass with decodes computes all the same.
            #[getter]
            fn num_padded(&self) -> usize {
                self.plan.num_padded()
            }

            /// uint8: all arrays as they lie, for one copy to a device or one message to the ranks.
            #[getter]
            #[allow(unsafe_code, reason = "a view over the plan's buffer")]
            fn buffer<'py>(slf: &Bound<'py, Self>) -> Outcome<Bound<'py, PyAny>> {
                slf.get().check_fate()?;
                let len = slf.get().plan.bytes().len();
                // SAFETY: as in `section`.
                Ok(unsafe { arrays::view::<u8>(slf.as_any(), slf.get().data(slf.py()), &[len]) }?)
            }

            /// Whether `buffer` lies in the memory that was given to `step` as `out`.
            #[getter]
            fn in_out(&self) -> bool {
                self.out.is_some()
            }

            /// Reads a plan that another process sent: `buffer` is its `buffer`, as a uint8 array or bytes.
            ///
            /// It has the same arrays, but no scheduler: it cannot be committed and knows no `kv_*`.
            #[staticmethod]
            fn from_buffer(buffer: &Bound<'_, PyAny>) -> Outcome<Self> {
                let plan = StepPlan::from_bytes(&arrays::bytes(buffer, "buffer")?).map_err(octavo_core::Error::from)?;
                Ok(Self { plan: Arc::new(plan), out: None, origin: None, fate: Arc::default() })
            }

            /// int32[N+1]: where each row's blocks begin in `kv_indices`.
            #[getter]
            fn kv_indptr<'py>(&self, py: Python<'py>) -> Outcome<Bound<'py, PyArray1<i32>>> {
                Ok(PyArray1::from_vec(py, self.csr(py)?.indptr))
            }

            /// int32: the blocks that hold each row's tokens after this step.
            #[getter]
            fn kv_indices<'py>(&self, py: Python<'py>) -> Outcome<Bound<'py, PyArray1<i32>>> {
                Ok(PyArray1::from_vec(py, self.csr(py)?.indices))
            }

            /// int32[N]: tokens in each row's last block.
            #[getter]
            fn kv_last_page_len<'py>(&self, py: Python<'py>) -> Outcome<Bound<'py, PyArray1<i32>>> {
                Ok(PyArray1::from_vec(py, self.csr(py)?.last_page_len))
            }

            /// Where each array lies in `buffer`: dtype, offset in bytes and shape, by name.
            #[getter]
            fn layout<'py>(&self, py: Python<'py>) -> Outcome<Bound<'py, PyDict>> {
                self.check_fate()?;
                let layout = PyDict::new(py);
                for Section { name, dtype, offset, len, width } in self.plan.layout() {
                    let dtype = match dtype {
                        Dtype::I32 => "int32",
                        Dtype::I64 => "int64",
                    };
                    let shape = PyTuple::new(py, std::iter::once(*len).chain(*width).collect::<Vec<_>>())?;
                    layout.set_item(name, (dtype, offset, shape))?;
                }
                Ok(layout)
            }

            fn __repr__(&self) -> String {
                let state = match (self.fate.is(COMMITTED), self.fate.is(VOID)) {
                    (true, _) => ", committed",
                    (_, true) => ", cancelled",
                    _ => "",
                };
                format!("StepPlan(number={}, num_decodes={}{state})", self.plan.number(), self.plan.num_decodes())
            }
        }
    };
}

plan_methods! {
    /// int64[·]: what `from_buffer` needs to find the rest.
    header,
    /// int64[N]: who runs, decodes first.
    seqs,
    /// int32[N]: the stable row of each.
    rows,
    /// int32[N]: tokens to compute for each.
    num_tokens,
    /// int32[N+1]: where each one's tokens begin.
    query_start,
    /// int32[T]: the tokens to compute.
    token_ids,
    /// int32[T]: their positions.
    positions,
    /// int64[T]: where each token's KV goes.
    slot_mapping,
    /// int32[U, 3]: tokens not yet known: index in T, plan number, index in that plan's `sample`.
    token_source,
    /// int32[N]: context length after this step.
    seq_lens,
    /// int32[S]: which of the T tokens a token is sampled behind.
    sample,
    /// int64[P]: who samples.
    sample_seqs,
    /// int32[P+1]: where each one's indices begin in `sample`.
    sample_indptr,
    /// int32[C, 4]: changes of the block tables: group, row, index, block.
    table_changes,
    /// int32[·, 3]: copies before the forward pass: source, target, number of tokens.
    copies,
    /// int32[·]: blocks to be filled with zeros before it.
    zero,
    /// int64[·]: who was admitted for the first time.
    admitted,
    /// int64[·]: who was admitted again.
    resumed,
    /// int64[·]: who lost row and blocks.
    preempted,
    /// int64[·]: whose end took effect.
    ended,
}
