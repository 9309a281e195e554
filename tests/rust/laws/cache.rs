//! L1–L7 and L13 on the allocator alone.

use octavo_core::{CacheConfig, ExtraKey, Identity, KvCache, Room, SequenceId};

fn cache(num_blocks: i64, block_size: i64) -> KvCache {
    KvCache::new(&CacheConfig { block_size, ..CacheConfig::new(num_blocks) }).unwrap()
}

/// Opens a sequence and computes all of `tokens`, whatever part of them was a hit.
fn computed(cache: &mut KvCache, tokens: &[i32]) -> SequenceId {
    computed_as(cache, tokens, &Identity::default())
}

fn computed_as(cache: &mut KvCache, tokens: &[i32], identity: &Identity) -> SequenceId {
    let seq = cache.open(tokens, identity).unwrap();
    let hit = cache.num_computed(seq).unwrap();
    assert_eq!(cache.reserve(seq, tokens.len()).unwrap(), Room::Granted);
    cache.advance(seq, &tokens[hit..]).unwrap();
    seq
}

fn table(cache: &KvCache, seq: SequenceId) -> Vec<i32> {
    cache.table(seq).unwrap().iter().map(|block| block.get()).collect()
}

fn hit(cache: &KvCache, tokens: &[i32]) -> usize {
    cache.match_prefix(tokens, &Identity::default()).unwrap()
}

fn salted(salt: &[u8]) -> Identity {
    Identity::new(salt, Vec::new())
}

fn keyed(kind: &str, value: &[u8]) -> Identity {
    Identity::new(b"", vec![ExtraKey::new(0, None, kind, value).unwrap()])
}

#[test]
fn test_l1_the_four_states_add_up() {
    let mut cache = cache(6, 2);
    let done = computed(&mut cache, &[1, 2, 3, 4]);
    cache.close(done).unwrap();
    let step = cache.begin_step();
    let running = computed(&mut cache, &[5]);
    let aborted = computed(&mut cache, &[6]);
    cache.close(aborted).unwrap();
    let stats = cache.stats();
    assert_eq!((stats.cached, stats.held, stats.fenced, stats.blank), (2, 1, 1, 2));
    assert_eq!(stats.available, 4);
    assert_eq!(table(&cache, running), [2]);
    cache.audit().unwrap();
    cache.end_step(step).unwrap();
    assert_eq!(cache.stats().blank, 3);
    cache.audit().unwrap();
}

#[test]
fn test_l1_available_counts_a_shared_block_once() {
    let mut cache = cache(4, 2);
    let first = computed(&mut cache, &[1, 2, 3, 4, 5]);
    let second = computed(&mut cache, &[1, 2, 3, 4]);
    assert_eq!(table(&cache, second)[0], table(&cache, first)[0]);
    cache.close(first).unwrap();
    cache.close(second).unwrap();
    let stats = cache.stats();
    assert_eq!((stats.cached, stats.blank, stats.available), (2, 2, 4));
}

#[test]
fn test_l2_a_second_close_is_an_error() {
    let mut cache = cache(2, 2);
    let first = computed(&mut cache, &[1, 2]);
    let second = cache.fork(first).unwrap();
    cache.close(first).unwrap();
    assert!(cache.close(first).is_err());
    assert_eq!(cache.stats().held, 1, "the fork still holds it");
    cache.close(second).unwrap();
    cache.audit().unwrap();
}

#[test]
fn test_l2_a_copy_holds_its_source_until_its_step_ends() {
    let mut cache = cache(4, 4);
    let parent = computed(&mut cache, &[1, 2]);
    let child = cache.fork(parent).unwrap();
    let step = cache.begin_step();
    assert_eq!(cache.reserve(child, 3).unwrap(), Room::Granted);
    assert_eq!(cache.take_ops().copies, [[0, 1, 2]]);
    cache.close(parent).unwrap();
    assert_eq!((cache.stats().held, cache.stats().fenced), (2, 0), "the copy reads block 0");
    cache.end_step(step).unwrap();
    assert_eq!((cache.stats().held, cache.stats().blank), (1, 3));
    cache.audit().unwrap();
}

