//! Refusals of the scheduler: its configuration and its calls.

use std::fmt::Write as _;

use octavo_core::{
    Batching, CacheConfig, Error, Outcome, Policy, Preemption, Request, RequestError, RequestId, Scheduler,
    SchedulerConfig, SequenceId, StepPlan,
};

fn config() -> SchedulerConfig {
    SchedulerConfig {
        cache: CacheConfig { block_size: 2, ..CacheConfig::new(6) },
        max_num_seqs: 2,
        max_num_batched_tokens: 6,
        max_model_len: 16,
        ..SchedulerConfig::new(6)
    }
}

fn refused_field(config: &SchedulerConfig) -> (&'static str, String) {
    match Scheduler::new(config) {
        Err(Error::Config(error)) => (error.field, error.range),
        Err(error) => panic!("another error: {error}"),
        Ok(_) => panic!("accepted"),
    }
}

#[test]
fn test_config_numbers_out_of_range_are_named() {
    let cases = [
        ("max_num_seqs", SchedulerConfig { max_num_seqs: 0, ..config() }),
        ("max_num_seqs", SchedulerConfig { max_num_seqs: 65_537, ..config() }),
        ("max_num_batched_tokens", SchedulerConfig { max_num_batched_tokens: 0, ..config() }),
        ("max_model_len", SchedulerConfig { max_model_len: 1, ..config() }),
        ("max_model_len", SchedulerConfig { max_model_len: 1 << 31, ..config() }),
        ("max_partial_prefills", SchedulerConfig { max_partial_prefills: 0, ..config() }),
        ("long_prefill_threshold", SchedulerConfig { long_prefill_threshold: -1, ..config() }),
        ("watermark", SchedulerConfig { watermark: 1.0, ..config() }),
        ("watermark", SchedulerConfig { watermark: -0.1, ..config() }),
        ("watermark", SchedulerConfig { watermark: f64::NAN, ..config() }),
        ("aging", SchedulerConfig { aging: -0.5, ..config() }),
        ("aging", SchedulerConfig { aging: f64::INFINITY, ..config() }),
        ("inflight_steps", SchedulerConfig { inflight_steps: 0, ..config() }),
        ("inflight_steps", SchedulerConfig { inflight_steps: 5, ..config() }),
        (
            "max_num_batched_tokens",
            SchedulerConfig { batching: Batching::Mixed, max_num_batched_tokens: 2, ..config() },
        ),
        ("num_blocks", SchedulerConfig { cache: CacheConfig::new(0), ..config() }),
    ];
    for (field, config) in cases {
        assert_eq!(refused_field(&config).0, field);
    }
}

#[test]
fn test_config_that_comes_later_is_refused_by_name() {
    let cache = |cache: CacheConfig| SchedulerConfig { cache, ..config() };
    let cases = [
        ("policy", SchedulerConfig { policy: Policy::Lpm, ..config() }),
        ("policy", SchedulerConfig { policy: Policy::Fair, ..config() }),
        ("bypass_limit", SchedulerConfig { bypass_limit: 1, ..config() }),
        ("preemption", SchedulerConfig { preemption: Preemption::Swap, ..config() }),
        ("num_lookahead", SchedulerConfig { num_lookahead: 1, ..config() }),
        ("max_adapters_per_step", SchedulerConfig { max_adapters_per_step: 1, ..config() }),
        ("events", cache(CacheConfig { events: true, ..config().cache })),
        ("host_blocks", cache(CacheConfig { host_blocks: 1, ..config().cache })),
    ];
    for (field, config) in cases {
        let (named, range) = refused_field(&config);
        assert_eq!(named, field);
        assert!(range.contains("later"), "{field}: {range}");
    }
}

/// A scheduler in a busy state: one ended, one running, one waiting, a plan out.
struct Busy {
    sched: Scheduler,
    gone: (RequestId, SequenceId),
    running: RequestId,
    waiting: RequestId,
    number: u64,
    num_samplers: usize,
}

fn add(sched: &mut Scheduler, prompt: &[i32], max_tokens: usize) -> (RequestId, SequenceId) {
    let request = sched.add(Request::new(prompt.to_vec(), max_tokens)).unwrap();
    (request, sched.sequences(request).unwrap()[0])
}

fn busy() -> Busy {
    let mut sched = Scheduler::new(&config()).unwrap();
    let mut plan = StepPlan::default();
    let mut outcome = Outcome::default();
    let gone = add(&mut sched, &[9, 9], 1);
    assert!(sched.step(1.0, &mut plan).unwrap());
    sched.commit(plan.number(), &[1], None, &mut outcome).unwrap();
    let running = add(&mut sched, &[1, 2, 3], 5).0;
    let waiting = add(&mut sched, &[4, 4, 4, 4, 4, 4, 4, 4, 4], 5).0;
    assert!(sched.step(2.0, &mut plan).unwrap());
    assert_eq!((plan.seqs().len(), plan.sample_seqs().len()), (1, 1));
    Busy { sched, gone, running, waiting, number: plan.number(), num_samplers: 1 }
}

