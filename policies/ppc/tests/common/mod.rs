//! A C compiler, for tests of a contract that is C.

use std::path::{Path, PathBuf};

pub(crate) use test_support::compile;
#[allow(
    unused_imports,
    reason = "not every test includes the header by itself"
)]
pub(crate) use test_support::policies;

/// The same with `cc`.
///
/// # Panics
///
/// The compiler is there and does not like it.
pub(crate) fn cc(arguments: &[&str], source: &Path, output: &Path) -> bool {
    compile("cc", &[&["-std=c11"], arguments].concat(), source, output)
}

/// A path for this test alone.
pub(crate) fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    folder.join(format!("{}-{name}", std::process::id()))
}