#[test]
fn test_l2_a_copy_whose_target_goes_first_is_dropped() {
    let mut cache = cache(4, 4);
    let parent = computed(&mut cache, &[1, 2]);
    let child = cache.fork(parent).unwrap();
    assert_eq!(cache.reserve(child, 3).unwrap(), Room::Granted);
    cache.close(child).unwrap();
    assert!(cache.take_ops().copies.is_empty());
    cache.close(parent).unwrap();
    assert_eq!(cache.stats().blank, 4);
    assert_eq!(cache.stats().copies, 1, "it was made all the same");
}

#[test]
fn test_l3_a_shared_tail_is_copied_before_a_write() {
    let mut cache = cache(4, 4);
    let parent = computed(&mut cache, &[1, 2, 3, 4, 5]);
    let child = cache.fork(parent).unwrap();
    assert_eq!(table(&cache, child), [0, 1]);
    assert_eq!(cache.reserve(child, 6).unwrap(), Room::Granted);
    assert_eq!(table(&cache, child), [0, 2], "the full block stays shared");
    assert_eq!(cache.take_ops().copies, [[1, 2, 1]]);
    assert_eq!(cache.reserve(parent, 6).unwrap(), Room::Granted);
    assert_eq!(table(&cache, parent), [0, 1], "the last one writes in place");
    assert!(cache.take_ops().copies.is_empty());
    cache.audit().unwrap();
}

#[test]
fn test_l3_a_block_being_copied_is_not_written_below_the_copy() {
    let mut cache = cache(4, 4);
    let parent = computed(&mut cache, &[1, 2, 3]);
    let child = cache.fork(parent).unwrap();
    let step = cache.begin_step();
    assert_eq!(cache.reserve(child, 4).unwrap(), Room::Granted);
    assert_eq!(cache.take_ops().copies, [[0, 1, 3]]);
    cache.truncate(parent, 2).unwrap();
    assert_eq!(cache.reserve(parent, 3).unwrap(), Room::Granted);
    assert_eq!(cache.take_ops().copies, [[0, 2, 2]], "a write at 2 would change what is read");
    cache.end_step(step).unwrap();
    cache.audit().unwrap();
}

#[test]
fn test_l3_a_published_tail_of_one_holder_is_unpublished_and_written_in_place() {
    let mut cache = cache(4, 2);
    let seq = computed(&mut cache, &[1, 2, 3, 4]);
    cache.truncate(seq, 3).unwrap();
    assert_eq!(hit(&cache, &[1, 2, 3, 4, 0]), 4, "truncate never unpublishes");
    assert_eq!(cache.reserve(seq, 4).unwrap(), Room::Granted);
    assert_eq!(hit(&cache, &[1, 2, 3, 4, 0]), 2);
    assert_eq!(table(&cache, seq), [0, 1]);
    cache.advance(seq, &[9]).unwrap();
    assert_eq!(hit(&cache, &[1, 2, 3, 9, 0]), 4);
    cache.audit().unwrap();
}

#[test]
fn test_l3_a_published_tail_with_a_findable_child_is_copied() {
    let mut cache = cache(4, 2);
    let other = computed(&mut cache, &[1, 2, 3, 4]);
    let seq = cache.fork(other).unwrap();
    cache.close(other).unwrap();
    cache.truncate(seq, 1).unwrap();
    assert_eq!(cache.stats().cached, 1, "the second block, a child of the first");
    assert_eq!(cache.reserve(seq, 2).unwrap(), Room::Granted);
    assert_eq!(cache.take_ops().copies, [[0, 2, 1]]);
    assert_eq!(hit(&cache, &[1, 2, 3, 4, 0]), 4);
    cache.audit().unwrap();
}

