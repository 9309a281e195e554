//! Two schedulers of the core, one of which only decides, and the model, all asked the same.

use std::collections::BTreeMap;

use octavo_core::{CacheConfig, Error, PinId, RequestId, Scheduler, SchedulerConfig, SequenceId, StepPlan};

use super::calls::{Asked, Manner, Op, salt};
use crate::support::bridge;
use crate::support::cache::Fault;
use crate::support::census::Census;
use crate::support::device::Device;
use crate::support::names::Identity;
use crate::support::scheduler::requests::Target;
use crate::support::scheduler::{Ending, SchedulerModel, Submitted, World};

pub struct Trio {
    pub core: Scheduler,
    pub decider: Scheduler,
    pub model: SchedulerModel,
    pub plan: StepPlan,
    /// By the model's numbers.
    pub handles: Vec<(RequestId, Vec<SequenceId>)>,
    sequences: Vec<SequenceId>,
    /// What a device puts before a sequence's first token.
    pub seeds: Vec<u64>,
    pub names: BTreeMap<i64, usize>,
    pins: Vec<(usize, PinId)>,
    pub device: Device,
    pub now: f64,
    pub census: Census,
}

impl Trio {
    pub fn new(world: &World, hash_bits: i64) -> Self {
        let config = config(world, hash_bits);
        Self {
            core: Scheduler::new(&config).expect("a world in range"),
            decider: Scheduler::new(&config).expect("a world in range"),
            model: SchedulerModel::new(world),
            plan: StepPlan::default(),
            handles: Vec::new(),
            sequences: Vec::new(),
            seeds: Vec::new(),
            names: BTreeMap::new(),
            pins: Vec::new(),
            device: Device::new(world.num_blocks, world.block_size),
            now: 0.0,
            census: Census::default(),
        }
    }

    pub fn apply(&mut self, op: &Op) {
        match op {
            Op::Add(asked) => self.add(asked),
            Op::AddMany(all) => self.add_many(all),
            Op::SetReady { request } => self.set_ready(self.newest(*request)),
            Op::Clear => {
                let cleared = self.model.clear();
                assert_eq!(self.core.clear(), cleared, "clear");
                assert_eq!(self.decider.clear(), cleared, "L13");
            }
            Op::End { request, ending, member } => self.end(self.newest(*request), *ending, *member),
            Op::Extend { request, tokens, max_tokens } => self.extend(self.newest(*request), tokens, *max_tokens),
            Op::NextTurn { sampled, request, tokens, max_tokens } => {
                self.next_turn(sampled, *request, tokens, *max_tokens);
            }
            Op::Cancel { steps, back } => {
                for _ in 0..*steps {
                    self.step(self.now + 1.0);
                    self.compare();
                }
                self.cancel(*back);
            }
            Op::Pin { tokens, expires } => self.pin(tokens, *expires),
            Op::PinLike { request, expires } => {
                let known = self.model.members(self.newest(*request)).map(|members| members[0]);
                if let Ok(tokens) = known.and_then(|seq| self.model.tokens(seq)).map(<[i32]>::to_vec) {
                    self.pin(&tokens, *expires);
                }
            }
            Op::Unpin { pin } => self.unpin(*pin),
            Op::NewEpoch => {
                self.model.memory.new_epoch();
                self.core.new_epoch();
                self.decider.new_epoch();
            }
            Op::Step { seconds } => self.step(self.now + seconds),
            Op::Commit { tokens, manner } => self.commit(tokens, *manner),
            Op::Run { rounds, depth, tokens } => self.run(*rounds, *depth, tokens),
            Op::Match { tokens, salt: is_salted } => {
                let identity = Identity { salt: salt(*is_salted), spans: Vec::new() };
                let expected = self.model.match_prefix(tokens, &identity);
                let found = self.core.match_prefix(tokens, &bridge::identity(&identity));
                assert_eq!(found.map_err(|error| bridge::fault(&error)), expected, "match");
            }
            Op::Read { request } => self.read(self.newest(*request)),
        }
    }

    fn run(&mut self, rounds: usize, depth: usize, tokens: &[i32]) {
        let depth = depth.min(self.model.world.inflight_steps);
        for round in 0..rounds {
            self.step(self.now + 1.0);
            self.compare();
            let mut tokens = tokens.to_vec();
            tokens.rotate_left(round % 4);
            while self.model.out_numbers().len() >= depth {
                self.commit(&tokens, Manner::Plain);
                self.compare();
            }
        }
    }

