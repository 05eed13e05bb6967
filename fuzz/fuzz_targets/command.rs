//! libFuzzer's way into [`chiplog_fuzz::command`].
#![no_main]
libfuzzer_sys::fuzz_target!(|input: &[u8]| chiplog_fuzz::command(input));
