//! `octavo.Scheduler`: requests in, plans out, sampled tokens in.

use std::sync::{Arc, Mutex, MutexGuard};

use numpy::PyArray1;
use octavo_core::{Scheduler, StepPlan};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::{PyDict, PyTuple};

use crate::arrays::{self, Given};
use crate::config::Options;
use crate::errors::{Failure, Outcome};
use crate::handles;
use crate::identity::identity;
use crate::outcome::PyOutcome;
use crate::plan::{Fate, PyStepPlan};
use crate::request::{self, Keywords};
use crate::stats::SchedulerStats;

/// Decides what every step runs, on which blocks.
///
/// `add` and `abort` may be called from any thread; `step`, `commit` and `cancel` from one. A call that raises changed
/// nothing.
/// Handles are plain ints, and mean something only to the object that gave them out.
#[pyclass(frozen, name = "Scheduler", module = "octavo._core")]
pub(crate) struct PyScheduler {
    state: Mutex<State>,
}

pub(crate) struct State {
    scheduler: Scheduler,
    /// One buffer for each plan that may be out, and one more, so that the newest committed plan can still be looked at.
    ring: Vec<Arc<StepPlan>>,
    /// Of each plan that is out, oldest first: its number, and what it looks at to know what became of it.
    out: Vec<(u64, Arc<Fate>)>,
}

/// A buffer that nobody looks at: one given back, or a fresh one in the place of one that is still held.
fn free_buffer(ring: &mut [Arc<StepPlan>]) -> Option<&mut Arc<StepPlan>> {
    let free = ring.iter_mut().position(|plan| Arc::get_mut(plan).is_some());
    if free.is_none() {
        ring.rotate_left(1);
        *ring.first_mut()? = Arc::default();
    }
    ring.get_mut(free.unwrap_or(0))
}

impl State {
    pub(crate) fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// Plan `number` is not out any more.
    fn close(&mut self, number: u64, tell: impl Fn(&Fate)) {
        self.out.retain(|(other, fate)| {
            if *other == number {
                tell(fate);
            }
            *other != number
        });
    }
}

impl PyScheduler {
    pub(crate) fn lock<'a>(&'a self, py: Python<'_>) -> Outcome<MutexGuard<'a, State>> {
        Ok(self.state.lock_py_attached(py)?)
    }
}

