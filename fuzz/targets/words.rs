//! Packed words, handles and names there and back. See [`maru_fuzz::words`].
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| maru_fuzz::words::run(input));
