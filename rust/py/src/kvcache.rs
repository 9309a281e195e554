//! `octavo.KVCache`: the allocator alone.

use std::sync::{Mutex, MutexGuard};

use numpy::{PyArray1, PyArray2, PyArrayMethods};
use octavo_core::{BlockId, KvCache, Room, SequenceId};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::PyDict;

use crate::arrays::Given;
use crate::config::Options;
use crate::errors::{Failure, Outcome};
use crate::identity::identity;
use crate::stats::CacheStats;
use crate::{arrays, handles};

type Csr<'py> = (Bound<'py, PyArray1<i32>>, Bound<'py, PyArray1<i32>>, Bound<'py, PyArray1<i32>>);

/// Gives out KV memory in blocks, shared by reference and copied on write, and keeps computed prefixes.
///
/// It stores computed tokens only: `open` adopts what is cached, `reserve` makes room, `advance` tells what was
/// computed. A call that raises changed nothing. Handles are plain ints, and mean something only to the object that gave
/// them out: another object takes them for its own, or for unknown ones.
#[pyclass(frozen, name = "KVCache", module = "octavo._core")]
pub(crate) struct PyKvCache {
    cache: Mutex<KvCache>,
}

impl PyKvCache {
    /// Arguments are read before: reading one may run Python, which may call this very object.
    fn lock<'a>(&'a self, py: Python<'_>) -> Outcome<MutexGuard<'a, KvCache>> {
        Ok(self.cache.lock_py_attached(py)?)
    }

    /// The cache, with `seq` alive and `arguments` read: of two errors, the handle's comes first.
    fn checked<'a, T>(
        &'a self,
        py: Python<'_>,
        seqs: &[SequenceId],
        arguments: Outcome<T>,
    ) -> Outcome<(MutexGuard<'a, KvCache>, T)> {
        let cache = self.lock(py)?;
        if arguments.is_err() {
            for &seq in seqs {
                cache.num_computed(seq)?;
            }
        }
        Ok((cache, arguments?))
    }
}

fn granted(room: Room) -> Outcome<()> {
    match room {
        Room::Granted => Ok(()),
        Room::Short { needed, available } => Err(Failure::OutOfBlocks { needed, available }),
    }
}

