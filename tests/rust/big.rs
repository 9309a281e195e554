//! Pools as large as they may be: creating one costs little, and ids stay right.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test: it stops at the first surprise"
)]

use octavo_core::{CacheConfig, Error, Identity, KvCache, Room};

#[test]
fn test_a_million_blocks_have_ids_in_order() {
    let config = CacheConfig { block_size: 1, ..CacheConfig::new(1_000_000) };
    let mut cache = KvCache::new(&config).unwrap();
    let seq = cache.open(&[], &Identity::default()).unwrap();
    assert_eq!(cache.reserve(seq, 1_000_000).unwrap(), Room::Granted);
    let table = cache.table(seq).unwrap();
    assert!(table.iter().enumerate().all(|(index, block)| block.get() == index as i32));
    let slots = cache.slots(&[seq], &[999_990], &[10]).unwrap();
    assert_eq!(slots, (999_990..1_000_000).collect::<Vec<i64>>());
    assert_eq!(cache.reserve(seq, 1_000_001).unwrap(), Room::Short { needed: 1, available: 0 });
    cache.close(seq).unwrap();
    assert_eq!(cache.stats().blank, 1_000_000);
    let again = cache.open(&[], &Identity::default()).unwrap();
    assert_eq!(cache.reserve(again, 2).unwrap(), Room::Granted);
    let table: Vec<i32> = cache.table(again).unwrap().iter().map(|block| block.get()).collect();
    assert_eq!(table, [0, 1], "released tail first, so the first one was returned last");
    cache.audit().unwrap();
}

#[test]
fn test_many_large_pools_are_made_without_touching_each_block() {
    for _ in 0..200 {
        let mut cache = KvCache::new(&CacheConfig::new(1_000_000)).unwrap();
        let seq = cache.open(&[1], &Identity::default()).unwrap();
        assert_eq!(cache.reserve(seq, 1).unwrap(), Room::Granted);
        assert_eq!(cache.table(seq).unwrap()[0].get(), 0);
    }
}

#[test]
fn test_the_largest_pool_is_accepted_or_refused_by_name() {
    let largest = i64::from(i32::MAX);
    match KvCache::new(&CacheConfig { block_size: 256, ..CacheConfig::new(largest) }) {
        Ok(mut cache) => {
            assert_eq!(cache.stats().usable, largest.cast_unsigned());
            let seq = cache.open(&[], &Identity::default()).unwrap();
            assert_eq!(cache.reserve(seq, 257).unwrap(), Room::Granted);
            assert_eq!(cache.slots(&[seq], &[256], &[1]).unwrap(), [256]);
        }
        Err(Error::Config(error)) => assert_eq!(error.field, "num_blocks"),
        Err(error) => panic!("another error: {error}"),
    }
}
