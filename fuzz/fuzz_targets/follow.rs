//! libFuzzer's way into [`chiplog_fuzz::follow`].
#![no_main]
libfuzzer_sys::fuzz_target!(|input: &[u8]| chiplog_fuzz::follow(input));