#[pymethods]
impl PyKvCache {
    #[new]
    #[pyo3(
        signature = (num_blocks, block_size=Given(None), **options),
        text_signature = "(num_blocks, block_size=16, *, groups=..., prefix_caching=True, partial_hits=False, \
                          dedupe=True, reserve_null_block=False, eviction='lru', hash_seed=0, host_blocks=0, \
                          disk_blocks=0, events=False)"
    )]
    fn new(num_blocks: &Bound<'_, PyAny>, block_size: Given<'_>, options: Option<&Bound<'_, PyDict>>) -> Outcome<Self> {
        let options = Options::of_cache(num_blocks, &block_size, options)?;
        let cache = KvCache::new(&options.cache()?).map_err(|error| options.refusal(error))?;
        Ok(Self { cache: Mutex::new(cache) })
    }

    /// Token slots in a block.
    #[getter]
    fn block_size(&self, py: Python<'_>) -> Outcome<usize> {
        Ok(self.lock(py)?.block_size())
    }

    /// Opens a sequence that starts with the longest cached prefix of `tokens`, at least one token short of them.
    #[pyo3(
        signature = (tokens=Given(None), *, salt=Given(None), extra_keys=Given(None)),
        text_signature = "($self, tokens=(), *, salt=b'', extra_keys=())"
    )]
    fn open(&self, py: Python<'_>, tokens: Given<'_>, salt: Given<'_>, extra_keys: Given<'_>) -> Outcome<i64> {
        let tokens = tokens.read(arrays::Tokens::default(), |tokens| arrays::tokens(tokens, "tokens"))?;
        let identity = identity(&salt, &extra_keys)?;
        Ok(self.lock(py)?.open(&tokens, &identity)?.raw())
    }

    /// How many tokens of `seq` are computed.
    fn num_computed(&self, seq: &Bound<'_, PyAny>) -> Outcome<usize> {
        let id = handles::sequence(seq)?;
        Ok(self.lock(seq.py())?.num_computed(id)?)
    }

    /// Makes room for `num_tokens` in all; a shared or published tail is copied first.
    fn reserve(&self, seq: &Bound<'_, PyAny>, num_tokens: &Bound<'_, PyAny>) -> Outcome<()> {
        let id = handles::sequence(seq)?;
        let (mut cache, num_tokens) = self.checked(seq.py(), &[id], arrays::count(num_tokens, "num_tokens"))?;
        granted(cache.reserve(id, num_tokens)?)
    }

    /// Whether `reserve` would succeed.
    fn can_reserve(&self, seq: &Bound<'_, PyAny>, num_tokens: &Bound<'_, PyAny>) -> Outcome<bool> {
        let id = handles::sequence(seq)?;
        let (cache, num_tokens) = self.checked(seq.py(), &[id], arrays::count(num_tokens, "num_tokens"))?;
        Ok(cache.can_reserve(id, num_tokens)?)
    }

    /// These tokens of `seq` were computed and accepted: full blocks are published, equal ones merged.
    fn advance(&self, seq: &Bound<'_, PyAny>, tokens: &Bound<'_, PyAny>) -> Outcome<()> {
        let id = handles::sequence(seq)?;
        let (mut cache, tokens) = self.checked(seq.py(), &[id], arrays::tokens(tokens, "tokens"))?;
        Ok(cache.advance(id, &tokens)?)
    }

    /// Rolls `seq` back to `num_tokens` computed tokens and frees what is unused.
    fn truncate(&self, seq: &Bound<'_, PyAny>, num_tokens: &Bound<'_, PyAny>) -> Outcome<()> {
        let id = handles::sequence(seq)?;
        let (mut cache, num_tokens) = self.checked(seq.py(), &[id], arrays::count(num_tokens, "num_tokens"))?;
        Ok(cache.truncate(id, num_tokens)?)
    }

    /// A sequence that shares the computed blocks of `seq`; both must `reserve` before they `advance`.
    fn fork(&self, seq: &Bound<'_, PyAny>) -> Outcome<i64> {
        let id = handles::sequence(seq)?;
        Ok(self.lock(seq.py())?.fork(id)?.raw())
    }

    /// Releases `seq`, tail first.
    fn close(&self, seq: &Bound<'_, PyAny>) -> Outcome<()> {
        let id = handles::sequence(seq)?;
        Ok(self.lock(seq.py())?.close(id)?)
    }

    /// How many tokens a sequence opened with `tokens` would have computed; changes nothing.
    #[pyo3(
        name = "match",
        signature = (tokens, *, salt=Given(None), extra_keys=Given(None)),
        text_signature = "($self, tokens, *, salt=b'', extra_keys=())"
    )]
    fn match_prefix(&self, tokens: &Bound<'_, PyAny>, salt: Given<'_>, extra_keys: Given<'_>) -> Outcome<usize> {
        let py = tokens.py();
        let tokens = arrays::tokens(tokens, "tokens")?;
        let identity = identity(&salt, &extra_keys)?;
        Ok(self.lock(py)?.match_prefix(&tokens, &identity)?)
    }

    /// Opens a sequence for each of `prompts`, all under one identity. Returns their handles, int64[n].
    ///
    /// As `open` called for one after the other, in one call; a prompt that is refused leaves none of them open.
    ///
    /// Args:
    ///     prompts: A list or tuple of token ids.
    ///     salt: As for `open`, for all of them.
    ///     `extra_keys`: As for `open`, for all of them.
    #[pyo3(
        signature = (prompts, *, salt=Given(None), extra_keys=Given(None)),
        text_signature = "($self, prompts, *, salt=b'', extra_keys=())"
    )]
    fn open_many<'py>(
        &self,
        prompts: &Bound<'py, PyAny>,
        salt: Given<'_>,
        extra_keys: Given<'_>,
    ) -> Outcome<Bound<'py, PyArray1<i64>>> {
        let py = prompts.py();
        let prompts = arrays::prompts(prompts)?;
        let identity = identity(&salt, &extra_keys)?;
        let slices: Vec<&[i32]> = prompts.iter().map(|tokens| &**tokens).collect();
        let opened = self.lock(py)?.open_many(&slices, &identity)?;
        Ok(PyArray1::from_vec(py, opened.iter().map(|seq| seq.raw()).collect()))
    }

    /// How many tokens of each of `prompts` are cached, int64[n]; changes nothing.
    #[pyo3(
        signature = (prompts, *, salt=Given(None), extra_keys=Given(None)),
        text_signature = "($self, prompts, *, salt=b'', extra_keys=())"
    )]
    fn match_many<'py>(
        &self,
        prompts: &Bound<'py, PyAny>,
        salt: Given<'_>,
        extra_keys: Given<'_>,
    ) -> Outcome<Bound<'py, PyArray1<i64>>> {
        let py = prompts.py();
        let prompts = arrays::prompts(prompts)?;
        let identity = identity(&salt, &extra_keys)?;
        let slices: Vec<&[i32]> = prompts.iter().map(|tokens| &**tokens).collect();
        let hits = self.lock(py)?.match_many(&slices, &identity)?;
        Ok(PyArray1::from_vec(py, hits.iter().map(|&hit| hit.cast_signed() as i64).collect()))
    }

    /// Makes room in each of `seqs`, for as many tokens in all as `num_tokens` says: in all of them or in none.
    ///
    /// Raises:
    ///     `OutOfBlocks`: `needed` is what all of them need, `available` what there was before the first.
    fn reserve_many(&self, seqs: &Bound<'_, PyAny>, num_tokens: &Bound<'_, PyAny>) -> Outcome<()> {
        let py = seqs.py();
        let seqs = handles::sequences(seqs)?;
        let (mut cache, num_tokens) = self.checked(py, &seqs, arrays::counts(num_tokens, "num_tokens"))?;
        granted(cache.reserve_many(&seqs, &num_tokens)?)
    }

    /// These tokens were computed and accepted: `counts[i]` of them, in order, are those of `seqs[i]`. All or nothing.
    fn advance_many(
        &self,
        seqs: &Bound<'_, PyAny>,
        tokens: &Bound<'_, PyAny>,
        counts: &Bound<'_, PyAny>,
    ) -> Outcome<()> {
        let py = seqs.py();
        let seqs = handles::sequences(seqs)?;
        let numbers = arrays::tokens(tokens, "tokens").and_then(|all| Ok((all, arrays::counts(counts, "counts")?)));
        let (mut cache, (tokens, counts)) = self.checked(py, &seqs, numbers)?;
        Ok(cache.advance_many(&seqs, &tokens, &counts)?)
    }

    /// Releases `seqs` in their order, each tail first: all of them or none.
    fn close_many(&self, seqs: &Bound<'_, PyAny>) -> Outcome<()> {
        let py = seqs.py();
        let seqs = handles::sequences(seqs)?;
        Ok(self.lock(py)?.close_many(&seqs)?)
    }

    /// Holds every full cached block of the prefix that `tokens` and it have in common, and returns a pin.
    ///
    /// With nothing cached it is an empty pin. Looked-up counters do not count it.
    ///
    /// Args:
    ///     tokens: Token ids.
    ///     salt: As for `open`.
    ///     `extra_keys`: As for `open`.
    ///     expires: `k` releases the pin with the k-th `begin_step` from now, and its handle is stale then; None keeps
    ///         it until `unpin`.
    #[pyo3(
        signature = (tokens, *, salt=Given(None), extra_keys=Given(None), expires=None),
        text_signature = "($self, tokens, *, salt=b'', extra_keys=(), expires=None)"
    )]
    fn pin(
        &self,
        tokens: &Bound<'_, PyAny>,
        salt: Given<'_>,
        extra_keys: Given<'_>,
        expires: Option<Bound<'_, PyAny>>,
    ) -> Outcome<i64> {
        let py = tokens.py();
        let tokens = arrays::tokens(tokens, "tokens")?;
        let identity = identity(&salt, &extra_keys)?;
        let expires = expires.map(|steps| arrays::count(&steps, "expires")).transpose()?;
        Ok(self.lock(py)?.pin(&tokens, &identity, expires.map(|steps| steps as u64))?.raw())
    }

    /// Lets the blocks of `pin` go, tail first; one that has expired is stale.
    fn unpin(&self, pin: &Bound<'_, PyAny>) -> Outcome<()> {
        let id = handles::pin(pin)?;
        Ok(self.lock(pin.py())?.unpin(id)?)
    }

    /// The block ids of `seq` in order, int32.
    fn table<'py>(&self, seq: &Bound<'py, PyAny>) -> Outcome<Bound<'py, PyArray1<i32>>> {
        let id = handles::sequence(seq)?;
        let cache = self.lock(seq.py())?;
        let blocks: Vec<i32> = cache.table(id)?.iter().map(|block| block.get()).collect();
        drop(cache);
        Ok(PyArray1::from_vec(seq.py(), blocks))
    }

    /// The block ids of `seqs`, int32[n, longest], unused entries 0.
    ///
    /// Args:
    ///     seqs: Their handles.
    ///     out: A writable, C-contiguous int32 array of at least n rows and as many columns as the longest table; it is
    ///         filled, 0 wherever there is no entry, and returned.
    #[pyo3(signature = (seqs, out=None))]
    fn tables<'py>(
        &self,
        seqs: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> Outcome<Bound<'py, PyArray2<i32>>> {
        let py = seqs.py();
        let seqs = handles::sequences(seqs)?;
        let (cache, out) = self.checked(py, &seqs, out.map(|out| arrays::writable_matrix(out, "out")).transpose())?;
        let tables = seqs.iter().map(|&seq| cache.table(seq)).collect::<Result<Vec<_>, _>>()?;
        let width = tables.iter().map(|table| table.len()).max().unwrap_or(0);
        if let Some(out) = out {
            fill(&out, &tables, width)?;
            return Ok(out);
        }
        let mut flat = Vec::new();
        let size = tables.len().saturating_mul(width);
        if flat.try_reserve_exact(size).is_err() {
            return Err(Failure::request("seqs", "more output than fits into memory"));
        }
        flat.resize(size, 0);
        for (row, table) in tables.iter().enumerate() {
            for (entry, block) in flat[row * width..].iter_mut().zip(*table) {
                *entry = block.get();
            }
        }
        drop(cache);
        Ok(PyArray1::from_vec(py, flat).reshape([seqs.len(), width])?)
    }

    /// The tables of `seqs` for `lens` tokens each, compressed: indptr, indices and `last_page_len`, int32.
    fn csr<'py>(&self, seqs: &Bound<'py, PyAny>, lens: &Bound<'py, PyAny>) -> Outcome<Csr<'py>> {
        let py = seqs.py();
        let seqs = handles::sequences(seqs)?;
        let (cache, lens) = self.checked(py, &seqs, arrays::counts(lens, "lens"))?;
        let csr = cache.csr(&seqs, &lens)?;
        drop(cache);
        let array = |values| PyArray1::from_vec(py, values);
        Ok((array(csr.indptr), array(csr.indices), array(csr.last_page_len)))
    }

    /// The slots of `lens` tokens of each of `seqs` from `starts` on, int64.
    fn slots<'py>(
        &self,
        seqs: &Bound<'py, PyAny>,
        starts: &Bound<'py, PyAny>,
        lens: &Bound<'py, PyAny>,
    ) -> Outcome<Bound<'py, PyArray1<i64>>> {
        let py = seqs.py();
        let seqs = handles::sequences(seqs)?;
        let numbers = arrays::counts(starts, "starts").and_then(|starts| Ok((starts, arrays::counts(lens, "lens")?)));
        let (cache, (starts, lens)) = self.checked(py, &seqs, numbers)?;
        let slots = cache.slots(&seqs, &starts, &lens)?;
        drop(cache);
        Ok(PyArray1::from_vec(py, slots))
    }

    /// The memory work since the last call.
    fn take_ops(&self, py: Python<'_>) -> Outcome<Ops> {
        Ok(Ops { ops: self.lock(py)?.take_ops() })
    }

    /// Opens a step in flight: what is freed until it ends is not reused before that.
    fn begin_step(&self, py: Python<'_>) -> Outcome<u64> {
        Ok(self.lock(py)?.begin_step())
    }

    /// Ends a step; they end oldest first.
    fn end_step(&self, step: &Bound<'_, PyAny>) -> Outcome<()> {
        // A step's number is positive: what is not, was never given.
        let number = u64::try_from(arrays::integer(step, "step")?).unwrap_or(0);
        Ok(self.lock(step.py())?.end_step(number)?)
    }

    /// Forgets the prefix cache; false, with nothing changed, while blocks are held or a step is open.
    fn clear(&self, py: Python<'_>) -> Outcome<bool> {
        Ok(self.lock(py)?.clear())
    }

    /// Makes every older block unfindable. Running sequences keep theirs and publish nothing from now on; pins keep theirs.
    fn new_epoch(&self, py: Python<'_>) -> Outcome<()> {
        self.lock(py)?.new_epoch();
        Ok(())
    }

    /// Exact numbers, derived from the state.
    fn stats(&self, py: Python<'_>) -> Outcome<CacheStats> {
        Ok(self.lock(py)?.stats().into())
    }

    /// Checks every law on the whole state; `StateError` with the law's number where one is broken.
    fn audit(&self, py: Python<'_>) -> Outcome<()> {
        Ok(self.lock(py)?.audit().map_err(octavo_core::Error::State)?)
    }

    /// A picture of the blocks in text.
    fn draw(&self, py: Python<'_>) -> Outcome<String> {
        Ok(self.lock(py)?.draw())
    }
}

