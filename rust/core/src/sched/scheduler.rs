//! The scheduler as callers see it.

use crate::cache::Cache;
use crate::config::SchedulerConfig;
use crate::draw;
use crate::error::{Error, RequestError, StateError};
use crate::identity::Identity;
use crate::ids::{Handle, PinId, RequestId, SequenceId};
use crate::prefix::Hits;
use crate::sched::decision::Decision;
use crate::sched::fill::BlockTables;
use crate::sched::outcome::{Outcome, Reason};
use crate::sched::plan::StepPlan;
use crate::sched::request::{Request, Status};
use crate::sched::source::Sources;
use crate::sched::state::State;
use crate::sched::stats::SchedulerStats;
use crate::sched::{cancel, check, commit, fill, intake, step};
use crate::stats::CacheStats;
use crate::tokens;

/// Decides at every step who runs, on which blocks.
///
/// Finished sequences leave, waiting ones join, prompts run in chunks; when blocks run out, the last in policy order is
/// preempted and computed again. Time is an argument: the scheduler has no clock. A call that returns an error changed
/// nothing (L12).
///
/// # Example
///
/// ```
/// use octavo_core::{Outcome, Request, Scheduler, SchedulerConfig, StepPlan};
///
/// let mut scheduler = Scheduler::new(&SchedulerConfig::new(64))?;
/// scheduler.add(Request::new((0..40).collect(), 3))?;
/// let (mut plan, mut outcome) = (StepPlan::new(), Outcome::default());
/// let mut now = 0.0;
/// while scheduler.has_work() {
///     if scheduler.step(now, &mut plan)? {
///         let sampled = vec![7; plan.sample_seqs().len()]; // the model's part
///         scheduler.commit(plan.number(), &sampled, None, &mut outcome)?;
///     }
///     now += 0.03;
/// }
/// assert_eq!(outcome.tokens, [7], "the third and last token");
/// # Ok::<(), octavo_core::Error>(())
/// ```
#[derive(Debug)]
pub struct Scheduler {
    state: State,
    tables: BlockTables,
    sources: Sources,
}

impl Scheduler {
    /// A scheduler with nothing to do.
    ///
    /// # Errors
    ///
    /// [`ConfigError`](crate::ConfigError) for a field out of range, or memory that this machine does not have.
    pub fn new(config: &SchedulerConfig) -> Result<Self, Error> {
        let state = State::new(config)?;
        let limits = state.limits;
        let tables = BlockTables::new(limits.max_num_seqs, limits.max_model_len, state.cache.block_size())?;
        Ok(Self { state, tables, sources: Sources::new(limits.max_num_seqs) })
    }

    /// Tokens in a block.
    #[must_use]
    pub const fn block_size(&self) -> usize {
        self.state.cache.block_size()
    }

    /// Adds a request; it waits for a step to admit it. The blocks of its prompt are hashed here.
    ///
    /// # Errors
    ///
    /// [`RequestError`] that names the argument: an empty prompt, one that reaches `max_model_len` or can never fit the
    /// memory, a negative token, limits or times out of range, more sequences than rows.
    ///
    /// # Complexity
    ///
    /// O(prompt + log waiting).
    pub fn add(&mut self, request: Request) -> Result<RequestId, Error> {
        intake::check(&self.state, &request)?;
        Ok(intake::insert(&mut self.state, request))
    }

    /// Adds many requests at once: all of them, or none.
    ///
    /// # Errors
    ///
    /// That of [`add`](Self::add) for the first request that is refused, with its index in the name of the argument.
    pub fn add_many(&mut self, requests: Vec<Request>) -> Result<Vec<RequestId>, Error> {
        for (index, request) in requests.iter().enumerate() {
            intake::check(&self.state, request).map_err(|error| {
                let argument = format!("{}[{index}]", error.argument).into();
                RequestError { argument, ..error }
            })?;
        }
        Ok(requests.into_iter().map(|request| intake::insert(&mut self.state, request)).collect())
    }

