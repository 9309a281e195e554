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
//! | `memory` | who counts on blocks: tables, twins, copies, pins, steps |
//! | `cache` | the allocator: sequences over a memory |
//! | `scheduler` | requests, rows, plans and outcomes over a memory |
//! | `picture` | the text that `draw` gives |
//! | `device` | what does as plans say, and finds out whether they were right |
//! | `census` | how often what happened |
//! | `bridge` | the same values in the core's types |
//! | `machine` | the tests that every machine has |

pub mod bridge;
pub mod cache;
pub mod census;
pub mod device;
pub mod machine;
pub mod memory;
pub mod names;
pub mod picture;
pub mod pool;
pub mod scheduler;
