//! Many named logs in one directory: the handle of the directory. The logs themselves are those of `handles/log/`.

pub(crate) mod calls;
pub(crate) mod info;
pub(crate) mod options;
pub(crate) mod together;
