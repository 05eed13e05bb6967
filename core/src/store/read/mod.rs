//! Reading segment files: blocks by position, entries by index, and walks over all of them.

pub(crate) mod block_reader;
pub(crate) mod chain;
pub(crate) mod copy_holes;
mod copy_uses;
pub(crate) mod cursor;
pub(crate) mod entry_lookup;
pub(crate) mod group_objects;
pub(crate) mod opening_search;
pub(crate) mod run_cursor;
pub(crate) mod run_directory;
pub(crate) mod scanner;
pub(crate) mod sealed_file;
pub(crate) mod segment_files;
pub(crate) mod sorted_copies;
pub(crate) mod sorter;
pub(crate) mod window;
