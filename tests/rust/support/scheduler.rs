//! The scheduler, naively: requests, rows, plans and outcomes over a pool of blocks.
//!
//! One plan out at a time, so that no block is ever fenced or guarded here: whatever is freed
//! inside `step` is freed while no plan is out, and a commit ends its own step first.

use std::collections::BTreeMap;

use octavo_core::{Batching, Policy, Reserve, Victim};

use super::cache::{Fault, check_tokens, slot};
use super::names::{Identity, name_of};
use super::picture::{self, Shown};
use super::pool::Pool;

#[derive(Clone, Debug)]
pub struct World {
    pub num_blocks: usize,
    pub block_size: usize,
    pub max_num_seqs: usize,
    pub max_num_batched_tokens: usize,
    pub max_model_len: usize,
    pub max_partial_prefills: usize,
    pub long_prefill_threshold: usize,
    pub watermark: f64,
    pub prefix_caching: bool,
    pub batching: Batching,
    pub policy: Policy,
    pub aging: f64,
    pub victim: Victim,
    pub reserve: Reserve,
}

#[derive(Clone, Debug)]
pub struct Submitted {
    pub prompt: Vec<i32>,
    pub max_tokens: usize,
    pub min_tokens: usize,
    pub stop_token_ids: Vec<i32>,
    pub arrival: Option<f64>,
    /// Extra keys as given, the adapter's among them.
    pub identity: Identity,
    pub use_cache: bool,
    pub priority: i64,
    pub deadline: Option<f64>,
    pub key: Option<f64>,
    pub ready: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Stop,
    Length,
    Capacity,
    Aborted,
    Finished,
}

/// A plan; sequences are named by the number of their request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelPlan {
    pub number: u64,
    pub seqs: Vec<usize>,
    pub rows: Vec<i32>,
    pub num_decodes: usize,
    pub num_padded: usize,
    pub num_tokens: Vec<i32>,
    pub query_start: Vec<i32>,
    pub token_ids: Vec<i32>,
    pub positions: Vec<i32>,
    pub slot_mapping: Vec<i64>,
    pub seq_lens: Vec<i32>,
    pub sample: Vec<i32>,
    pub sample_seqs: Vec<usize>,
    pub sample_indptr: Vec<i32>,
    pub table_changes: Vec<[i32; 4]>,
    pub admitted: Vec<usize>,
    pub resumed: Vec<usize>,
    pub preempted: Vec<usize>,
    pub ended: Vec<usize>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelOutcome {
    pub seqs: Vec<usize>,
    pub indptr: Vec<i32>,
    pub tokens: Vec<i32>,
    pub finished: Vec<(usize, Ending)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub prefix_queries: usize,
    pub prefix_hits: usize,
    pub resumed_queries: usize,
    pub resumed_hits: usize,
    pub steps: usize,
    pub scheduled_tokens: usize,
    pub preemptions: usize,
    pub recomputed_tokens: usize,
}

#[derive(Clone, Debug)]
struct Request {
    submitted: Submitted,
    arrival: Option<f64>,
    /// Prompt and accepted outputs.
    known: Vec<i32>,
    emitted: usize,
    computed: usize,
    high_water: usize,
    table: Vec<i32>,
    row: Option<usize>,
    was_admitted: bool,
    is_ready: bool,
    /// What it knew when it was last put into the queue.
    queued_with: usize,
    end: Option<Ending>,
    is_stale: bool,
}

#[derive(Clone, Debug)]
struct End {
    request: usize,
    ending: Ending,
    is_applied: bool,
    is_reported: bool,
}

#[derive(Clone, Copy, Debug)]
struct Placed {
    request: usize,
    num_tokens: usize,
    /// Entries of the table before this plan gave it more; 0 where the row is new.
    old_entries: usize,
    is_decode: bool,
}

#[derive(Clone, Debug)]
struct Out {
    number: u64,
    placed: Vec<Placed>,
    samplers: Vec<usize>,
}