    /// The number of the request that was added `back` requests before the newest one; beyond the first one, a number
    /// that was never given.
    fn newest(&self, back: usize) -> usize {
        self.handles.len().checked_sub(back + 1).unwrap_or(self.handles.len())
    }

    fn handle(&self, request: usize) -> RequestId {
        self.handles.get(request).map_or_else(never_issued_request, |(handle, _)| *handle)
    }

    /// The answers of all sides to a call that gives nothing back.
    pub fn agree(what: &str, expected: Result<(), Fault>, found: [Result<(), Error>; 2]) {
        for found in found {
            assert_eq!(found.map_err(|error| bridge::fault(&error)), expected, "{what}");
        }
    }

    // ------------------------------------------------------------------ requests

    fn add(&mut self, asked: &Asked) {
        let submitted = asked.submitted();
        let expected = self.model.add(&submitted);
        let request = asked.request();
        let decided = self.decider.add(request.clone());
        let found = self.core.add(request);
        assert_eq!(found.is_ok(), decided.is_ok(), "L13");
        match (found, expected) {
            (Ok(handle), Ok(number)) => {
                assert_eq!(decided.expect("both"), handle, "L13: handles");
                self.name(handle, number, &submitted);
            }
            (found, expected) => {
                self.census.add("add: refused", 1);
                assert_eq!(found.map(drop).map_err(|error| bridge::fault(&error)), expected.map(drop), "add");
            }
        }
    }

    fn name(&mut self, handle: RequestId, number: usize, submitted: &Submitted) {
        assert_eq!(self.handles.len(), number);
        let sequences = self.core.sequences(handle).expect("alive").to_vec();
        let members = self.model.members(number).expect("alive");
        assert_eq!(sequences.len(), members.len());
        for (&sequence, &member) in sequences.iter().zip(members) {
            assert_eq!(self.sequences.len(), member);
            self.names.insert(sequence.raw(), member);
            self.sequences.push(sequence);
            let has_adapter = submitted.identity.spans.iter().any(|span| span.kind == "adapter");
            self.seeds.push(1 + submitted.identity.salt.len() as u64 + 16 * u64::from(has_adapter));
        }
        self.handles.push((handle, sequences));
    }

    fn add_many(&mut self, all: &[Asked]) {
        let submitted: Vec<Submitted> = all.iter().map(Asked::submitted).collect();
        let requests: Vec<_> = all.iter().map(Asked::request).collect();
        let decided = self.decider.add_many(requests.clone());
        match (self.core.add_many(requests), self.model.add_many(&submitted)) {
            (Ok(handles), Ok(numbers)) => {
                assert_eq!(decided.expect("both"), handles, "L13: handles");
                assert_eq!(handles.len(), numbers.len());
                for ((handle, number), submitted) in handles.into_iter().zip(numbers).zip(&submitted) {
                    self.name(handle, number, submitted);
                }
            }
            (Err(Error::Request(error)), Err(index)) => {
                assert!(error.argument.ends_with(&format!("[{index}]")), "{}", error.argument);
                assert!(decided.is_err(), "L13");
            }
            (found, expected) => panic!("add_many: {found:?}, and {expected:?} in the model"),
        }
    }

    pub fn set_ready(&mut self, request: usize) {
        let handle = self.handle(request);
        let expected = self.model.set_ready(request);
        let found = [self.core.set_ready(handle), self.decider.set_ready(handle)];
        Self::agree("set_ready", expected, found);
    }

    fn end(&mut self, request: usize, ending: Ending, member: Option<usize>) {
        let (handle, members) = self.handles.get(request).cloned().unwrap_or_else(never_issued);
        let chosen = member.map(|member| members[member % members.len()]);
        let call = |scheduler: &mut Scheduler| match (ending, chosen) {
            (Ending::Aborted, None) => scheduler.abort(handle),
            (Ending::Aborted, Some(sequence)) => scheduler.abort(sequence),
            (_, None) => scheduler.finish(handle),
            (_, Some(sequence)) => scheduler.finish(sequence),
        };
        let target = match chosen {
            None => Target::Request(request),
            Some(sequence) => Target::Sequence(self.number_of(sequence)),
        };
        let expected = self.model.end(target, ending);
        let found = [call(&mut self.core), call(&mut self.decider)];
        Self::agree("abort or finish", expected, found);
    }

    /// The model's number of a sequence; one never given where it is unknown.
    fn number_of(&self, sequence: SequenceId) -> usize {
        self.names.get(&sequence.raw()).copied().unwrap_or(self.sequences.len())
    }