    /// Goes on with a request of one sequence that has ended and whose blocks no step has released yet: the next turn of a
    /// conversation. `tokens` follow what it knows; its blocks stay, the partly filled one included.
    ///
    /// # Effects
    ///
    /// It stays in its row, or waits in the queue if it had none; its limits count from here on, and a stop counts from the
    /// first output. An end that was not reported yet still is.
    ///
    /// # Errors
    ///
    /// A dead or foreign handle; [`RequestError`] for no tokens, a negative one, more than the model's length or the memory
    /// allow, or a request of several sequences; [`StateError`] when it has not ended, was released, or a plan out names it.
    ///
    /// # Complexity
    ///
    /// O(tokens + log waiting).
    pub fn extend(&mut self, request: RequestId, tokens: &[i32], max_tokens: usize) -> Result<(), Error> {
        intake::extend(&mut self.state, request, tokens, max_tokens)
    }

    /// Lets a request that was added with `ready: false` into the queue; one that is there, or has ended, stays as it is.
    ///
    /// # Errors
    ///
    /// A dead or foreign handle.
    ///
    /// # Complexity
    ///
    /// O(log waiting).
    pub fn set_ready(&mut self, request: RequestId) -> Result<(), Error> {
        for seq in self.state.members(request.into())? {
            let sequence = self.state.sequences.live_mut(seq);
            if sequence.status == Status::NotReady {
                sequence.status = Status::Waiting;
                self.state.num_not_ready -= 1;
                self.state.queue.push(sequence.rank, seq);
            }
        }
        Ok(())
    }

    /// The sequences of a request.
    ///
    /// # Errors
    ///
    /// A dead or foreign handle.
    pub fn sequences(&self, request: RequestId) -> Result<&[SequenceId], Error> {
        Ok(&self.state.requests.get(request)?.sequences)
    }

    /// Ends a request, or one of its sequences, as `aborted`. What has ended already stays as it is.
    ///
    /// # Effects
    ///
    /// The next outcome reports it; the next step releases its blocks.
    ///
    /// # Errors
    ///
    /// A dead or foreign handle.
    ///
    /// # Complexity
    ///
    /// O(log waiting) for each sequence.
    pub fn abort(&mut self, handle: impl Into<Handle>) -> Result<(), Error> {
        self.end(handle.into(), Reason::Aborted)
    }

    /// Ends a request, or one of its sequences, as `finished`: the engine has what it wanted. As
    /// [`abort`](Self::abort) otherwise.
    ///
    /// # Errors
    ///
    /// A dead or foreign handle.
    pub fn finish(&mut self, handle: impl Into<Handle>) -> Result<(), Error> {
        self.end(handle.into(), Reason::Finished)
    }

    /// Prompt and accepted outputs of a sequence, until the step after the outcome that reported its end.
    ///
    /// # Errors
    ///
    /// A dead or foreign handle.
    pub fn tokens(&self, seq: SequenceId) -> Result<Vec<i32>, Error> {
        self.state.tokens(seq)
    }

    /// Decides the next step without writing arrays; `None` when nothing can run now. What is decided is out until it
    /// is committed. A scheduler is driven by `decide` or by [`step`](Self::step): the arrays of a `step` after a `decide`
    /// would lack the changes of tables that were not written.
    ///
    /// # Errors
    ///
    /// [`RequestError`] when `now` is not finite or goes back.
    ///
    /// # Complexity
    ///
    /// O(running + tokens of admitted prompts + log waiting for each admission).
    pub fn decide(&mut self, now: f64) -> Result<Option<&Decision>, Error> {
        let decided = step::decide(&mut self.state, now)?;
        Ok(if decided { self.state.out.back() } else { None })
    }

    /// Decides the next step and writes it into `plan`; false, with `plan` untouched, when nothing can run now.
    ///
    /// # Errors
    ///
    /// Those of [`decide`](Self::decide).
    ///
    /// # Complexity
    ///
    /// That of [`decide`](Self::decide), and O(tokens in the plan).
    pub fn step(&mut self, now: f64, plan: &mut StepPlan) -> Result<bool, Error> {
        let decided = step::decide(&mut self.state, now)?;
        if decided {
            fill::fill(&mut self.state, &mut self.tables, &mut self.sources, plan);
        } else {
            self.tables.clear(&self.state.news.vacated);
        }
        Ok(decided)
    }