#[derive(Clone, Debug)]
pub struct SchedulerModel {
    pub world: World,
    pub pool: Pool,
    requests: Vec<Request>,
    rows: Vec<Option<usize>>,
    /// Rows of members of the static batch that are done.
    padding: Vec<usize>,
    now: Option<f64>,
    ends: Vec<End>,
    /// Ends that took effect since the last plan was returned.
    ended: Vec<usize>,
    /// Merges since the last plan was returned: request, index, block.
    merges: Vec<(usize, usize, i32)>,
    out: Option<Out>,
    plans: u64,
    pub block_tables: Vec<i32>,
    pub counters: Counters,
}

/// What one step has gathered so far.
struct Step {
    budget: usize,
    cap: usize,
    decoding: Vec<usize>,
    placed: Vec<Placed>,
    admitted: Vec<usize>,
    resumed: Vec<usize>,
    preempted: Vec<usize>,
}

impl SchedulerModel {
    pub fn new(world: &World) -> Self {
        let mut model = Self {
            world: world.clone(),
            pool: Pool::new(world.num_blocks, world.block_size),
            requests: Vec::new(),
            rows: vec![None; world.max_num_seqs],
            padding: Vec::new(),
            now: None,
            ends: Vec::new(),
            ended: Vec::new(),
            merges: Vec::new(),
            out: None,
            plans: 0,
            block_tables: Vec::new(),
            counters: Counters::default(),
        };
        model.block_tables = model.tables_now();
        model
    }

    pub fn table_width(&self) -> usize {
        self.world.max_model_len.div_ceil(self.world.block_size)
    }

    // ------------------------------------------------------------------ requests

    /// What `add` says to a request, without adding it.
    pub fn accepts(&self, submitted: &Submitted) -> Result<(), Fault> {
        let length = submitted.prompt.len();
        let refused = length == 0
            || length >= self.world.max_model_len
            || length.div_ceil(self.world.block_size) > self.world.num_blocks
            || submitted.min_tokens > submitted.max_tokens
            || submitted.priority.unsigned_abs() > 1 << 53
            || self.worst_blocks(submitted) > self.world.num_blocks
            || [submitted.arrival, submitted.deadline, submitted.key].iter().flatten().any(|time| !time.is_finite());
        if refused {
            return Err(Fault::Request);
        }
        check_tokens(&submitted.prompt)?;
        check_tokens(&submitted.stop_token_ids)
    }

    pub fn add(&mut self, submitted: &Submitted) -> Result<usize, Fault> {
        self.accepts(submitted)?;
        self.requests.push(Request {
            submitted: submitted.clone(),
            arrival: submitted.arrival.or(self.now),
            known: submitted.prompt.clone(),
            emitted: 0,
            computed: 0,
            high_water: 0,
            table: Vec::new(),
            row: None,
            was_admitted: false,
            is_ready: submitted.ready,
            queued_with: submitted.prompt.len(),
            end: None,
            is_stale: false,
        });
        Ok(self.requests.len() - 1)
    }

    fn live(&self, request: usize) -> Result<&Request, Fault> {
        match self.requests.get(request) {
            None => Err(Fault::Unknown),
            Some(request) if request.is_stale => Err(Fault::Stale),
            Some(request) => Ok(request),
        }
    }

    /// All of them or none; the index of the first that is refused.
    pub fn add_many(&mut self, all: &[Submitted]) -> Result<Vec<usize>, usize> {
        if let Some(index) = all.iter().position(|submitted| self.accepts(submitted).is_err()) {
            return Err(index);
        }
        Ok(all.iter().map(|submitted| self.add(submitted).expect("accepted")).collect())
    }

    pub fn set_ready(&mut self, request: usize) -> Result<(), Fault> {
        if self.live(request)?.end.is_none() {
            self.requests[request].is_ready = true;
        }
        Ok(())
    }

    pub fn clear(&mut self) -> bool {
        self.out.is_none() && self.pool.clear()
    }