    fn extend(&mut self, request: usize, tokens: &[i32], max_tokens: usize) {
        let handle = self.handle(request);
        let expected = self.model.extend(request, tokens, max_tokens);
        let found = [self.core.extend(handle, tokens, max_tokens), self.decider.extend(handle, tokens, max_tokens)];
        self.census
            .add(&format!("extend: {}", expected.map_or_else(|fault| format!("{fault:?}"), |()| "accepted".into())), 1);
        Self::agree("extend", expected, found);
    }

    fn next_turn(&mut self, sampled: &[i32], request: usize, tokens: &[i32], max_tokens: usize) {
        while !self.model.out_numbers().is_empty() {
            self.commit(sampled, Manner::Plain);
            self.compare();
        }
        let can_go_on = |request: &usize| self.model.clone().extend(*request, tokens, max_tokens).is_ok();
        let extended = (0..self.handles.len()).rev().find(can_go_on);
        if extended.is_none() {
            self.end(self.newest(request), Ending::Finished, None);
        }
        self.extend(extended.unwrap_or(self.newest(request)), tokens, max_tokens);
    }

    fn read(&self, request: usize) {
        let (handle, members) = self.handles.get(request).cloned().unwrap_or_else(never_issued);
        for &sequence in &members {
            let expected = self.model.tokens(self.number_of(sequence)).map(<[i32]>::to_vec);
            let found = self.core.tokens(sequence);
            assert_eq!(found.map_err(|error| bridge::fault(&error)), expected, "tokens");
        }
        let found = self.core.sequences(handle).map_err(|error| bridge::fault(&error));
        assert_eq!(found.map(<[SequenceId]>::to_vec), self.model.members(request).map(|_| members), "sequences");
    }

    pub fn read_all(&self) {
        for request in 0..self.handles.len() {
            self.read(request);
        }
    }

    // ------------------------------------------------------------------ pins

    fn pin(&mut self, tokens: &[i32], expires: Option<usize>) {
        let identity = bridge::identity(&Identity::default());
        let steps = expires.map(|steps| steps as u64);
        let expected = self.model.pin(tokens, &Identity::default(), expires);
        let decided = self.decider.pin(tokens, &identity, steps);
        match (self.core.pin(tokens, &identity, steps), expected) {
            (Ok(core), Ok(model)) => {
                assert_eq!(decided.expect("both"), core, "L13: handles");
                self.pins.push((model, core));
            }
            (found, expected) => {
                assert!(decided.is_err(), "L13");
                assert_eq!(found.map(drop).map_err(|error| bridge::fault(&error)), expected.map(drop), "pin");
            }
        }
    }

    fn unpin(&mut self, pin: usize) {
        if let Some(&(model, core)) = self.pins.iter().rev().nth(pin) {
            let expected = self.model.unpin(model);
            let found = [self.core.unpin(core), self.decider.unpin(core)];
            self.census.add(if expected.is_ok() { "pin released" } else { "pin stale" }, 1);
            Self::agree("unpin", expected, found);
        }
    }

    pub fn unpin_all(&mut self) {
        for pin in 0..self.pins.len() {
            self.unpin(pin);
        }
    }
}

fn config(world: &World, hash_bits: i64) -> SchedulerConfig {
    SchedulerConfig {
        cache: CacheConfig {
            block_size: world.block_size as i64,
            prefix_caching: world.prefix_caching,
            dedupe: world.dedupe,
            reserve_null_block: world.null_block,
            hash_bits,
            ..CacheConfig::new(world.num_blocks as i64)
        },
        max_num_seqs: world.max_num_seqs as i64,
        max_num_batched_tokens: world.max_num_batched_tokens as i64,
        max_model_len: world.max_model_len as i64,
        max_partial_prefills: world.max_partial_prefills as i64,
        long_prefill_threshold: world.long_prefill_threshold as i64,
        watermark: world.watermark,
        batching: world.batching,
        policy: world.policy,
        aging: world.aging,
        victim: world.victim,
        reserve: world.reserve,
        inflight_steps: world.inflight_steps as i64,
        ..SchedulerConfig::new(world.num_blocks as i64)
    }
}

fn never_issued_request() -> RequestId {
    RequestId::from_raw((1 << 60) | 0xD_BBA0).expect("a request's tag")
}

fn never_issued() -> (RequestId, Vec<SequenceId>) {
    let sequence = SequenceId::from_raw((2 << 60) | 0xD_BBA0).expect("a sequence's tag");
    (never_issued_request(), vec![sequence])
}
