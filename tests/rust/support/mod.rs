//! The naive model of the allocator and the scheduler, and what joins it to the core in a test.
//!
//! Everything here is written to be obvious, not fast: vectors and ordered maps, linear scans,
//! and whole token histories where the core keeps hashes. It shares no code with the core, so
//! that a slip in one of them shows as a difference.
//!
//! | module | holds |
//! | --- | --- |
//! | `names` | what a block is found by: salt, extra keys and the tokens from the root |
//! | `pool` | the states of the blocks, their counts and their orders |
//! | `cache` | the allocator: sequences over a pool, copies, steps in flight |
//! | `scheduler` | requests, rows, plans and outcomes over a pool |
//! | `picture` | the text that `draw` gives |
//! | `census` | how often what happened |
//! | `bridge` | the same values in the core's types |
//! | `machine` | the tests that every machine has |

pub mod bridge;
pub mod cache;
pub mod census;
pub mod machine;
pub mod names;
pub mod picture;
pub mod pool;
pub mod scheduler;
