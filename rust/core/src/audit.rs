//! Checks the laws of the design on the whole state. It changes nothing and is always compiled in.
//!
//! Everything is recounted from the tables and compared with what the cache keeps. O(state).

use std::collections::BTreeMap;

use crate::cache::Cache;
use crate::error::StateError;
use crate::ids::BlockId;
use crate::slot::State;
use crate::table::Table;

/// One sequence's claim on the cache.
#[derive(Debug)]
pub(crate) struct Holder<'a> {
    pub(crate) table: &'a Table,
    /// The first entry that its next step may write, if it may write at all.
    pub(crate) writes_from: Option<usize>,
    /// Its computed tokens, where it keeps them and publishes.
    pub(crate) tokens: Option<&'a [i32]>,
}

/// Checks L1 to L7 of `cache`, whose tables are those of `holders`, and whose blocks `pinned` names are pinned, each once.
///
/// # Errors
///
/// [`StateError`] with the number of the first law found broken.
pub(crate) fn check(cache: &Cache, holders: &[Holder<'_>], pinned: &[BlockId]) -> Result<(), StateError> {
    check_states(cache)?;
    let entries = check_counts(cache, holders, pinned)?;
    check_writers(cache, holders, &entries)?;
    check_findable(cache)?;
    check_contents(cache, holders)?;
    check_order(cache)
}

fn check_states(cache: &Cache) -> Result<(), StateError> {
    let pool = cache.pool();
    let (returned, fresh) = pool.blank().parts();
    let mut seen = vec![false; fresh.end];
    let listed = returned.iter().map(|&block| (block, State::Blank));
    let listed = listed.chain(pool.recency().iter().map(|block| (block, State::Cached)));
    let listed = listed.chain(pool.fences().iter().map(|(_, block)| (block, State::Fenced)));
    let mut num_listed = 0;
    for (block, expected) in listed {
        num_listed += 1;
        if std::mem::replace(&mut seen[block.index()], true) {
            return Err(StateError::law(1, format!("block {} is listed twice", block.get())));
        }
        let state = pool.state(block);
        if state != expected {
            let text = format!("block {} is listed as {expected:?} and is {state:?}", block.get());
            return Err(StateError::law(1, text));
        }
    }
    for index in fresh.clone().filter(|&index| !seen[index]) {
        let state = pool.state(BlockId::new(index));
        if !matches!(state, State::Held { .. }) {
            return Err(StateError::law(1, format!("block {index} is {state:?} and listed nowhere")));
        }
    }
    if fresh.len() - num_listed != pool.num_held() {
        return Err(StateError::law(1, "the states do not add up to the pool"));
    }
    Ok(())
}

type Entries = BTreeMap<BlockId, u32>;

fn check_counts(cache: &Cache, holders: &[Holder<'_>], pinned: &[BlockId]) -> Result<Entries, StateError> {
    let mut entries = Entries::new();
    for block in holders.iter().flat_map(|holder| holder.table.blocks()) {
        *entries.entry(*block).or_default() += 1;
    }
    let mut counts = entries.clone();
    let twins = holders.iter().flat_map(|holder| holder.table.twins()).map(|&(_, twin)| twin);
    for block in cache.copies().sources().chain(pinned.iter().copied()).chain(twins) {
        *counts.entry(block).or_default() += 1;
    }
    let slots = cache.pool().slots();
    for (&block, &count) in &counts {
        if slots.count(block) != count {
            let text = format!("block {} has {count} holders and counts {}", block.get(), slots.count(block));
            return Err(StateError::law(2, text));
        }
    }
    if counts.len() != cache.pool().num_held() {
        let text = format!("{} blocks are held by somebody, {} count as held", counts.len(), cache.pool().num_held());
        return Err(StateError::law(2, text));
    }
    Ok(entries)
}

fn check_writers(cache: &Cache, holders: &[Holder<'_>], entries: &Entries) -> Result<(), StateError> {
    for holder in holders {
        let Some(from) = holder.writes_from else {
            continue;
        };
        for block in holder.table.blocks().iter().skip(from) {
            let named = entries.get(block).copied().unwrap_or(0);
            let findable = matches!(cache.pool().state(*block), State::Held { published: true, .. });
            if named != 1 || findable {
                let text = format!("block {} may be written, findable: {findable}, named {named} times", block.get());
                return Err(StateError::law(3, text));
            }
        }
    }
    Ok(())
}

fn check_findable(cache: &Cache) -> Result<(), StateError> {
    let (_, fresh) = cache.pool().blank().parts();
    let is_findable = |&block: &BlockId| cache.pool().state(block).is_findable();
    let published: Vec<BlockId> = fresh.map(BlockId::new).filter(is_findable).collect();
    cache.prefix().check(&published)
}

/// A published block in a table holds exactly the tokens that the sequence has there (L5).
fn check_contents(cache: &Cache, holders: &[Holder<'_>]) -> Result<(), StateError> {
    for holder in holders {
        let Some(tokens) = holder.tokens else {
            continue;
        };
        for (index, part) in tokens.chunks_exact(cache.block_size()).enumerate() {
            let block = holder.table.canonical(index);
            let published = matches!(cache.pool().state(block), State::Held { published: true, .. });
            if !published {
                return Err(StateError::law(4, format!("block {} is full and not published", block.get())));
            }
            if cache.prefix().tokens(block) != part {
                return Err(StateError::law(5, format!("block {} holds other tokens than its sequence", block.get())));
            }
        }
    }
    Ok(())
}

/// Children stand before their parents in the order of eviction (L6), and fences wait for open steps (L7).
///
/// A copy may hold a child whose parent is cached already. The parent is guarded then by a step at least as new as the
/// copy's, whose end puts the child before it; or the copy was not taken, and its cached target, a child as well, goes
/// first and puts the child before it.
fn check_order(cache: &Cache) -> Result<(), StateError> {
    let pool = cache.pool();
    let (_, fresh) = pool.blank().parts();
    // By block; every cached one was given out before.
    let mut places = vec![None; fresh.end];
    pool.recency().iter().enumerate().for_each(|(at, block)| places[block.index()] = Some(at));
    let mut targets = BTreeMap::<BlockId, usize>::new();
    for op in cache.copies().owed() {
        if let Some(place) = places[op.dst.index()] {
            targets.entry(op.src).and_modify(|first| *first = place.min(*first)).or_insert(place);
        }
    }
    for block in fresh.map(BlockId::new) {
        let place = match pool.state(block) {
            State::Cached => places[block.index()],
            State::Held { published: true, .. } => None,
            _ => continue,
        };
        let Some(parent) = cache.prefix().parent(block) else {
            continue;
        };
        let Some(parent_place) = places[parent.index()] else {
            continue;
        };
        let leaves_first = match place {
            Some(place) => place < parent_place,
            None => {
                parent_place >= pool.recency().evictable()
                    || targets.get(&block).is_some_and(|&target| target < parent_place)
            }
        };
        if !leaves_first {
            let text = format!("block {} would be evicted before its child {}", parent.get(), block.get());
            return Err(StateError::law(6, text));
        }
    }
    match pool.fences().iter().find(|&(step, _)| !pool.fences().is_open(step)) {
        Some((step, block)) => {
            let text = format!("block {} waits for step {step}, which is not open", block.get());
            Err(StateError::law(7, text))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::CacheConfig;
    use crate::identity::Identity;
    use crate::prefix::Link;

    const TOKENS: [i32; 4] = [1, 2, 3, 4];

    /// Two published blocks of two tokens, the second below the first, and one block to be written.
    fn cache() -> (Cache, Table) {
        let config = CacheConfig { block_size: 2, ..CacheConfig::new(8) };
        let geometry = config.check().unwrap_or_else(|error| unreachable!("{error}"));
        let mut cache = Cache::new(geometry).unwrap_or_else(|error| unreachable!("{error}"));
        let (mut table, identity, mut chain) = (Table::default(), Identity::default(), Vec::new());
        cache.grow(&mut table, 3);
        cache.prefix().extend_chain(&mut chain, &TOKENS, &identity);
        for (block, &hash) in chain.iter().enumerate() {
            let key = identity.key_of(block, 2);
            let link = Link { hash, tokens: &TOKENS[block * 2..][..2], key: &key };
            cache.publish(&mut table, block, link, &identity);
        }
        (cache, table)
    }

    fn law_of_all(cache: &Cache, holders: &[Holder<'_>]) -> Option<u8> {
        check(cache, holders, &[]).err().and_then(|error| error.law)
    }

    fn law_of(cache: &Cache, holder: Holder<'_>) -> Option<u8> {
        law_of_all(cache, &[holder])
    }

    #[test]
    fn sound_state_passes() {
        let (cache, table) = cache();
        assert_eq!(law_of(&cache, Holder { table: &table, writes_from: Some(2), tokens: Some(&TOKENS) }), None);
    }

    #[test]
    fn block_in_two_states_breaks_l1() {
        let (mut cache, table) = cache();
        cache.pool_mut().push_blank(table.blocks()[2]);
        assert_eq!(law_of(&cache, Holder { table: &table, writes_from: None, tokens: None }), Some(1));
    }

    #[test]
    fn wrong_count_breaks_l2() {
        let (mut cache, table) = cache();
        cache.pool_mut().retain(table.blocks()[1]);
        assert_eq!(law_of(&cache, Holder { table: &table, writes_from: None, tokens: None }), Some(2));
        assert_eq!(law_of_all(&self::cache().0, &[]), Some(2), "held by nobody");
    }

    #[test]
    fn findable_or_shared_block_that_may_be_written_breaks_l3() {
        let (mut cache, table) = cache();
        assert_eq!(law_of(&cache, Holder { table: &table, writes_from: Some(1), tokens: None }), Some(3));
        let other = cache.share(&table);
        let holders = [&table, &other].map(|table| Holder { table, writes_from: Some(2), tokens: None });
        assert_eq!(law_of_all(&cache, &holders), Some(3));
    }

    #[test]
    fn published_block_that_is_not_filed_breaks_l4() {
        let (mut cache, table) = cache();
        cache.pool_mut().publish(table.blocks()[2]);
        assert_eq!(law_of(&cache, Holder { table: &table, writes_from: None, tokens: None }), Some(4));
    }

    #[test]
    fn full_block_that_was_not_published_breaks_l4() {
        let (cache, table) = cache();
        let tokens = [1, 2, 3, 4, 5, 6];
        assert_eq!(law_of(&cache, Holder { table: &table, writes_from: None, tokens: Some(&tokens) }), Some(4));
    }

    #[test]
    fn block_of_other_tokens_breaks_l5() {
        let (cache, table) = cache();
        assert_eq!(law_of(&cache, Holder { table: &table, writes_from: None, tokens: Some(&[1, 2, 3, 9]) }), Some(5));
    }

    #[test]
    fn parent_that_would_go_before_its_child_breaks_l6() {
        let (mut cache, mut table) = cache();
        cache.shrink(&mut table, 2);
        let [first, second] = [table.blocks()[0], table.blocks()[1]];
        cache.pool_mut().release(first);
        cache.pool_mut().release(second);
        assert_eq!(law_of_all(&cache, &[]), Some(6));
    }

    #[test]
    fn fence_of_a_step_that_is_over_breaks_l7() {
        let (mut cache, mut table) = cache();
        let step = cache.begin_step();
        cache.shrink(&mut table, 2);
        assert_eq!(law_of(&cache, Holder { table: &table, writes_from: None, tokens: None }), None);
        cache.pool_mut().forget_step(step);
        assert_eq!(law_of(&cache, Holder { table: &table, writes_from: None, tokens: None }), Some(7));
    }
}
