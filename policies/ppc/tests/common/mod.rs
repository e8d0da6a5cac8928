//! A C compiler, for tests of a contract that is C.

#[path = "../../../../tests/skip.rs"]
pub(crate) mod skip;

use skip::skip;

use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of `ppc.h`.
pub(crate) fn policies() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Compiles with the warnings of `policies.mk`; `false`, with a line that says so, if there is no
/// such compiler.
///
/// # Panics
///
/// The compiler is there and does not like it.
pub(crate) fn compile(compiler: &str, arguments: &[&str], source: &Path, output: &Path) -> bool {
    let mut command = Command::new(compiler);
    command
        .args(["-Wall", "-Wextra", "-Werror", "-I"])
        .arg(policies());
    command.args(arguments).arg("-o").arg(output).arg(source);
    match command.status() {
        Ok(status) => assert!(status.success(), "{command:?}"),
        Err(error) => {
            skip(&format!("{compiler}: {error}"));
            return false;
        }
    }
    true
}

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