    /// The blocks that a request may come to need, if they are reserved for that case.
    fn worst_blocks(&self, submitted: &Submitted) -> usize {
        match self.world.reserve {
            Reserve::OnDemand => 0,
            Reserve::WorstCase => {
                let most = submitted.prompt.len().saturating_add(submitted.max_tokens);
                most.min(self.world.max_model_len).div_ceil(self.world.block_size)
            }
        }
    }

    /// The blocks that an admission finds for all that a request knows, or may know.
    fn target(&self, request: usize) -> usize {
        let state = &self.requests[request];
        state.known.len().div_ceil(self.world.block_size).max(self.worst_blocks(&state.submitted))
    }

    pub fn end(&mut self, request: usize, ending: Ending) -> Result<(), Fault> {
        if self.live(request)?.end.is_none() {
            self.note_end(request, ending, false);
        }
        Ok(())
    }

    fn note_end(&mut self, request: usize, ending: Ending, is_applied: bool) {
        self.requests[request].end = Some(ending);
        self.ends.push(End { request, ending, is_applied, is_reported: false });
    }

    pub fn tokens(&self, request: usize) -> Result<&[i32], Fault> {
        Ok(&self.live(request)?.known)
    }

    pub fn has_work(&self) -> bool {
        self.out.is_some()
            || self.requests.iter().any(|request| request.end.is_none())
            || self.ends.iter().any(|end| !end.is_reported)
    }

    pub fn match_prefix(&self, tokens: &[i32], identity: &Identity) -> Result<usize, Fault> {
        check_tokens(tokens)?;
        if !self.world.prefix_caching {
            return Ok(0);
        }
        Ok(self.pool.hit(identity, tokens).len() * self.world.block_size)
    }

    // ------------------------------------------------------------------ numbers

    pub fn num_waiting(&self) -> usize {
        self.requests.iter().filter(|request| request.end.is_none() && request.row.is_none()).count()
    }

    /// Rows in use, whether or not their sequences have ended.
    pub fn num_running(&self) -> usize {
        self.rows.iter().flatten().count()
    }

    /// Rows of sequences that have not ended.
    pub fn num_unended(&self) -> usize {
        self.rows.iter().flatten().filter(|&&row| self.requests[row].end.is_none()).count()
    }

    pub fn num_alive(&self) -> usize {
        self.requests.iter().filter(|request| !request.is_stale).count()
    }

    pub fn num_finished(&self) -> usize {
        self.ends.len()
    }

    pub fn out_number(&self) -> Option<u64> {
        self.out.as_ref().map(|out| out.number)
    }

    /// How many tokens the commit of the plan that is out takes.
    pub fn num_samplers(&self) -> usize {
        self.out.as_ref().map_or(0, |out| out.samplers.len())
    }

    pub fn row_table(&self, row: usize) -> Option<&[i32]> {
        self.rows[row].map(|request| self.requests[request].table.as_slice())
    }

    // ------------------------------------------------------------------ orders

    fn class(&self, request: usize) -> f64 {
        let state = &self.requests[request];
        match (state.submitted.key, self.world.policy) {
            (Some(key), _) => key,
            (None, Policy::Priority) => state.submitted.priority as f64,
            (None, Policy::Sjf) => state.queued_with as f64,
            (None, Policy::Edf) => state.submitted.deadline.unwrap_or(f64::INFINITY),
            (None, _) => 0.0,
        }
    }

    fn order_key(&self, request: usize) -> (f64, f64, usize) {
        let arrival = self.requests[request].arrival.expect("given before any ordering");
        let class = self.class(request);
        let key = if class == f64::INFINITY { class } else { class + self.world.aging * arrival };
        (key, arrival, request)
    }

    fn in_policy_order(&self, mut requests: Vec<usize>) -> Vec<usize> {
        requests.sort_by(|&left, &right| self.order_key(left).partial_cmp(&self.order_key(right)).expect("finite"));
        requests
    }

    fn running(&self) -> Vec<usize> {
        self.in_policy_order(self.rows.iter().flatten().copied().collect())
    }

