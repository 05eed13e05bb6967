//! Named: the named logs of servers, `log-0`, `log-1` and so on.

use super::load::log_name;
use super::process::PATIENCE;
use anyhow::{Result, ensure};
use chiplog::ErrorKind;
use chiplog_net::client::{Client, ClientOptions};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Creates `logs` named logs, at least one, 16 at a time. Waits until the servers can.
///
/// # Errors
/// They cannot for long, or fail.
pub(crate) fn create(addresses: &[String], logs: usize) -> Result<()> {
    super::block_on(create_all(addresses.to_vec(), logs))
}

async fn create_all(addresses: Vec<String>, logs: usize) -> Result<()> {
    const AT_A_TIME: usize = 16;
    let client = Client::connect(addresses, ClientOptions::default()).await?;
    let begun = Instant::now();
    // The group is ready a moment after the servers are.
    while client.create_log(&log_name(0)).await.is_err() {
        ensure!(begun.elapsed() < PATIENCE, "no log can be created");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let mut tasks = JoinSet::new();
    for creator in 0..AT_A_TIME {
        let client = client.clone();
        tasks.spawn(async move {
            for n in (1..logs).filter(|n| n % AT_A_TIME == creator) {
                match client.create_log(&log_name(n)).await {
                    // The answer to a first attempt was lost: another server leads by now.
                    Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                    created => _ = created?,
                }
            }
            Ok::<_, anyhow::Error>(())
        });
    }
    while let Some(created) = tasks.join_next().await {
        created??;
    }
    Ok(())
}
