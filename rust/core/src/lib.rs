//! The performance core of an LLM serving engine: a KV-block allocator with copy-on-write sharing, a prefix cache, and a
//! step scheduler. It knows no Python, no GPU, no clock and no files: values go in, values come out.
//!
//! Two faces:
//!
//! - [`Scheduler`]: requests go in, at every step a plan comes out (who runs, on which blocks, with which tokens), and the
//!   sampled tokens go back. It owns its blocks.
//! - [`KvCache`]: the allocator alone, for engines that bring their own scheduler.
//!
//! # Example
//!
//! A model that always answers 7, in a memory of 64 blocks of 16 tokens:
//!
//! ```
//! use octavo_core::{Outcome, Reason, Request, Scheduler, SchedulerConfig, StepPlan};
//!
//! let mut scheduler = Scheduler::new(&SchedulerConfig::new(64))?;
//! let request = scheduler.add(Request { stop_token_ids: vec![2], ..Request::new((10..50).collect(), 3) })?;
//! let seq = scheduler.sequences(request)?[0];
//! let (mut plan, mut outcome) = (StepPlan::new(), Outcome::default());
//! let mut now = 0.0;
//! while scheduler.has_work() {
//!     if scheduler.step(now, &mut plan)? {
//!         // The forward pass goes here: plan.token_ids(), plan.slot_mapping(), plan.table_changes() …
//!         let sampled = vec![7; plan.sample_seqs().len()];
//!         scheduler.commit(plan.number(), &sampled, None, &mut outcome)?;
//!     }
//!     now += 0.03;
//! }
//! assert_eq!(outcome.reasons, [Reason::Length]);
//! assert_eq!(scheduler.tokens(seq)?[40..], [7, 7, 7]);
//! # Ok::<(), octavo_core::Error>(())
//! ```
//!
//! # Guarantees
//!
//! A call that returns an error changed nothing. The same calls give the same plans on every machine. Running out of
//! blocks is an outcome ([`Room`], or a preemption), never an error. [`Scheduler::audit`] and [`KvCache::audit`] check the
//! laws of the design on the whole state, in release builds too; a corrupt state panics rather than being repaired.
//!
//! # Cost
//!
//! Blank blocks are a stack, cached ones a queue that is never searched, prefixes one table from hashes to blocks that is
//! verified, waiting requests an indexed heap. A steady decode step allocates no heap memory and takes time in the number
//! of running sequences, whatever the size of the pool and of the queue. Memory is committed as blocks are first used:
//! making a pool of a million blocks costs nothing.
//!
//! # Implementation notes
//!
//! `ARCHITECTURE.md` has the levels of the modules, and which of them keeps which law.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod arena;
mod audit;
mod cache;
mod config;
mod copies;
mod draw;
mod error;
mod fence;
mod free;
mod group;
mod hash;
mod identity;
mod ids;
mod index;
mod intern;
mod kvcache;
mod pins;
mod pool;
mod prefix;
mod recency;
mod sched;
mod slot;
mod stats;
mod table;
mod tokens;

pub use cache::Room;
pub use config::{
    Batching, CacheConfig, Eviction, MAX_BLOCK_SIZE, MAX_INFLIGHT_STEPS, MAX_NUM_BLOCKS, MAX_NUM_SEQS, Policy,
    Preemption, Reserve, SchedulerConfig, Victim,
};
pub use error::{ConfigError, Error, RequestError, StateError};
pub use group::KvGroup;
pub use identity::{ExtraKey, Identity};
pub use ids::{BlockId, Handle, PinId, RequestId, SequenceId};
pub use kvcache::{Csr, KvCache, Ops};
pub use sched::decision::{Decision, Placed};
pub use sched::outcome::{Outcome, Reason};
pub use sched::plan::{Dtype, Section, StepPlan};
pub use sched::request::Request;
pub use sched::scheduler::Scheduler;
pub use sched::stats::SchedulerStats;
pub use stats::CacheStats;