impl Busy {
    fn snapshot(&self) -> String {
        let sched = &self.sched;
        let known = |request| {
            let seq = sched.sequences(request).unwrap()[0];
            sched.tokens(seq).unwrap().clone()
        };
        format!(
            "{:?} {:?} {:?} {} {:?} {}",
            known(self.running),
            known(self.waiting),
            sched.stats(),
            sched.draw(),
            sched.block_tables(0),
            sched.has_work()
        )
    }

    /// Runs to the end; everything that is planned and reported on the way.
    fn epilogue(mut self) -> String {
        let mut plan = StepPlan::default();
        let mut outcome = Outcome::default();
        let mut seen = String::new();
        self.sched.commit(self.number, &vec![5; self.num_samplers], None, &mut outcome).unwrap();
        let mut now = 2.0;
        while self.sched.has_work() {
            assert!(self.sched.step(now, &mut plan).unwrap());
            write!(seen, "{:?} {:?} ", plan.seqs(), plan.table_changes()).unwrap();
            let tokens = vec![6; plan.sample_seqs().len()];
            self.sched.commit(plan.number(), &tokens, None, &mut outcome).unwrap();
            writeln!(seen, "{:?} {:?}", outcome.seqs, outcome.finished).unwrap();
            self.sched.audit().unwrap();
            now += 1.0;
        }
        seen
    }
}

/// Calls `provoke` on a busy scheduler, twice; the state must be as if it had not been called.
fn refused<T>(provoke: impl Fn(&mut Busy) -> Result<T, Error>) -> Error {
    let mut state = busy();
    let before = state.snapshot();
    let Err(first) = provoke(&mut state) else { panic!("accepted") };
    let Err(second) = provoke(&mut state) else { panic!("accepted the second time") };
    assert_eq!(first.to_string(), second.to_string());
    assert_eq!(state.snapshot(), before, "after {first}");
    state.sched.audit().unwrap();
    assert_eq!(state.epilogue(), busy().epilogue(), "after {first}");
    first
}

fn request_error(error: Error) -> RequestError {
    match error {
        Error::Request(error) => error,
        other => panic!("another error: {other}"),
    }
}

fn assert_state_error(error: &Error) {
    assert!(matches!(error, Error::State(_)), "another error: {error}");
}

#[test]
fn test_add_refuses_by_name() {
    let good = || Request::new(vec![1, 2], 4);
    let cases = [
        ("prompt", Request::new(vec![], 1)),
        ("prompt", Request::new(vec![1; 16], 1)),
        ("prompt", Request::new(vec![1; 13], 1)),
        ("prompt", Request::new(vec![1, -1], 1)),
        ("n", Request { n: 3, ..good() }),
        ("n", Request { n: 0, ..good() }),
        ("key", Request { key: Some(f64::NAN), ..good() }),
        ("priority", Request { priority: (1 << 53) + 1, ..good() }),
        ("min_tokens", Request { min_tokens: 5, ..good() }),
        ("stop_token_ids", Request { stop_token_ids: vec![0, -7], ..good() }),
        ("arrival", Request { arrival: Some(f64::NAN), ..good() }),
        ("arrival", Request { arrival: Some(f64::INFINITY), ..good() }),
        ("deadline", Request { deadline: Some(f64::NAN), ..good() }),
        ("deadline", Request { deadline: Some(f64::NEG_INFINITY), ..good() }),
    ];
    for (argument, request) in cases {
        let error = request_error(refused(|state| state.sched.add(request.clone())));
        assert!(error.argument.starts_with(argument), "{argument}: {error}");
    }
}

#[test]
fn test_a_prompt_too_long_says_by_how_much() {
    let long = request_error(refused(|state| state.sched.add(Request::new(vec![1; 18], 1))));
    assert_eq!((long.limit, long.excess), (Some(15.0), Some(3.0)), "{long}");
    let wide = request_error(refused(|state| state.sched.add(Request::new(vec![1; 15], 1))));
    assert!(wide.limit.is_some() && wide.excess.is_some(), "8 blocks where there are 6: {wide}");
}

#[test]
fn test_the_longest_prompts_that_fit_are_accepted() {
    let mut sched = Scheduler::new(&config()).unwrap();
    assert!(sched.add(Request::new(vec![1; 12], usize::MAX)).is_ok());
    let short = SchedulerConfig { max_model_len: 5, ..config() };
    let mut sched = Scheduler::new(&short).unwrap();
    assert!(sched.add(Request::new(vec![1; 4], 0)).is_ok());
    assert!(sched.add(Request::new(vec![1; 5], 0)).is_err());
}

