//! The performance core of an LLM serving engine: KV blocks, a prefix cache and a step scheduler.

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
mod pool;
mod prefix;
mod recency;
mod sched;
mod slot;
mod table;
mod tokens;

pub use cache::Room;
pub use config::{
    Batching, CacheConfig, Eviction, MAX_BLOCK_SIZE, MAX_NUM_BLOCKS, MAX_NUM_SEQS, Policy, Preemption, Reserve,
    SchedulerConfig, Victim,
};
pub use error::{ConfigError, Error, RequestError, StateError};
pub use group::KvGroup;
pub use identity::{ExtraKey, Identity};
pub use ids::{BlockId, Handle, RequestId, SequenceId};
pub use kvcache::{CacheStats, Csr, KvCache, Ops};
pub use sched::decision::{Decision, Placed};
pub use sched::outcome::{Outcome, Reason};
pub use sched::plan::{Dtype, Section, StepPlan};
pub use sched::request::Request;
pub use sched::scheduler::Scheduler;
pub use sched::stats::SchedulerStats;