    /// Takes the results of plan `number`: one token for each sequence that sampled, in the plan's order.
    ///
    /// # Effects
    ///
    /// Publishes what was computed, accepts the tokens, ends who is done; `outcome` says what was accepted.
    ///
    /// # Errors
    ///
    /// [`StateError`] when that plan is not the oldest that is out; [`RequestError`] for too few or too many tokens,
    /// a negative one, or a count other than 1.
    ///
    /// # Complexity
    ///
    /// O(sequences in the plan + blocks that it filled).
    pub fn commit(
        &mut self,
        number: u64,
        tokens: &[i32],
        counts: Option<&[i32]>,
        outcome: &mut Outcome,
    ) -> Result<(), Error> {
        commit::commit(&mut self.state, number, tokens, counts, outcome)
    }

    /// The forward pass of plan `number` failed, or never ran: it and all newer plans are void, with their memory work.
    ///
    /// # Effects
    ///
    /// Who is in them loses row and blocks and is computed again; the next plan's `preempted` names them. Nothing of them
    /// is published, and what waited for them waits no longer: call it when none of them runs any more.
    ///
    /// # Errors
    ///
    /// [`StateError`] when that plan is not out.
    ///
    /// # Complexity
    ///
    /// O(sequences in the void plans · log waiting + their blocks).
    pub fn cancel(&mut self, number: u64) -> Result<(), Error> {
        cancel::cancel(&mut self.state, number)
    }

    /// Whether a sequence has not ended, a plan is out, or an end is unreported.
    #[must_use]
    pub fn has_work(&self) -> bool {
        let State { queue, rows, out, ends, .. } = &self.state;
        let is_running = || rows.order.iter().any(|&row| !rows.at(row).ended);
        queue.len() + self.state.num_not_ready > 0 || !out.is_empty() || !ends.to_report.is_empty() || is_running()
    }

    /// Plan numbers that are out, oldest first.
    pub fn plans_out(&self) -> impl Iterator<Item = u64> {
        self.state.out.iter().map(|plan| plan.number)
    }

    /// How long a hit of `tokens` would be now. Changes nothing, recency and counters included.
    ///
    /// # Errors
    ///
    /// [`RequestError`] for a negative token.
    ///
    /// # Complexity
    ///
    /// O(tokens).
    pub fn match_prefix(&self, tokens: &[i32], identity: &Identity) -> Result<usize, Error> {
        tokens::check("tokens", tokens)?;
        let cache = &self.state.cache;
        let (mut chain, mut hits) = (Vec::new(), Hits::default());
        cache.look_up(&mut chain, tokens, identity, cache.hit_limit(tokens.len()), &mut hits);
        Ok(hits.blocks.len() * cache.block_size())
    }

    /// Holds every full cached block of the prefix that `tokens` and it have in common; there may be none.
    ///
    /// With `expires = k` the pin is released by the k-th call of [`step`](Self::step) from now that finds fewer than
    /// `inflight_steps` plans out; its handle is stale then. Without, it lasts until [`unpin`](Self::unpin).
    ///
    /// # Errors
    ///
    /// [`RequestError`] for a negative token, or a pin that expires at once.
    ///
    /// # Complexity
    ///
    /// O(tokens).
    pub fn pin(&mut self, tokens: &[i32], identity: &Identity, expires: Option<u64>) -> Result<PinId, Error> {
        self.state.pins.pin(&mut self.state.cache, tokens, identity, expires)
    }

    /// Lets the blocks of a pin go, last first.
    ///
    /// # Errors
    ///
    /// A foreign handle, or a pin that was released or has expired.
    ///
    /// # Complexity
    ///
    /// O(blocks).
    pub fn unpin(&mut self, pin: PinId) -> Result<(), Error> {
        self.state.pins.unpin(&mut self.state.cache, pin)
    }