#[test]
fn test_l4_a_block_is_found_once_its_last_token_is_computed() {
    let mut cache = cache(4, 2);
    let seq = cache.open(&[1, 2, 3, 4], &Identity::default()).unwrap();
    assert_eq!(cache.reserve(seq, 4).unwrap(), Room::Granted);
    assert_eq!(hit(&cache, &[1, 2, 3, 4, 5]), 0, "reserved is not computed");
    cache.advance(seq, &[1]).unwrap();
    assert_eq!(hit(&cache, &[1, 2, 3, 4, 5]), 0);
    cache.advance(seq, &[2, 3]).unwrap();
    assert_eq!(hit(&cache, &[1, 2, 3, 4, 5]), 2);
    cache.advance(seq, &[4]).unwrap();
    assert_eq!(hit(&cache, &[1, 2, 3, 4, 5]), 4);
}

#[test]
fn test_l4_a_block_given_away_is_not_found_any_more() {
    let mut cache = cache(1, 4);
    let first = computed(&mut cache, &[1, 2, 3, 4]);
    cache.close(first).unwrap();
    assert_eq!(hit(&cache, &[1, 2, 3, 4, 5]), 4);
    let second = cache.open(&[5, 6, 7, 8], &Identity::default()).unwrap();
    assert_eq!(cache.reserve(second, 1).unwrap(), Room::Granted);
    assert_eq!(hit(&cache, &[1, 2, 3, 4, 5]), 0, "gone in the call that gave it away");
    cache.advance(second, &[5]).unwrap();
    cache.close(second).unwrap();
    assert_eq!(hit(&cache, &[1, 2, 3, 4, 5]), 0);
    assert_eq!(cache.stats().blank, 1);
    assert_eq!(cache.stats().evicted_blocks, 1);
}

#[test]
fn test_l4_equal_blocks_are_merged_when_the_second_is_computed() {
    let mut cache = cache(4, 2);
    let first = cache.open(&[1, 2], &Identity::default()).unwrap();
    let second = cache.open(&[1, 2], &Identity::default()).unwrap();
    for seq in [first, second] {
        assert_eq!(cache.reserve(seq, 2).unwrap(), Room::Granted);
    }
    assert_eq!((table(&cache, first), table(&cache, second)), (vec![0], vec![1]));
    cache.advance(second, &[1, 2]).unwrap();
    cache.advance(first, &[1, 2]).unwrap();
    assert_eq!((table(&cache, first), table(&cache, second)), (vec![1], vec![1]));
    assert_eq!(cache.stats().merged_blocks, 1);
    assert_eq!(cache.stats().blank, 3);
    cache.audit().unwrap();
}

#[test]
fn test_l5_a_hash_may_collide_and_a_hit_may_not() {
    let config = CacheConfig { block_size: 1, hash_bits: 1, ..CacheConfig::new(64) };
    let mut cache = KvCache::new(&config).unwrap();
    let chains: Vec<Vec<i32>> = (0..20).map(|token| vec![token, token + 1]).collect();
    for chain in &chains {
        let seq = computed(&mut cache, chain);
        cache.close(seq).unwrap();
    }
    assert!(cache.stats().hash_collisions > 0, "20 chains in two hashes");
    for chain in &chains {
        assert_eq!(hit(&cache, &[chain[0], chain[1], 7]), 2);
        assert_eq!(hit(&cache, &[chain[0], chain[1] + 1, 7]), 1, "only the first block is equal");
    }
    cache.audit().unwrap();
}

#[test]
fn test_l5_the_same_tokens_after_another_history_are_no_hit() {
    let mut cache = cache(4, 2);
    computed(&mut cache, &[1, 2, 3, 4]);
    assert_eq!(hit(&cache, &[3, 4, 0]), 0);
    assert_eq!(hit(&cache, &[1, 1, 3, 4, 0]), 0);
}