/// Writes `tables` into `out`, row after row, and 0 behind each and below the last.
fn fill(out: &Bound<'_, PyArray2<i32>>, tables: &[&[BlockId]], width: usize) -> Outcome<()> {
    let (rows, columns) = (out.dims()[0], out.dims()[1]);
    if rows < tables.len() || columns < width {
        let message = format!("is {rows} x {columns}, and the tables are {} x {width}", tables.len());
        return Err(Failure::request("out", message));
    }
    let mut entries = out.readwrite();
    let Ok(entries) = entries.as_slice_mut() else {
        return Err(Failure::request("out", "is not contiguous"));
    };
    entries.fill(0);
    for (row, table) in entries.chunks_mut(columns.max(1)).zip(tables) {
        for (entry, block) in row.iter_mut().zip(*table) {
            *entry = block.get();
        }
    }
    Ok(())
}

/// Memory work before the next forward pass, read-only.
#[pyclass(frozen, module = "octavo._core")]
pub(crate) struct Ops {
    ops: octavo_core::Ops,
}

#[pymethods]
#[allow(unsafe_code, reason = "views over the vectors, which a frozen object never changes")]
impl Ops {
    /// int32[n, 3]: source, target, and how many of the first tokens are copied.
    #[getter]
    fn copies<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let copies = slf.get().ops.copies.as_flattened();
        // SAFETY: the vector belongs to `slf`, which is frozen and which the view keeps alive.
        unsafe { arrays::view::<i32>(slf.as_any(), copies.as_ptr().cast(), &[copies.len() / 3, 3]) }
    }

    /// int32[n]: blocks to be filled with zeros.
    #[getter]
    fn zero<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let zero = &slf.get().ops.zero;
        // SAFETY: the vector belongs to `slf`, which is frozen and which the view keeps alive.
        unsafe { arrays::view::<i32>(slf.as_any(), zero.as_ptr().cast(), &[zero.len()]) }
    }

    fn __repr__(&self) -> String {
        format!("Ops(copies={}, zero={})", self.ops.copies.len(), self.ops.zero.len())
    }
}