#[pymethods]
impl PyScheduler {
    #[new]
    #[pyo3(
        signature = (num_blocks, **options),
        text_signature = "(num_blocks, *, block_size=16, max_num_seqs=256, max_num_batched_tokens=2048, \
                          max_model_len=32768, batching='chunked', policy='fcfs', aging=0.0, bypass_limit=0, \
                          max_partial_prefills=4, long_prefill_threshold=0, watermark=0.01, reserve='on_demand', \
                          preemption='recompute', victim='latest', inflight_steps=1, num_lookahead=0, \
                          prefix_caching=True, partial_hits=False, dedupe=True, reserve_null_block=False, \
                          eviction='lru', hash_seed=0, host_blocks=0, disk_blocks=0, events=False, \
                          tenant_weights=..., max_adapters_per_step=0)"
    )]
    fn new(num_blocks: &Bound<'_, PyAny>, options: Option<&Bound<'_, PyDict>>) -> Outcome<Self> {
        let options = Options::of_scheduler(num_blocks, options)?;
        let config = options.scheduler()?;
        let inflight_steps = usize::try_from(config.inflight_steps).unwrap_or(0);
        let scheduler = Scheduler::new(&config).map_err(|error| options.refusal(error))?;
        let ring = vec![Arc::default(); inflight_steps + 1];
        Ok(Self { state: Mutex::new(State { scheduler, ring, out: Vec::new() }) })
    }

    /// Takes a request into the queue.
    #[pyo3(
        signature = (
            prompt, *, max_tokens, min_tokens=Given(None), stop_token_ids=Given(None), n=Given(None),
            priority=Given(None), deadline=None, arrival=None, tenant=Given(None), adapter=Given(None),
            salt=Given(None), extra_keys=Given(None), key=None, ready=true, use_cache=true
        ),
        text_signature = "($self, prompt, *, max_tokens, min_tokens=0, stop_token_ids=(), n=1, priority=0, \
                          deadline=None, arrival=None, tenant=0, adapter=0, salt=b'', extra_keys=(), key=None, \
                          ready=True, use_cache=True)"
    )]
    #[allow(clippy::too_many_arguments, reason = "the keywords of CONTRACT §3.1, each one a Python argument")]
    fn add<'py>(
        &self,
        prompt: &Bound<'py, PyAny>,
        max_tokens: &Bound<'py, PyAny>,
        min_tokens: Given<'py>,
        stop_token_ids: Given<'py>,
        n: Given<'py>,
        priority: Given<'py>,
        deadline: Option<Bound<'py, PyAny>>,
        arrival: Option<Bound<'py, PyAny>>,
        tenant: Given<'py>,
        adapter: Given<'py>,
        salt: Given<'py>,
        extra_keys: Given<'py>,
        key: Option<Bound<'py, PyAny>>,
        ready: bool,
        use_cache: bool,
    ) -> Outcome<i64> {
        let max_tokens = max_tokens.clone();
        let keywords = Keywords {
            max_tokens,
            min_tokens,
            stop_token_ids,
            n,
            priority,
            deadline,
            arrival,
            tenant,
            adapter,
            salt,
            extra_keys,
            key,
            ready,
            use_cache,
        };
        let request = keywords.one(prompt)?;
        Ok(self.lock(prompt.py())?.scheduler.add(request)?.raw())
    }

    /// Takes many requests into the queue, all of them or none; int64, their handles.
    ///
    /// `max_tokens`, `min_tokens`, `priority`, `deadline` and `arrival` are one value for all or a sequence with one for
    /// each; everything else is for all. A callable `key` is called once for each prompt.
    #[pyo3(
        signature = (
            prompts, *, max_tokens, min_tokens=Given(None), stop_token_ids=Given(None), n=Given(None),
            priority=Given(None), deadline=None, arrival=None, tenant=Given(None), adapter=Given(None),
            salt=Given(None), extra_keys=Given(None), key=None, ready=true, use_cache=true
        ),
        text_signature = "($self, prompts, *, max_tokens, min_tokens=0, stop_token_ids=(), n=1, priority=0, \
                          deadline=None, arrival=None, tenant=0, adapter=0, salt=b'', extra_keys=(), key=None, \
                          ready=True, use_cache=True)"
    )]
    #[allow(clippy::too_many_arguments, reason = "the keywords of CONTRACT §3.1, each one a Python argument")]
    fn add_many<'py>(
        &self,
        prompts: &Bound<'py, PyAny>,
        max_tokens: &Bound<'py, PyAny>,
        min_tokens: Given<'py>,
        stop_token_ids: Given<'py>,
        n: Given<'py>,
        priority: Given<'py>,
        deadline: Option<Bound<'py, PyAny>>,
        arrival: Option<Bound<'py, PyAny>>,
        tenant: Given<'py>,
        adapter: Given<'py>,
        salt: Given<'py>,
        extra_keys: Given<'py>,
        key: Option<Bound<'py, PyAny>>,
        ready: bool,
        use_cache: bool,
    ) -> Outcome<Bound<'py, PyArray1<i64>>> {
        let (py, max_tokens) = (prompts.py(), max_tokens.clone());
        let keywords = Keywords {
            max_tokens,
            min_tokens,
            stop_token_ids,
            n,
            priority,
            deadline,
            arrival,
            tenant,
            adapter,
            salt,
            extra_keys,
            key,
            ready,
            use_cache,
        };
        let requests = keywords.many(prompts)?;
        let added = self.lock(py)?.scheduler.add_many(requests).map_err(request::in_plural)?;
        Ok(PyArray1::from_vec(py, added.iter().map(|request| request.raw()).collect()))
    }

    /// Goes on with a request that has ended, before the step that would release its blocks: `tokens` follow what it knows,
    /// and at most `max_tokens` more are sampled.
    #[pyo3(signature = (request, tokens, *, max_tokens))]
    fn extend(
        &self,
        request: &Bound<'_, PyAny>,
        tokens: &Bound<'_, PyAny>,
        max_tokens: &Bound<'_, PyAny>,
    ) -> Outcome<()> {
        let id = handles::request(request)?;
        let (tokens, max_tokens) = (arrays::tokens(tokens, "tokens"), arrays::count(max_tokens, "max_tokens"));
        let mut state = self.lock(request.py())?;
        // A request that is no good is told before an argument that is not.
        if state.scheduler.sequences(id)?.len() > 1 {
            return Ok(state.scheduler.extend(id, &[], 0)?);
        }
        let tokens = tokens?;
        if tokens.is_empty() || tokens.iter().any(|&token| token < 0) {
            return Ok(state.scheduler.extend(id, &tokens, 0)?);
        }
        Ok(state.scheduler.extend(id, &tokens, max_tokens?)?)
    }

    /// Lets a request that was added with `ready=False` into the queue; any other stays as it is.
    fn set_ready(&self, request: &Bound<'_, PyAny>) -> Outcome<()> {
        let id = handles::request(request)?;
        Ok(self.lock(request.py())?.scheduler.set_ready(id)?)
    }

    /// The handles of the request's sequences.
    fn sequences<'py>(&self, request: &Bound<'py, PyAny>) -> Outcome<Bound<'py, PyTuple>> {
        let id = handles::request(request)?;
        let state = self.lock(request.py())?;
        let raw: Vec<i64> = state.scheduler.sequences(id)?.iter().map(|seq| seq.raw()).collect();
        drop(state);
        Ok(PyTuple::new(request.py(), raw)?)
    }

    /// Prompt and accepted outputs of `seq`, int32, readable until the step after the outcome that reported its end.
    fn tokens<'py>(&self, seq: &Bound<'py, PyAny>) -> Outcome<Bound<'py, PyArray1<i32>>> {
        let id = handles::sequence(seq)?;
        let state = self.lock(seq.py())?;
        let tokens = state.scheduler.tokens(id)?;
        drop(state);
        Ok(PyArray1::from_vec(seq.py(), tokens))
    }

    /// Ends a request or one of its sequences as aborted; what has ended already stays as it is.
    fn abort(&self, handle: &Bound<'_, PyAny>) -> Outcome<()> {
        let id = handles::either(handle)?;
        Ok(self.lock(handle.py())?.scheduler.abort(id)?)
    }

    /// Ends a request or one of its sequences as finished by the engine.
    fn finish(&self, handle: &Bound<'_, PyAny>) -> Outcome<()> {
        let id = handles::either(handle)?;
        Ok(self.lock(handle.py())?.scheduler.finish(id)?)
    }

    /// Decides the next step; None where nothing can run before a commit or an `add`.
    ///
    /// Args:
    ///     now: Finite seconds on a clock of the caller's that does not go back.
    ///     out: A writable, contiguous, 8-byte aligned uint8 array, such as pinned memory, for the plan's buffer. It is the
    ///         plan's until its commit: one in which a plan that is out lies is refused. A plan that does not fit keeps
    ///         memory of its own: `plan.buffer` is the plan in any case, `plan.in_out` tells which.
    #[pyo3(signature = (now, *, out=None))]
    fn step(
        slf: &Bound<'_, Self>,
        now: &Bound<'_, PyAny>,
        out: Option<&Bound<'_, PyAny>>,
    ) -> Outcome<Option<PyStepPlan>> {
        let now = arrays::real(now, "now")?;
        let out = out.map(|out| arrays::writable_bytes(out, "out")).transpose()?;
        let mut state = slf.get().lock(slf.py())?;
        let State { scheduler, ring, out: plans } = &mut *state;
        let memory = out.as_ref().map(arrays::memory);
        if memory.is_some_and(|memory| plans.iter().any(|(_, fate)| fate.overlaps(memory))) {
            return Err(Failure::request("out", "a plan that is out lies there"));
        }
        let Some(buffer) = free_buffer(ring) else {
            return Err(Failure::State("the ring of plans is empty"));
        };
        let Some(plan) = Arc::get_mut(buffer) else {
            return Err(Failure::State("the plan's buffer is in use"));
        };
        if !scheduler.step(now, plan)? {
            return Ok(None);
        }
        let bytes = plan.bytes();
        let out = out.filter(|out| arrays::write_front(out, bytes));
        let fate = Arc::new(Fate::new(memory.filter(|_| out.is_some())));
        plans.push((plan.number(), Arc::clone(&fate)));
        let (plan, tables) = (Arc::clone(buffer), scheduler.table_version());
        Ok(Some(PyStepPlan::new(plan, out.map(Bound::unbind), slf.clone().unbind(), tables, fate)))
    }

    /// Hands the step's sampled tokens back, in the order of `sample_seqs`.
    #[pyo3(signature = (plan, tokens, counts=None))]
    fn commit(
        slf: &Bound<'_, Self>,
        plan: &Bound<'_, PyStepPlan>,
        tokens: &Bound<'_, PyAny>,
        counts: Option<&Bound<'_, PyAny>>,
    ) -> Outcome<PyOutcome> {
        let tokens = arrays::tokens(tokens, "tokens");
        let counts = counts.map(|counts| arrays::tokens(counts, "counts")).transpose();
        let mut state = slf.get().lock(plan.py())?;
        let number = plan.get().check_out(slf)?;
        let mut outcome = octavo_core::Outcome::default();
        state.scheduler.commit(number, &tokens?, counts?.as_deref(), &mut outcome)?;
        state.close(number, Fate::commit);
        Ok(PyOutcome::new(outcome))
    }

    /// The forward pass of `plan` failed: it and all newer plans are void, with their memory work. Who is in them is
    /// computed again; the next plan's `preempted` names them.
    ///
    /// Call it when no void plan runs any more: what waited for them waits no longer.
    fn cancel(slf: &Bound<'_, Self>, plan: &Bound<'_, PyStepPlan>) -> Outcome<()> {
        let mut state = slf.get().lock(plan.py())?;
        let number = plan.get().check_out(slf)?;
        state.scheduler.cancel(number)?;
        while let Some(&(newest, _)) = state.out.last().filter(|&&(newest, _)| newest >= number) {
            state.close(newest, Fate::cancel);
        }
        Ok(())
    }

    /// Whether a sequence has not ended, a plan is out, or an end is unreported.
    #[getter]
    fn has_work(&self, py: Python<'_>) -> Outcome<bool> {
        Ok(self.lock(py)?.scheduler.has_work())
    }

    /// For each KV group int32 of rows × width, read-only: the tables by row after the newest step, unused entries 0.
    /// The views are live: the next step changes them.
    #[getter]
    #[allow(unsafe_code, reason = "live views over the core's tables")]
    fn block_tables<'py>(slf: &Bound<'py, Self>) -> Outcome<Bound<'py, PyTuple>> {
        let state = slf.get().lock(slf.py())?;
        // One KV group so far.
        let Some(tables) = state.scheduler.block_tables(0) else {
            return Ok(PyTuple::empty(slf.py()));
        };
        let width = state.scheduler.table_width();
        let (first, shape) = (tables.as_ptr().cast(), [tables.len() / width, width]);
        drop(state);
        // SAFETY: the core allocates the tables once, when it is built, and never moves them; the scheduler that owns
        // them is kept alive by the view. They are written in `step` only, as the contract says of this array.
        let view = unsafe { arrays::view::<i32>(slf.as_any(), first, &shape) }?;
        Ok(PyTuple::new(slf.py(), [view])?)
    }

    /// How many tokens of `tokens` are cached; changes nothing.
    #[pyo3(
        name = "match",
        signature = (tokens, *, salt=Given(None), extra_keys=Given(None)),
        text_signature = "($self, tokens, *, salt=b'', extra_keys=())"
    )]
    fn match_prefix(&self, tokens: &Bound<'_, PyAny>, salt: Given<'_>, extra_keys: Given<'_>) -> Outcome<usize> {
        let py = tokens.py();
        let tokens = arrays::tokens(tokens, "tokens")?;
        let identity = identity(&salt, &extra_keys)?;
        Ok(self.lock(py)?.scheduler.match_prefix(&tokens, &identity)?)
    }

    /// Holds every full cached block of the prefix that `tokens` and it have in common, and returns a pin.
    ///
    /// Args:
    ///     tokens: Token ids.
    ///     salt: As for `add`.
    ///     `extra_keys`: As for `add`.
    ///     expires: `k` releases the pin with the k-th `step` from now that finds fewer than `inflight_steps` plans out, and
    ///         its handle is stale then; None keeps it until `unpin`.
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
        Ok(self.lock(py)?.scheduler.pin(&tokens, &identity, expires.map(|steps| steps as u64))?.raw())
    }

    /// Lets the blocks of `pin` go, tail first; one that has expired is stale.
    fn unpin(&self, pin: &Bound<'_, PyAny>) -> Outcome<()> {
        let id = handles::pin(pin)?;
        Ok(self.lock(pin.py())?.scheduler.unpin(id)?)
    }

    /// Makes every older block unfindable. Running sequences keep theirs and publish nothing until they are preempted.
    fn new_epoch(&self, py: Python<'_>) -> Outcome<()> {
        self.lock(py)?.scheduler.new_epoch();
        Ok(())
    }

    /// Forgets the prefix cache; False, with nothing changed, while blocks are held or a plan is out.
    fn clear(&self, py: Python<'_>) -> Outcome<bool> {
        Ok(self.lock(py)?.scheduler.clear())
    }

    /// Exact numbers, derived from the state.
    fn stats(&self, py: Python<'_>) -> Outcome<SchedulerStats> {
        Ok(self.lock(py)?.scheduler.stats().into())
    }

    /// Checks every law on the whole state; `StateError` with the law's number where one is broken.
    fn audit(&self, py: Python<'_>) -> Outcome<()> {
        Ok(self.lock(py)?.scheduler.audit().map_err(octavo_core::Error::State)?)
    }

    /// A picture of the blocks in text.
    fn draw(&self, py: Python<'_>) -> Outcome<String> {
        Ok(self.lock(py)?.scheduler.draw())
    }
}
