//! Octavo's scheduler in virtual time.

#![forbid(unsafe_code)]
