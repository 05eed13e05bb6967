//! Demo: the program that the demos run, their directory, and how they show numbers.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// The program `chiplog`: the one that was given, or the one beside this program.
pub(crate) fn program(given: Option<&Path>) -> Result<PathBuf> {
    let chiplog = match given {
        Some(chiplog) => chiplog.to_owned(),
        None => std::env::current_exe()?.with_file_name("chiplog"),
    };
    if !chiplog.is_file() {
        let chiplog = chiplog.display();
        return Err(
            format!("there is no {chiplog}: build it with cargo build --package chiplog-server").into()
        );
    }
    Ok(chiplog)
}

/// Makes the demo's directory: the one that was given, which must be new or empty, or one of this process.
pub(crate) fn directory(given: Option<&Path>) -> Result<PathBuf> {
    let dir = match given {
        Some(dir) if fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some()) => {
            return Err(format!("{} is not empty", dir.display()).into());
        }
        Some(dir) => dir.to_owned(),
        None => PathBuf::from(format!("chiplog-demo-{}", std::process::id())),
    };
    fs::create_dir_all(&dir)?;
    Ok(dir)
}

/// 1234567 as 1,234,567.
pub(crate) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}
