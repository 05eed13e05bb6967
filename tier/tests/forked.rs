//! A vault in a forked child: the thread that works for it is in the parent. The only test in its file, because a fork needs a
//! process without other tests' threads.
#![allow(unsafe_code, reason = "fork, _exit, alarm and waitpid have no safe form")]
#![allow(clippy::unwrap_used, reason = "a test")]

use chiplog::ErrorKind;
use chiplog::vault::Vault;
use chiplog_tier::{ObjectVault, VaultOptions};

/// A call in the child would wait for ever.
#[test]
fn forked_child_is_rejected_and_the_parent_unaffected() {
    let dir = tempfile::tempdir().unwrap();
    let vault = ObjectVault::open(dir.path().to_str().unwrap(), VaultOptions::default()).unwrap();
    vault.put("o/7", &["seven".into()]).unwrap();
    // SAFETY: fork has no conditions on memory. The child uses nothing that another thread may have locked: its calls are
    // rejected before that.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        // SAFETY: sets a timer of this process: a child that hangs is killed, and the test fails.
        unsafe { libc::alarm(20) };
        let is_forked = vault.size("o/7").is_err_and(|error| error.kind() == ErrorKind::Forked);
        drop(vault);
        // SAFETY: ends the child at once, without the exit handlers that belong to the parent.
        unsafe { libc::_exit(if is_forked { 7 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: `status` outlives the call, and `pid` is our child, not yet waited for.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status), "the child died of signal {}", libc::WTERMSIG(status));
    assert_eq!(libc::WEXITSTATUS(status), 7);
    assert_eq!(vault.size("o/7").unwrap(), Some(5));
}
