//! libFuzzer's way into [`chiplog_fuzz::authority`].
#![no_main]
libfuzzer_sys::fuzz_target!(|input: &[u8]| chiplog_fuzz::authority(input));