#[test]
fn test_l5_salts_and_keys_do_not_meet() {
    let tokens = [1, 2, 3];
    let identities = [
        Identity::default(),
        salted(b"k"),
        keyed("adapter", b"k"),
        keyed("k", b""),
        keyed("kadapter", b""),
        keyed("k", b"adapter"),
        Identity::default().with_adapter(1),
    ];
    let mut cache = cache(16, 2);
    for identity in &identities {
        assert_eq!(cache.match_prefix(&tokens, identity).unwrap(), 0);
        computed_as(&mut cache, &tokens, identity);
    }
    for identity in &identities {
        assert_eq!(cache.match_prefix(&tokens, identity).unwrap(), 2);
    }
    assert_eq!(cache.stats().published_blocks, identities.len() as u64);
}

#[test]
fn test_l5_a_key_isolates_from_its_first_block_on() {
    let image = |value: &[u8]| Identity::new(b"", vec![ExtraKey::new(2, Some(4), "image", value).unwrap()]);
    let tokens = [1, 2, 9, 9, 3, 4, 5];
    let mut cache = cache(16, 2);
    computed_as(&mut cache, &tokens, &image(b"a"));
    assert_eq!(cache.match_prefix(&tokens, &image(b"a")).unwrap(), 6);
    assert_eq!(cache.match_prefix(&tokens, &image(b"b")).unwrap(), 2, "text before it is shared");
}

#[test]
fn test_l5_the_same_part_of_a_block_at_another_offset_of_a_span_is_no_hit() {
    let image = |start| Identity::new(b"", vec![ExtraKey::new(start, None, "image", b"a").unwrap()]);
    let tokens = [9, 9, 9, 9, 9];
    let mut cache = cache(8, 2);
    let seq = computed_as(&mut cache, &tokens, &image(0));
    assert_eq!(cache.match_prefix(&tokens, &image(0)).unwrap(), 4);
    cache.close(seq).unwrap();
    // Its second block is the image's tokens 1 .. 3, the first one's is its tokens 2 .. 4: both fill the block.
    computed_as(&mut cache, &[9, 9, 9, 9, 9], &image(1));
    let two_spans = |second| {
        let key = |start, end| ExtraKey::new(start, end, "image", b"a").unwrap();
        Identity::new(b"", vec![key(0, Some(2)), key(second, None)])
    };
    computed_as(&mut cache, &tokens, &two_spans(2));
    assert_eq!(cache.match_prefix(&tokens, &two_spans(2)).unwrap(), 4);
    assert_eq!(
        cache
            .match_prefix(&tokens, &Identity::new(b"", vec![ExtraKey::new(0, Some(4), "image", b"a").unwrap(),]))
            .unwrap(),
        4,
        "one image of four tokens is what the first was, as far as these blocks go"
    );
    cache.audit().unwrap();
    let split = cache.stats().published_blocks;
    assert_eq!(split, 2 + 2 + 1, "an image that begins anew in the second block is another block");
}

#[test]
fn test_l5_the_order_and_the_repetition_of_keys_do_not_matter() {
    let key = |start, end, value: &[u8]| ExtraKey::new(start, end, "k", value).unwrap();
    let (open, ended, short) = (key(0, None, b""), key(0, Some(90), b""), key(0, Some(1), b""));
    let other = key(1, None, b"z");
    let tokens = [1, 2, 3, 4, 5];
    let equal = [
        vec![open.clone(), short.clone(), other.clone()],
        vec![other.clone(), short.clone(), open.clone(), open.clone(), other.clone()],
        vec![short.clone(), ended, other.clone()],
    ];
    let different = [vec![open.clone(), other.clone()], vec![open, short], vec![other], vec![]];
    let mut cache = cache(8, 2);
    computed_as(&mut cache, &tokens, &Identity::new(b"", equal[0].clone()));
    for keys in equal {
        assert_eq!(cache.match_prefix(&tokens, &Identity::new(b"", keys.clone())).unwrap(), 4, "{keys:?}");
    }
    for keys in different {
        assert_eq!(cache.match_prefix(&tokens, &Identity::new(b"", keys.clone())).unwrap(), 0, "{keys:?}");
    }
}

