//! Configurations out of range, and those that come later: field, value and range are named.

use octavo_core::{CacheConfig, ConfigError, Error, KvCache, KvGroup};

fn refused(config: &CacheConfig) -> ConfigError {
    match KvCache::new(config) {
        Err(Error::Config(error)) => error,
        Err(error) => panic!("another error: {error}"),
        Ok(_) => panic!("accepted"),
    }
}

#[test]
fn test_numbers_out_of_range_name_field_value_and_range() {
    let base = CacheConfig::new(4);
    let cases = [
        ("num_blocks", 0, CacheConfig { num_blocks: 0, ..base.clone() }),
        ("num_blocks", -1, CacheConfig { num_blocks: -1, ..base.clone() }),
        ("num_blocks", 1 << 31, CacheConfig { num_blocks: 1 << 31, ..base.clone() }),
        ("num_blocks", i64::MAX, CacheConfig { num_blocks: i64::MAX, ..base.clone() }),
        ("block_size", 0, CacheConfig { block_size: 0, ..base.clone() }),
        ("block_size", 257, CacheConfig { block_size: 257, ..base.clone() }),
        ("block_size", i64::MIN, CacheConfig { block_size: i64::MIN, ..base.clone() }),
        ("_hash_bits", 0, CacheConfig { hash_bits: 0, ..base.clone() }),
        ("_hash_bits", 65, CacheConfig { hash_bits: 65, ..base.clone() }),
    ];
    for (field, value, config) in cases {
        let error = refused(&config);
        assert_eq!((error.field, error.value.as_str()), (field, value.to_string().as_str()));
        assert!(!error.range.is_empty());
        let message = error.to_string();
        assert!(message.contains(field) && message.contains(&error.range), "{message}");
    }
}

#[test]
fn test_the_ends_of_each_range_are_accepted() {
    for (num_blocks, block_size) in [(1, 1), (1, 256), (5, 16)] {
        let config = CacheConfig { block_size, ..CacheConfig::new(num_blocks) };
        assert!(KvCache::new(&config).is_ok());
    }
}

#[test]
fn test_a_pool_of_the_null_block_alone_is_refused() {
    let config = CacheConfig { reserve_null_block: true, ..CacheConfig::new(1) };
    assert_eq!(refused(&config).field, "num_blocks");
    let cache = KvCache::new(&CacheConfig { num_blocks: 2, ..config }).unwrap();
    assert_eq!((cache.stats().num_blocks, cache.stats().usable), (2, 1));
}

#[test]
fn test_what_comes_later_is_refused_by_name() {
    let base = CacheConfig::new(4);
    let cases = [
        ("partial_hits", CacheConfig { partial_hits: true, ..base.clone() }),
        ("host_blocks", CacheConfig { host_blocks: 1, ..base.clone() }),
        ("disk_blocks", CacheConfig { disk_blocks: 1, ..base.clone() }),
        ("events", CacheConfig { events: true, ..base.clone() }),
        ("groups", CacheConfig { groups: vec![KvGroup { window: Some(4) }], ..base.clone() }),
        ("groups", CacheConfig { groups: vec![KvGroup::default(); 2], ..base.clone() }),
    ];
    for (field, config) in cases {
        let error = refused(&config);
        assert_eq!(error.field, field);
        assert!(error.range.contains("later"), "{field}: {}", error.range);
    }
    let none = refused(&CacheConfig { groups: Vec::new(), ..base });
    assert_eq!(none.field, "groups");
}
