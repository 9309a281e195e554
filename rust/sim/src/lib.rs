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
//! | [`options`] | the settings of a run |
//! | [`queue`], [`run`] | the front door, the loop |
//! | [`record`] | what a run leaves behind |
//! | [`metrics`], [`distribution`] | its figures |
//! | [`report`] | JSON and CSV |
//!
//! The crate has no clock, no environment and no files: texts go in and out as values.

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
pub mod queue;
pub mod record;
pub mod report;
pub mod rng;
pub mod run;
pub mod workload;

pub use cost::{Combine, CostModel, KvRead, PassShape};
pub use distribution::Distribution;
pub use error::{Error, WorkloadError};
pub use generate::{Festival, Plain};
pub use metrics::{KvUsage, Promise, Summary};
pub use octavo_core::ConfigError;
pub use options::{SimConfig, Value};
pub use queue::Feeding;
pub use record::{Counters, EmissionRun, Record, RequestRecord, Status};
pub use rng::Rng;
pub use run::{Progress, simulate};
pub use workload::{Columns, NamedPrefixes, Prefixes, Workload};