    /// Makes every block that was published so far unfindable, as when the model's weights change.
    ///
    /// # Effects
    ///
    /// Running sequences keep their blocks and publish nothing until they are preempted and admitted again; those that
    /// wait publish what they compute from now on.
    ///
    /// # Complexity
    ///
    /// O(pool).
    pub fn new_epoch(&mut self) {
        self.state.cache.new_epoch();
        self.state.rows.iter_mut().for_each(|runner| runner.publishes = false);
    }

    /// Forgets the prefix cache; false, with nothing changed, while blocks are held or a plan is out.
    ///
    /// # Complexity
    ///
    /// O(cached blocks).
    pub fn clear(&mut self) -> bool {
        self.state.cache.clear()
    }

    /// The block tables of all rows in `group`, row after row, after the newest [`step`](Self::step); unused entries
    /// are 0. `None` when there is no such group. Changed only by `step`; its memory never moves.
    #[must_use]
    pub fn block_tables(&self, group: usize) -> Option<&[i32]> {
        self.tables.group(group)
    }

    /// Differs whenever [`block_tables`](Self::block_tables) may.
    #[must_use]
    pub const fn table_version(&self) -> u64 {
        self.tables.version()
    }

    /// Entries in one row of [`block_tables`](Self::block_tables).
    #[must_use]
    pub const fn table_width(&self) -> usize {
        self.tables.width()
    }

    /// Blocks that could be given out now, of those that can be given out at all. O(1), unlike [`stats`](Self::stats).
    #[must_use]
    pub fn available(&self) -> (usize, usize) {
        (self.state.cache.available(), self.state.cache.usable())
    }

    /// Rows: the most sequences that run at once.
    #[must_use]
    pub const fn max_num_seqs(&self) -> usize {
        self.state.limits.max_num_seqs
    }

    /// Exact numbers.
    #[must_use]
    pub fn stats(&self) -> SchedulerStats {
        let State { cache, counters, queue, rows, requests, out, .. } = &self.state;
        let running = rows.in_order().filter(|runner| !runner.ended).count();
        SchedulerStats {
            prefix_queries: counters.prefix_queries,
            prefix_hits: counters.prefix_hits,
            waiting: (queue.len() + self.state.num_not_ready) as u64,
            running: running as u64,
            requests: requests.len() as u64,
            steps: counters.plans,
            plans_out: out.len() as u64,
            scheduled_tokens: counters.scheduled_tokens,
            preemptions: counters.preemptions,
            recomputed_tokens: counters.recomputed_tokens,
            resumed_queries: counters.resumed_queries,
            resumed_hits: counters.resumed_hits,
            finished: counters.finished,
            ..SchedulerStats::of(cache)
        }
    }

    /// Checks every law on the whole state and changes nothing.
    ///
    /// # Errors
    ///
    /// [`StateError`] with the number of the broken law.
    pub fn audit(&self) -> Result<(), StateError> {
        check::check(&self.state, &self.tables)
    }

    /// A picture of the blocks and of the rows that hold them.
    #[must_use]
    pub fn draw(&self) -> String {
        let State { cache, rows, sequences, .. } = &self.state;
        let tables = rows.iter().map(|(_, runner)| (&sequences.live(runner.seq).table, runner.computed as usize));
        draw::draw(cache, tables)
    }

    fn end(&mut self, handle: Handle, reason: Reason) -> Result<(), Error> {
        for seq in self.state.members(handle)? {
            self.state.end(seq, reason);
        }
        Ok(())
    }
}

impl SchedulerStats {
    fn of(cache: &Cache) -> Self {
        let stats = CacheStats::of(cache);
        Self {
            num_blocks: stats.num_blocks,
            usable: stats.usable,
            blank: stats.blank,
            cached: stats.cached,
            held: stats.held,
            fenced: stats.fenced,
            available: stats.available,
            guarded: stats.guarded,
            published_blocks: stats.published_blocks,
            merged_blocks: stats.merged_blocks,
            evicted_blocks: stats.evicted_blocks,
            copies: stats.copies,
            hash_collisions: stats.hash_collisions,
            ..Self::default()
        }
    }
}
