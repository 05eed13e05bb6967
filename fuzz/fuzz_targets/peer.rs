//! libFuzzer's way into [`chiplog_fuzz::peer`].
#![no_main]
libfuzzer_sys::fuzz_target!(|input: &[u8]| chiplog_fuzz::peer(input));