#[test]
fn test_time_that_is_not_finite_or_goes_back_is_refused() {
    let times = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1.999];
    for now in times {
        let mut plan = StepPlan::default();
        let error = refused(|state| state.sched.step(now, &mut StepPlan::default()));
        assert_eq!(request_error(error).argument, "now");
        let mut state = busy();
        assert!(state.sched.decide(now).is_err());
        assert!(!state.sched.step(2.0, &mut plan).unwrap(), "the same time again is fine");
    }
}

#[test]
fn test_a_step_behind_a_plan_still_takes_the_time() {
    let mut state = busy();
    assert!(!state.sched.step(8.0, &mut StepPlan::default()).unwrap());
    assert!(state.sched.step(7.0, &mut StepPlan::default()).is_err());
}

#[test]
fn test_commits_of_other_plans_are_refused() {
    let commit = |state: &mut Busy, number: u64, tokens: &[i32]| {
        state.sched.commit(number, tokens, None, &mut Outcome::default())
    };
    for offset in [-2, -1, 1, 1000] {
        let other = |state: &mut Busy| {
            let number = state.number.wrapping_add_signed(offset);
            commit(state, number, &[1])
        };
        assert_state_error(&refused(other));
    }
    let mut state = busy();
    let number = state.number;
    commit(&mut state, number, &[1]).unwrap();
    assert_state_error(&commit(&mut state, number, &[1]).unwrap_err());
    let mut fresh = Scheduler::new(&config()).unwrap();
    assert_state_error(&fresh.commit(0, &[], None, &mut Outcome::default()).unwrap_err());
}

#[test]
fn test_commits_with_wrong_arrays_are_refused() {
    let commit = |tokens: &'static [i32], counts: Option<&'static [i32]>| {
        request_error(refused(move |state| state.sched.commit(state.number, tokens, counts, &mut Outcome::default())))
    };
    assert!(commit(&[], None).argument.starts_with("tokens"));
    assert!(commit(&[1, 2], None).argument.starts_with("tokens"));
    assert!(commit(&[-1], None).argument.starts_with("tokens"));
    assert!(commit(&[1], Some(&[2])).argument.starts_with("counts"));
    assert!(commit(&[1], Some(&[0])).argument.starts_with("counts"));
    assert!(commit(&[1], Some(&[-1])).argument.starts_with("counts"));
    assert!(commit(&[1], Some(&[1, 1])).argument.starts_with("counts"));
    assert!(commit(&[1], Some(&[])).argument.starts_with("counts"));
}

#[test]
fn test_stale_and_unknown_handles_are_told_apart() {
    let stale = [
        refused(|state| state.sched.abort(state.gone.0)),
        refused(|state| state.sched.abort(state.gone.1)),
        refused(|state| state.sched.finish(state.gone.0)),
        refused(|state| state.sched.tokens(state.gone.1)),
        refused(|state| state.sched.sequences(state.gone.0).map(<[_]>::to_vec)),
    ];
    for error in stale {
        assert!(matches!(error, Error::StaleHandle { .. }), "{error}");
    }
    let request = RequestId::from_raw((1 << 60) | 0x3039).unwrap();
    let sequence = SequenceId::from_raw((2 << 60) | 0x3039).unwrap();
    let unknown = [
        refused(|state| state.sched.abort(request)),
        refused(|state| state.sched.finish(sequence)),
        refused(|state| state.sched.tokens(sequence)),
        refused(|state| state.sched.sequences(request).map(<[_]>::to_vec)),
    ];
    for error in unknown {
        assert!(matches!(error, Error::UnknownHandle { .. }), "{error}");
    }
}

#[test]
fn test_ending_what_has_ended_does_nothing() {
    let mut state = busy();
    state.sched.abort(state.waiting).unwrap();
    let before = state.snapshot();
    state.sched.abort(state.waiting).unwrap();
    state.sched.finish(state.waiting).unwrap();
    assert_eq!(state.snapshot(), before);
}

#[test]
fn test_tokens_stay_readable_until_the_step_after_the_report() {
    let mut sched = Scheduler::new(&config()).unwrap();
    let mut plan = StepPlan::default();
    let mut outcome = Outcome::default();
    let (request, seq) = add(&mut sched, &[1, 2], 1);
    assert!(sched.step(0.0, &mut plan).unwrap());
    sched.commit(0, &[3], None, &mut outcome).unwrap();
    assert_eq!(outcome.finished, [seq]);
    assert_eq!(sched.tokens(seq).unwrap(), [1, 2, 3]);
    sched.abort(request).unwrap();
    assert!(!sched.step(0.0, &mut plan).unwrap());
    assert!(matches!(sched.tokens(seq), Err(Error::StaleHandle { .. })));
    assert!(matches!(sched.abort(request), Err(Error::StaleHandle { .. })));
}
