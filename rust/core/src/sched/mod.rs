//! The step scheduler: who runs, on which blocks, at every step.

pub(crate) mod admit;
pub(crate) mod away;
pub(crate) mod cancel;
pub(crate) mod check;
pub(crate) mod commit;
pub(crate) mod decision;
pub(crate) mod fill;
pub(crate) mod intake;
pub(crate) mod outcome;
pub(crate) mod pass;
pub(crate) mod plan;
pub(crate) mod queue;
pub(crate) mod rank;
pub(crate) mod request;
pub(crate) mod rows;
pub(crate) mod scheduler;
pub(crate) mod source;
pub(crate) mod state;
pub(crate) mod stats;
pub(crate) mod step;
