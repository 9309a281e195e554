//! The tests that every machine has: any calls agree with the model, whatever the width of the hash.

/// Defines them over the `world()`, `op()` and `run(&world, hash_bits, &ops)` of the file that calls it. `$name` is the
/// file's, and `$ops` how many calls a case makes at most.
macro_rules! machine_tests {
    ($name:literal, $ops:literal) => {
        fn config() -> ProptestConfig {
            let seeds = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/rust/regressions/", $name, ".txt");
            ProptestConfig {
                failure_persistence: Some(Box::new(FileFailurePersistence::Direct(seeds))),
                max_shrink_iters: 20_000,
                ..ProptestConfig::default()
            }
        }

        /// Prints what a run of all cases met: `cargo test --test NAME -- --ignored --nocapture`.
        #[test]
        #[ignore = "prints statistics, which tests/rust/README.md keeps"]
        fn report_statistics() {
            let census = RefCell::new(Census::default());
            let mut runner = TestRunner::new(config());
            let ops = prop::collection::vec(op(), 1..$ops);
            let result = runner.run(&(world(), ops), |(world, ops)| {
                census.borrow_mut().absorb(&run(&world, 64, &ops));
                Ok(())
            });
            println!("{}", census.borrow());
            result.expect("core and model agree");
        }

        proptest! {
            #![proptest_config(config())]

            #[test]
            fn test_any_calls_agree_with_the_model(
                world in world(),
                ops in prop::collection::vec(op(), 1..$ops),
            ) {
                run(&world, 64, &ops);
            }

            #[test]
            fn test_any_calls_agree_with_the_model_when_8_hash_bits_collide(
                world in world(),
                ops in prop::collection::vec(op(), 1..$ops),
            ) {
                run(&world, 8, &ops);
            }

            #[test]
            fn test_any_calls_agree_with_the_model_when_1_hash_bit_collides(
                world in world(),
                ops in prop::collection::vec(op(), 1..$ops),
            ) {
                run(&world, 1, &ops);
            }
        }
    };
}

pub(crate) use machine_tests;