#[test]
fn test_l5_always_leaves_a_token_to_compute() {
    let mut cache = cache(8, 4);
    let tokens: Vec<i32> = (0..20).collect();
    computed(&mut cache, &tokens);
    let limits = [(0, 0), (1, 0), (4, 0), (5, 4), (12, 8), (13, 12), (14, 12), (16, 12), (17, 16)];
    for (len, expected) in limits {
        assert_eq!(hit(&cache, &tokens[..len]), expected, "{len} tokens");
    }
}

#[test]
fn test_l6_a_chain_is_evicted_from_its_end() {
    let mut cache = cache(4, 2);
    let chain = [1, 2, 3, 4, 5, 6, 7, 8];
    let seq = computed(&mut cache, &chain);
    cache.close(seq).unwrap();
    let probe = [1, 2, 3, 4, 5, 6, 7, 8, 9];
    let thief = cache.open(&[], &Identity::default()).unwrap();
    for (taken, expected) in [(1, 6), (2, 4), (3, 2), (4, 0)] {
        assert_eq!(cache.reserve(thief, taken * 2).unwrap(), Room::Granted);
        assert_eq!(hit(&cache, &probe), expected);
        cache.audit().unwrap();
    }
    assert_eq!(table(&cache, thief), [3, 2, 1, 0]);
}

#[test]
fn test_l6_a_claimed_prefix_outlives_its_children() {
    let mut cache = cache(3, 2);
    let seq = computed(&mut cache, &[1, 2, 3, 4]);
    cache.close(seq).unwrap();
    let short = cache.open(&[1, 2, 9], &Identity::default()).unwrap();
    cache.close(short).unwrap();
    let thief = cache.open(&[], &Identity::default()).unwrap();
    assert_eq!(cache.reserve(thief, 4).unwrap(), Room::Granted);
    assert_eq!(table(&cache, thief), [2, 1], "blank first, then the child");
    assert_eq!(hit(&cache, &[1, 2, 0]), 2);
}

#[test]
fn test_l6_parents_freed_before_a_copied_child_still_leave_after_it() {
    let mut cache = cache(3, 2);
    let step = cache.begin_step();
    let first = computed(&mut cache, &[0, 1, 0, 1]);
    cache.truncate(first, 3).unwrap();
    let second = cache.fork(first).unwrap();
    assert_eq!(cache.reserve(second, 4).unwrap(), Room::Granted);
    assert_eq!(cache.take_ops().copies, [[1, 2, 1]]);
    cache.close(second).unwrap();
    cache.close(first).unwrap();
    cache.audit().unwrap();
    let later = cache.begin_step();
    cache.end_step(step).unwrap();
    let stats = cache.stats();
    assert_eq!((stats.blank, stats.cached, stats.available), (1, 2, 1), "the chain is guarded");
    let thief = cache.open(&[], &Identity::default()).unwrap();
    assert_eq!(
        cache.reserve(thief, 4).unwrap(),
        Room::Short { needed: 2, available: 1 },
        "neither block may leave before the child's guard ends"
    );
    cache.audit().unwrap();
    cache.end_step(later).unwrap();
    assert_eq!(cache.reserve(thief, 4).unwrap(), Room::Granted);
    assert_eq!(table(&cache, thief), [2, 1]);
    assert_eq!(hit(&cache, &[0, 1, 0]), 2);
    cache.audit().unwrap();
}

#[test]
fn test_l6_all_ancestors_of_a_copied_child_leave_after_it() {
    let mut cache = cache(4, 2);
    let step = cache.begin_step();
    let first = computed(&mut cache, &[0, 1, 0, 1, 0, 1]);
    cache.truncate(first, 5).unwrap();
    let second = cache.fork(first).unwrap();
    assert_eq!(cache.reserve(second, 6).unwrap(), Room::Granted);
    assert_eq!(cache.take_ops().copies, [[2, 3, 1]]);
    cache.close(second).unwrap();
    cache.close(first).unwrap();
    cache.end_step(step).unwrap();
    cache.audit().unwrap();
    let thief = cache.open(&[], &Identity::default()).unwrap();
    assert_eq!(cache.reserve(thief, 8).unwrap(), Room::Granted);
    assert_eq!(table(&cache, thief), [3, 2, 1, 0], "the blank one, then the chain from its end");
    cache.audit().unwrap();
}