    fn waiting(&self) -> Vec<usize> {
        let waits = |state: &Request| state.is_ready && state.end.is_none() && state.row.is_none();
        self.in_policy_order((0..self.requests.len()).filter(|&request| waits(&self.requests[request])).collect())
    }

    fn is_decode(&self, request: usize) -> bool {
        let request = &self.requests[request];
        request.emitted >= 1 && request.known.len() - request.computed == 1
    }

    // ------------------------------------------------------------------ step

    pub fn step(&mut self, now: f64) -> Result<Option<ModelPlan>, Fault> {
        if !now.is_finite() || self.now.is_some_and(|before| now < before) {
            return Err(Fault::Request);
        }
        self.now = Some(now);
        for request in &mut self.requests {
            request.arrival.get_or_insert(now);
        }
        if self.out.is_some() {
            return Ok(None);
        }
        for end in self.ends.iter().filter(|end| end.is_reported) {
            self.requests[end.request].is_stale = true;
        }
        self.apply_ends();
        let mut step = self.begin();
        match self.world.batching {
            Batching::Chunked => {
                self.place_decodes(&mut step);
                self.place_prompts(&mut step);
                while self.admit_next(&mut step) {}
            }
            Batching::Mixed => {
                self.place_decodes(&mut step);
                while self.admit_next(&mut step) {}
            }
            Batching::Continuous => {
                if !self.admit_next(&mut step) {
                    self.place_decodes(&mut step);
                }
            }
            Batching::Static => {
                if self.num_running() + self.padding.len() == 0 {
                    while self.admit_next(&mut step) {}
                } else {
                    self.place_decodes(&mut step);
                }
            }
        }
        self.block_tables = self.tables_now();
        let has_unreported = self.ends.iter().any(|end| !end.is_reported);
        if step.placed.is_empty() && step.preempted.is_empty() && !has_unreported {
            return Ok(None);
        }
        Ok(Some(self.write_plan(step)))
    }

    fn apply_ends(&mut self) {
        for at in 0..self.ends.len() {
            if !self.ends[at].is_applied {
                self.ends[at].is_applied = true;
                let request = self.ends[at].request;
                if self.world.batching == Batching::Static {
                    self.padding.extend(self.requests[request].row);
                }
                self.leave_row(request);
                self.ended.push(request);
            }
        }
        if self.num_running() == 0 {
            self.padding.clear();
        }
    }

    /// Gives row and blocks back, the last block first; nothing where there is no row.
    fn leave_row(&mut self, request: usize) {
        if let Some(row) = self.requests[request].row.take() {
            self.rows[row] = None;
        }
        while let Some(block) = self.requests[request].table.pop() {
            self.pool.release(block);
        }
    }

    fn begin(&self) -> Step {
        let decoding: Vec<usize> = self.running().into_iter().filter(|&request| self.is_decode(request)).collect();
        let prompts = self.num_running() - decoding.len();
        let others_wait = prompts + self.waiting().len() >= 2;
        let threshold = self.world.long_prefill_threshold;
        Step {
            budget: self.world.max_num_batched_tokens,
            cap: if self.world.batching == Batching::Chunked && threshold > 0 && others_wait {
                threshold
            } else {
                usize::MAX
            },
            decoding,
            placed: Vec::new(),
            admitted: Vec::new(),
            resumed: Vec::new(),
            preempted: Vec::new(),
        }
    }

    fn place_decodes(&mut self, step: &mut Step) {
        for request in step.decoding.clone() {
            if self.requests[request].row.is_none() || step.budget == 0 {
                continue;
            }
            let needs_block = {
                let request = &self.requests[request];
                request.computed == request.table.len() * self.world.block_size
            };
            let mut is_lost = false;
            while needs_block && self.pool.available() == 0 && !is_lost {
                is_lost = self.make_room(step, request);
            }
            if !is_lost {
                self.place(step, request, 1, true);
            }
        }
    }

