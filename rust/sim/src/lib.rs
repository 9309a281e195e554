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
//! | [`generate`], [`rng`] | traffic made from a seed |
//! | [`options`], [`schedule`] | the settings of a run |
//! | [`queue`], [`run`] | the front door, the loop |
//! | [`record`] | what a run leaves behind |
//! | [`metrics`], [`distribution`] | its figures |
//! | [`report`] | JSON and CSV |
//!
//! The crate has no clock, no environment and no files: texts go in and out as values.
//!
//! ```
//! use octavo_sim::{Feeding, Plain, Promise, SimConfig, Summary, simulate};
//!
//! let traffic = Plain { num_requests: 100, request_rate: 4.0, input_len: 1_000, output_len: 30 };
//! let workload = traffic.workload(0)?;
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
mod value;
pub mod workload;

pub use cost::{Combine, CostModel, KvRead, PassShape};
pub use distribution::Distribution;
pub use error::{Error, WorkloadError};
pub use generate::{Festival, Plain};
pub use metrics::{KvUsage, Promise, Summary};
pub use octavo_core::{ConfigError, Policy, Reserve, Victim};
pub use options::{SimConfig, Value};
pub use queue::Feeding;
pub use record::{Counters, EmissionRun, Parts, Record, RequestRecord, Status};
pub use rng::Rng;
pub use run::{Progress, simulate};
pub use schedule::{Batching, Schedule};
pub use workload::{Columns, NamedPrefixes, Prefixes, Workload};