#[test]
fn test_l7_an_unpublished_block_waits_for_every_step_open_when_it_was_freed() {
    let mut cache = cache(1, 4);
    let first = cache.begin_step();
    let seq = computed(&mut cache, &[1]);
    let second = cache.begin_step();
    cache.close(seq).unwrap();
    let next = cache.open(&[], &Identity::default()).unwrap();
    let short = Room::Short { needed: 1, available: 0 };
    assert_eq!(cache.reserve(next, 1).unwrap(), short);
    cache.end_step(first).unwrap();
    assert_eq!(cache.reserve(next, 1).unwrap(), short);
    cache.end_step(second).unwrap();
    assert_eq!(cache.reserve(next, 1).unwrap(), Room::Granted);
}

#[test]
fn test_l7_a_published_block_stays_findable_and_is_not_evicted() {
    let mut cache = cache(1, 2);
    let step = cache.begin_step();
    let seq = computed(&mut cache, &[1, 2]);
    cache.close(seq).unwrap();
    let next = cache.open(&[], &Identity::default()).unwrap();
    assert_eq!(cache.reserve(next, 1).unwrap(), Room::Short { needed: 1, available: 0 });
    assert_eq!(hit(&cache, &[1, 2, 3]), 2);
    assert_eq!(cache.stats().guarded, 1);
    cache.end_step(step).unwrap();
    assert_eq!(cache.reserve(next, 1).unwrap(), Room::Granted);
    assert_eq!(hit(&cache, &[1, 2, 3]), 0);
}

#[test]
fn test_l7_steps_end_oldest_first() {
    let mut cache = cache(1, 2);
    let (first, second) = (cache.begin_step(), cache.begin_step());
    assert_eq!((first, second), (1, 2));
    assert!(cache.end_step(second).is_err());
    cache.end_step(first).unwrap();
    assert!(cache.end_step(first).is_err());
    cache.end_step(second).unwrap();
    assert_eq!(cache.stats().open_steps, 0);
}

#[test]
fn test_l7_copies_of_one_batch_may_run_in_parallel() {
    let mut cache = cache(8, 4);
    let first = computed(&mut cache, &[1, 2]);
    let second = cache.fork(first).unwrap();
    assert_eq!(cache.reserve(second, 3).unwrap(), Room::Granted);
    let third = cache.fork(second).unwrap();
    assert_eq!(cache.reserve(third, 3).unwrap(), Room::Granted);
    assert_eq!(
        cache.take_ops().copies,
        [[0, 1, 2], [0, 2, 2]],
        "the second copy reads the first source, not the first target"
    );
    cache.audit().unwrap();
}

#[test]
fn test_l13_the_hash_seed_changes_nothing_that_can_be_seen() {
    let run = |num_blocks: i64, hash_seed: u64, hash_bits: i64| {
        let config = CacheConfig { block_size: 2, hash_seed, hash_bits, ..CacheConfig::new(num_blocks) };
        let mut cache = KvCache::new(&config).unwrap();
        let mut seen = Vec::new();
        for round in 0..40 {
            let tokens: Vec<i32> = (0..6).map(|at| (round * at) % 3).collect();
            let seq = computed(&mut cache, &tokens);
            seen.push(format!("{:?} {}", table(&cache, seq), cache.draw()));
            cache.close(seq).unwrap();
        }
        seen
    };
    // In the smaller pool every chain is evicted before it comes again, in the larger one it is merged.
    for num_blocks in [7, 12] {
        let expected = run(num_blocks, 0, 64);
        for (seed, bits) in [(0, 64), (1, 64), (u64::MAX, 64), (5, 8), (6, 1)] {
            assert_eq!(run(num_blocks, seed, bits), expected, "{num_blocks} blocks, seed {seed}, {bits} bits");
        }
    }
}