    fn place_prompts(&mut self, step: &mut Step) {
        let prompts: Vec<usize> =
            self.running().into_iter().filter(|request| !step.decoding.contains(request)).collect();
        for request in prompts {
            if self.requests[request].row.is_none() || step.budget == 0 {
                continue;
            }
            let mut is_lost = false;
            while self.room(request) == 0 && !is_lost {
                is_lost = self.make_room(step, request);
            }
            if !is_lost {
                let state = &self.requests[request];
                let chunk = (state.known.len() - state.computed).min(step.budget).min(step.cap).min(self.room(request));
                self.place(step, request, chunk, false);
            }
        }
    }

    /// How many more tokens of a running sequence could find a slot now.
    fn room(&self, request: usize) -> usize {
        let request = &self.requests[request];
        (request.table.len() + self.pool.available()) * self.world.block_size - request.computed
    }

    /// Who loses its blocks, of the requester and those behind it; of equals the later one.
    fn victim(&self, requester: usize) -> usize {
        let order = self.running();
        let place = order.iter().position(|&request| request == requester).expect("the requester runs");
        let mut victim = requester;
        for &other in &order[place..] {
            let is_no_better = match self.world.victim {
                Victim::Latest => true,
                Victim::LeastComputed => self.requests[other].computed <= self.requests[victim].computed,
                Victim::LowestClass => self.class(other) >= self.class(victim),
            };
            if is_no_better {
                victim = other;
            }
        }
        victim
    }

    /// Takes the blocks of a victim. True where that is the requester.
    fn make_room(&mut self, step: &mut Step, requester: usize) -> bool {
        let victim = self.victim(requester);
        if victim == requester && self.num_running() == 1 {
            self.end_for_capacity(requester);
        } else {
            self.preempt(step, victim);
        }
        victim == requester
    }

    fn end_for_capacity(&mut self, request: usize) {
        self.leave_row(request);
        self.note_end(request, Ending::Capacity, true);
        self.ended.push(request);
    }

    fn preempt(&mut self, step: &mut Step, victim: usize) {
        if let Some(at) = step.placed.iter().position(|placed| placed.request == victim) {
            step.budget += step.placed.remove(at).num_tokens;
        }
        step.decoding.retain(|&request| request != victim);
        self.leave_row(victim);
        self.requests[victim].computed = 0;
        step.preempted.push(victim);
        self.counters.preemptions += 1;
        let known = self.requests[victim].known.len();
        self.requests[victim].queued_with = known;
        if known.div_ceil(self.world.block_size) > self.world.num_blocks {
            self.end_for_capacity(victim);
        }
    }

    fn place(&mut self, step: &mut Step, request: usize, num_tokens: usize, is_decode: bool) {
        let old_entries = self.requests[request].table.len();
        self.grow(request, num_tokens);
        step.budget -= num_tokens;
        step.placed.push(Placed { request, num_tokens, old_entries, is_decode });
    }

    fn grow(&mut self, request: usize, num_tokens: usize) {
        let blocks = (self.requests[request].computed + num_tokens).div_ceil(self.world.block_size);
        while self.requests[request].table.len() < blocks {
            let (block, _) = self.pool.allocate();
            self.requests[request].table.push(block);
        }
    }

    /// Admits the head of the queue; false where it has to wait.
    fn admit_next(&mut self, step: &mut Step) -> bool {
        let Some(&head) = self.waiting().first() else { return false };
        let hit = self.hit(head);
        if step.budget == 0 || self.first_chunk(step, head, hit.len()).is_none() {
            return false;
        }
        if !self.fits(step, head, &hit, &[]) {
            let victims = self.strict_victims(step, head, &hit);
            for &victim in &victims {
                self.preempt(step, victim);
            }
            if victims.is_empty() {
                return false;
            }
            assert!(hit == self.hit(head) && self.fits(step, head, &hit, &[]), "whoever was preempted made room");
        }
        let chunk = self.first_chunk(step, head, hit.len()).expect("a larger budget takes no less");
        self.seat(step, head, hit);
        self.grow(head, chunk);
        if self.world.reserve == Reserve::WorstCase {
            while self.requests[head].table.len() < self.target(head) {
                let (block, _) = self.pool.allocate();
                self.requests[head].table.push(block);
            }
        }
        step.budget -= chunk;
        step.placed.push(Placed { request: head, num_tokens: chunk, old_entries: 0, is_decode: false });
        true
    }

