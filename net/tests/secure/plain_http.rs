//! Objects and segments over plain HTTP: lists, ranges, errors, tokens, TLS, slow readers and a store that does not answer.

mod access;
mod client;
mod faults;
mod reading;
mod segments;
mod store;
mod waiting;

use crate::support::{PATIENCE, Served};
use std::time::{Duration, Instant};

fn folder(server: &Served) -> String {
    format!("{:032x}", server.log.log_id().get())
}

async fn wait_for(mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
