//! The performance core of an LLM serving engine: a KV-block allocator and a step scheduler.

#![forbid(unsafe_code)]
