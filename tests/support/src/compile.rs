//! A C compiler, for tests of C interfaces.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::skip;

/// The folder of `ppc.h`.
#[must_use]
pub fn policies() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../policies")
}

/// Compiles with the warnings of `policies.mk`. If the compiler is not installed, skips the test and returns
/// `false`.
///
/// # Panics
///
/// The compiler refuses the source.
#[must_use]
pub fn compile(compiler: &str, arguments: &[&str], source: &Path, output: &Path) -> bool {
    let mut command = Command::new(compiler);
    command
        .args(["-Wall", "-Wextra", "-Werror", "-I"])
        .arg(policies())
        .args(arguments)
        .arg("-o")
        .arg(output)
        .arg(source);
    match command.status() {
        Ok(status) => assert!(status.success(), "{command:?}"),
        Err(error) => {
            skip(&format!("{compiler}: {error}"));
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_where_it_is_looked_for() {
        assert!(policies().join("ppc.h").is_file());
    }
}
