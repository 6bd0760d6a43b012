//! Operations against a model. See [`maru_fuzz::ops_vs_model`].
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| maru_fuzz::ops_vs_model::run(input));