    fn hit(&self, candidate: usize) -> Vec<i32> {
        let state = &self.requests[candidate];
        if self.world.prefix_caching && state.submitted.use_cache {
            self.pool.hit(&state.submitted.identity, &state.known)
        } else {
            Vec::new()
        }
    }

    /// How much of a candidate the step would compute; none where that is too little.
    fn first_chunk(&self, step: &Step, candidate: usize, hit: usize) -> Option<usize> {
        let left = self.requests[candidate].known.len() - hit * self.world.block_size;
        let chunk = left.min(step.budget).min(step.cap);
        let incomplete = self.prompts(step).into_iter().filter(|&request| !self.completes(step, request)).count();
        let may_stay_incomplete =
            self.world.batching == Batching::Chunked && incomplete < self.world.max_partial_prefills;
        (chunk == left || may_stay_incomplete).then_some(chunk)
    }

    fn prompts(&self, step: &Step) -> Vec<usize> {
        self.running().into_iter().filter(|request| !step.decoding.contains(request)).collect()
    }

    fn free_row(&self) -> Option<usize> {
        (0..self.rows.len()).find(|row| self.rows[*row].is_none() && !self.padding.contains(row))
    }

    /// Whether there is a row and room for all of a candidate, once some are gone.
    fn fits(&self, step: &Step, candidate: usize, hit: &[i32], gone: &[usize]) -> bool {
        let dropped: Vec<i32> = gone.iter().flat_map(|&request| self.requests[request].table.clone()).collect();
        let count_then = |block: i32| self.pool.count(block) - dropped.iter().filter(|&&other| other == block).count();
        let mut freed: Vec<i32> = dropped.iter().copied().filter(|&block| count_then(block) == 0).collect();
        freed.sort_unstable();
        freed.dedup();
        let claimed = hit.iter().filter(|&&block| count_then(block) == 0).count();
        let prompts = self.prompts(step).into_iter().filter(|request| !gone.contains(request));
        let lack: usize = prompts.map(|request| self.target(request) - self.requests[request].table.len()).sum();
        let kept = if self.num_running() > gone.len() {
            (self.world.watermark * self.world.num_blocks as f64).floor() as usize
        } else {
            0
        };
        let needed = self.target(candidate) - hit.len() + lack + kept + claimed;
        (self.free_row().is_some() || !gone.is_empty()) && needed <= self.pool.available() + freed.len()
    }

    /// As few of strictly worse classes as it takes, the last in order first; nobody if all do not suffice.
    fn strict_victims(&self, step: &Step, candidate: usize, hit: &[i32]) -> Vec<usize> {
        let is_strict = matches!(self.world.policy, Policy::Priority | Policy::Edf);
        let mut victims = Vec::new();
        for request in self.running().into_iter().rev().filter(|_| is_strict) {
            let is_new = step.admitted.contains(&request) || step.resumed.contains(&request);
            if !is_new && self.class(request) > self.class(candidate) {
                victims.push(request);
                if self.fits(step, candidate, hit, &victims) {
                    return victims;
                }
            }
        }
        Vec::new()
    }

