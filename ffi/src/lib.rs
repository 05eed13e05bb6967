//! The C ABI of chiplog, and the manifest of operations that all languages are held against.
