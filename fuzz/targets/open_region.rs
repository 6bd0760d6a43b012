//! Arbitrary bytes as a region. See [`maru_fuzz::open_region`].
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| maru_fuzz::open_region::run(input));
