//! libFuzzer's way into [`chiplog_fuzz::ffi`].
#![no_main]
libfuzzer_sys::fuzz_target!(|input: &[u8]| chiplog_fuzz::ffi(input));