    /// Gives a candidate a row and its hit, and counts that.
    fn seat(&mut self, step: &mut Step, head: usize, hit: Vec<i32>) {
        let row = self.free_row().expect("a row is free");
        for &block in &hit {
            self.pool.retain(block);
        }
        let state = &mut self.requests[head];
        let (queries, hits) = (state.known.len(), hit.len() * self.world.block_size);
        let counts = self.world.prefix_caching && state.submitted.use_cache;
        let was_admitted = std::mem::replace(&mut state.was_admitted, true);
        state.computed = hits;
        state.table = hit;
        state.row = Some(row);
        self.rows[row] = Some(head);
        let counters = &mut self.counters;
        match (was_admitted, counts) {
            (false, true) => {
                counters.prefix_queries += queries;
                counters.prefix_hits += hits;
            }
            (true, true) => {
                counters.resumed_queries += queries;
                counters.resumed_hits += hits;
            }
            (_, false) => {}
        }
        if was_admitted { &mut step.resumed } else { &mut step.admitted }.push(head);
    }

    /// Whether the step computes all that is known of a running sequence.
    fn completes(&self, step: &Step, request: usize) -> bool {
        let state = &self.requests[request];
        step.placed
            .iter()
            .any(|placed| placed.request == request && state.computed + placed.num_tokens == state.known.len())
    }

    // ------------------------------------------------------------------ plan

    fn write_plan(&mut self, step: Step) -> ModelPlan {
        let mut plan = ModelPlan {
            number: self.plans,
            num_decodes: step.placed.iter().filter(|placed| placed.is_decode).count(),
            num_padded: if step.placed.iter().any(|placed| placed.is_decode) { self.padding.len() } else { 0 },
            query_start: vec![0],
            sample_indptr: vec![0],
            table_changes: self.changes(&step),
            admitted: step.admitted,
            resumed: step.resumed,
            preempted: step.preempted,
            ended: std::mem::take(&mut self.ended),
            ..ModelPlan::default()
        };
        for placed in &step.placed {
            self.write_row(&mut plan, placed);
        }
        self.merges.clear();
        self.plans += 1;
        self.counters.steps += 1;
        self.out = Some(Out { number: plan.number, placed: step.placed, samplers: plan.sample_seqs.clone() });
        plan
    }

    fn write_row(&self, plan: &mut ModelPlan, placed: &Placed) {
        let state = &self.requests[placed.request];
        let end = state.computed + placed.num_tokens;
        plan.seqs.push(placed.request);
        plan.rows.push(state.row.expect("placed rows run") as i32);
        plan.num_tokens.push(placed.num_tokens as i32);
        for position in state.computed..end {
            let block = state.table[position / self.world.block_size];
            plan.token_ids.push(state.known[position]);
            plan.positions.push(position as i32);
            plan.slot_mapping.push(slot(block, position, self.world.block_size));
        }
        plan.query_start.push(plan.token_ids.len() as i32);
        plan.seq_lens.push(end as i32);
        if end == state.known.len() && state.submitted.max_tokens > 0 {
            plan.sample.push(plan.token_ids.len() as i32 - 1);
            plan.sample_seqs.push(placed.request);
            plan.sample_indptr.push(plan.sample.len() as i32);
        }
    }

    fn changes(&self, step: &Step) -> Vec<[i32; 4]> {
        let mut changes = Vec::new();
        for placed in &step.placed {
            let state = &self.requests[placed.request];
            let row = state.row.expect("placed rows run") as i32;
            for index in placed.old_entries..state.table.len() {
                changes.push([0, row, index as i32, state.table[index]]);
            }
        }
        for (at, &(request, index, block)) in self.merges.iter().enumerate() {
            let is_last = !self.merges[at + 1..].iter().any(|&(later, place, _)| (later, place) == (request, index));
            let is_new = step.admitted.contains(&request) || step.resumed.contains(&request);
            if let Some(row) = self.requests[request].row
                && is_last
                && !is_new
            {
                changes.push([0, row as i32, index as i32, block]);
            }
        }
        changes
    }

    fn tables_now(&self) -> Vec<i32> {
        let width = self.table_width();
        let mut tables = vec![0; self.rows.len() * width];
        for (row, request) in self.rows.iter().enumerate() {
            if let Some(request) = request {
                let table = &self.requests[*request].table;
                tables[row * width..row * width + table.len()].copy_from_slice(table);
            }
        }
        tables
    }

    // ------------------------------------------------------------------ commit

