//! Files that only their owner may read.
//!
//! Invariant: under its name the file is complete or missing, and it is never readable by others, not even
//! for a moment.

use crate::common::failure::{Failure, Result};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

/// Writes such a file durably. An existing file is replaced if `overwrite` is set; otherwise it is an error.
pub(crate) fn write(path: &Path, bytes: &[u8], overwrite: bool) -> Result<()> {
    let Some(name) = path.file_name() else {
        return Err(Failure::usage(format!("{} is not the name of a file", path.display())));
    };
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let new = dir.join(format!(".{}.{}", name.to_string_lossy(), std::process::id()));
    let failed = |e: &io::Error| Failure::io("write", &new, e);
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new).map_err(|e| failed(&e))?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all()).map_err(|e| failed(&e));
    let named = written.and_then(|()| {
        // A link, unlike a rename, never replaces a file.
        let named = if overwrite { fs::rename(&new, path) } else { fs::hard_link(&new, path) };
        named.map_err(|e| match e.kind() {
            io::ErrorKind::AlreadyExists => {
                Failure::usage(format!("{} exists already: --overwrite replaces it", path.display()))
            }
            _ => Failure::io("write", path, &e),
        })
    });
    if !overwrite || named.is_err() {
        let _ = fs::remove_file(&new); // its other name, if any, stays
    }
    named?;
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(|e| Failure::io("sync", dir, &e))
}

/// Reads such a file as text.
///
/// # Errors
/// It cannot be read, is no text, or others may read it.
pub(crate) fn read(path: &Path) -> Result<String> {
    let mut file = File::open(path).map_err(|e| Failure::io("read", path, &e))?;
    let mode = file.metadata().map_err(|e| Failure::io("read", path, &e))?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        let path = path.display();
        return Err(Failure::usage(format!(
            "{path} has mode {mode:o}, so others can read the secrets in it: `chmod 600 {path}`, and change the secrets if others were on this machine"
        )));
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(|e| Failure::io("read", path, &e))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_file_is_private_and_replaced_only_with_overwrite() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        write(&path, b"first", false).unwrap();
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!((fs::read(&path).unwrap(), mode()), (b"first".to_vec(), 0o600));
        let refused = write(&path, b"second", false).unwrap_err().to_string();
        assert!(refused.contains("--overwrite"), "{refused}");
        assert_eq!(fs::read(&path).unwrap(), b"first");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        write(&path, b"third", true).unwrap();
        assert_eq!((fs::read(&path).unwrap(), mode()), (b"third".to_vec(), 0o600));
        write(&dir.path().join("nowhere/token"), b"x", true).unwrap_err();
        write(Path::new("/"), b"x", true).unwrap_err();
        // Nothing is left behind.
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
