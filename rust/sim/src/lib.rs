//! Octavo's scheduler in virtual time.
//!
//! The simulator is `octavo-core` itself: the allocator and the scheduler that an engine embeds, driven
//! through a workload by a clock that a cost model moves. Nothing of their decisions is written again here.
//!
//! ```text
//! workload ──► queue ──► Scheduler::decide ──► pass shape (T, K) ──► cost model ──► clock
//!                ▲                                                                   │
//!                └── arrivals up to the clock ◄── finish ◄── commit ◄────────────────┘
//! ```
//!
//! | module | noun |
//! | --- | --- |
//! | [`cost`] | what a pass costs |
//! | [`workload`] | the requests |
//! | [`generate`], [`length`], [`rng`] | traffic made from a seed |
//! | [`options`], [`schedule`] | the settings of a run |
//! | [`queue`], [`run`] | the front door, the loop |
//! | [`record`] | what a run leaves behind |
//! | [`metrics`], [`distribution`], [`steady`], [`verdict`] | its figures |
//! | [`report`] | JSON and CSV |
//!
//! The crate has no clock, no environment and no files: texts go in and out as values.
//!
//! ```
//! use octavo_sim::{Feeding, Plain, Promise, SimConfig, Summary, simulate};
//!
//! let workload = Plain::poisson(100, 4.0, 1_000, 30).workload(0)?;
//! let config = SimConfig::default();
//! let record = simulate(&config, &workload, Feeding::Lazy, &mut |_| true)?;
//! let summary = Summary::of(&workload, &record, &Promise::default());
//! assert_eq!((summary.completed, summary.itl_s.n), (100, 100 * 29));
//! # Ok::<(), octavo_sim::Error>(())
//! ```

#![forbid(unsafe_code)]

mod batch;
mod conserve;
pub mod cost;
pub mod distribution;
pub mod error;
pub mod generate;
pub mod length;
pub mod metrics;
pub mod num;
pub mod options;
mod pass;
pub mod queue;
pub mod record;
pub mod report;
pub mod rng;
pub mod run;
pub mod schedule;
pub mod steady;
mod value;
pub mod verdict;
pub mod workload;

pub use cost::{Combine, CostModel, KvRead, PassShape};
pub use distribution::Distribution;
pub use error::{Error, WorkloadError};
pub use generate::{Arrivals, Festival, Plain};
pub use length::Length;
pub use metrics::{KvUsage, Promise, Summary};
pub use octavo_core::{ConfigError, Policy, Reserve, Victim};
pub use options::{SimConfig, Value};
pub use queue::Feeding;
pub use record::{Counters, EmissionRun, Parts, Record, RequestRecord, Status};
pub use rng::Rng;
pub use run::{Progress, simulate};
pub use schedule::{Batching, Schedule};
pub use steady::Steady;
pub use verdict::Verdict;
pub use workload::{Columns, NamedPrefixes, Prefixes, Workload};