    pub fn commit(&mut self, number: u64, tokens: &[i32], counts: Option<&[i32]>) -> Result<ModelOutcome, Fault> {
        let num_samplers = match &self.out {
            Some(out) if out.number == number => out.samplers.len(),
            _ => return Err(Fault::State),
        };
        let counts_are_ones =
            counts.is_none_or(|counts| counts.len() == num_samplers && counts.iter().all(|&count| count == 1));
        if tokens.len() != num_samplers || !counts_are_ones {
            return Err(Fault::Request);
        }
        check_tokens(tokens)?;
        let out = self.out.take().expect("checked above");
        let mut outcome = ModelOutcome { indptr: vec![0], ..ModelOutcome::default() };
        let mut sampled = tokens.iter().copied();
        for placed in &out.placed {
            self.counters.scheduled_tokens += placed.num_tokens;
            self.count_computed(placed);
            let is_sampler = out.samplers.contains(&placed.request);
            let token = if is_sampler { sampled.next() } else { None };
            self.accept(placed.request, token, &mut outcome);
        }
        for end in self.ends.iter_mut().filter(|end| !end.is_reported) {
            end.is_reported = true;
            outcome.finished.push((end.request, end.ending));
        }
        Ok(outcome)
    }

    fn count_computed(&mut self, placed: &Placed) {
        let block_size = self.world.block_size;
        let state = &mut self.requests[placed.request];
        let start = state.computed;
        state.computed += placed.num_tokens;
        let known_before = state.high_water.min(state.computed);
        self.counters.recomputed_tokens += known_before.saturating_sub(start);
        state.high_water = state.high_water.max(state.computed);
        if !self.world.prefix_caching || !state.submitted.use_cache {
            return;
        }
        let end = state.computed;
        for index in start / block_size..end / block_size {
            let state = &self.requests[placed.request];
            let own = state.table[index];
            let name = name_of(&state.submitted.identity, &state.known, index, block_size);
            if let Some(canonical) = self.pool.publish_or_merge(own, name) {
                self.requests[placed.request].table[index] = canonical;
                self.pool.release(own);
                self.merges.push((placed.request, index, canonical));
            }
        }
    }

    fn accept(&mut self, request: usize, token: Option<i32>, outcome: &mut ModelOutcome) {
        let max_model_len = self.world.max_model_len;
        let state = &mut self.requests[request];
        if state.end.is_some() {
            return;
        }
        let limits = &state.submitted;
        if let Some(token) = token {
            state.known.push(token);
            state.emitted += 1;
            outcome.seqs.push(request);
            outcome.tokens.push(token);
            outcome.indptr.push(outcome.tokens.len() as i32);
            let stops = limits.stop_token_ids.contains(&token);
            if stops && state.emitted >= limits.min_tokens {
                self.note_end(request, Ending::Stop, false);
            } else if state.emitted == limits.max_tokens || state.known.len() == max_model_len {
                self.note_end(request, Ending::Length, false);
            }
        } else if limits.max_tokens == 0 && state.computed == state.known.len() {
            self.note_end(request, Ending::Length, false);
        }
    }

    // ------------------------------------------------------------------ pictures and laws

    pub fn draw(&self) -> String {
        let shown: Vec<Shown> = self
            .rows
            .iter()
            .flatten()
            .map(|&request| {
                let state = &self.requests[request];
                Shown { table: state.table.clone(), num_tokens: state.computed }
            })
            .collect();
        picture::draw(&self.pool, &shown)
    }

    /// The model's own laws.
    pub fn check(&self) {
        let mut uses: BTreeMap<i32, usize> = BTreeMap::new();
        for state in &self.requests {
            assert!(state.row.is_some() || state.table.is_empty(), "only rows hold blocks");
            for &block in &state.table {
                *uses.entry(block).or_insert(0) += 1;
            }
        }
        self.pool.check(&uses);
        let tally = self.pool.tally();
        assert_eq!((tally.fenced, tally.guarded), (0, 0), "one plan out at a time");
    }
}
