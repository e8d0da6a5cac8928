//! A directory with a file, the lease, for each load under way on this node. Its lock shows that the
//! service that wrote it is alive.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Upper bound on the size of a lease: claims on 64 TiB of files.
const LARGEST: u64 = 8 << 20;
/// Upper bound on the services that load at once.
const MOST: usize = 64;
/// How long a lease may have its temporary name: after that, its process has ended before renaming it.
const NAMELESS: Duration = Duration::from_mins(1);

/// Our lease. It is removed when dropped, and no longer valid once this process is gone.
#[derive(Debug)]
pub(crate) struct Lease {
    directory: PathBuf,
    name: String,
    file: File,
}

impl Lease {
    /// Creates one without claims.
    pub(crate) fn create(directory: &Path) -> io::Result<Self> {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o755).create(directory)?;
        let name = new_name()?;
        let path = directory.join(&name);
        let hidden = directory.join(format!(".{name}"));
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600);
        let file = file.open(&hidden)?;
        file.lock()?;
        // It must not be visible without its lock.
        fs::rename(&hidden, &path)?;
        Ok(Self {
            directory: directory.to_owned(),
            name,
            file,
        })
    }

    /// Replaces the claims published before.
    pub(crate) fn publish(&self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, 0)?;
        self.file.set_len(bytes.len() as u64)
    }

    /// Replaces the beginning of what was published before.
    pub(crate) fn publish_beginning(&self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, 0)
    }

    /// What the others have published. Leases of services that are gone are removed.
    pub(crate) fn read_others(&self) -> Vec<Vec<u8>> {
        let entries = fs::read_dir(&self.directory)
            .into_iter()
            .flatten()
            .flatten();
        let others = entries.filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with('.') {
                remove_nameless(&entry.path());
                return false;
            }
            *name != *self.name
        });
        let others = others
            .take(MOST)
            .filter_map(|entry| read_lease(&entry.path()));
        others.collect()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // If this fails, the next service that reads the directory removes it.
        let _ = fs::remove_file(self.directory.join(&self.name));
    }
}

/// Each PID namespace has its own process numbers, so they cannot distinguish the leases of containers that share the
/// directory.
fn new_name() -> io::Result<String> {
    let mut random = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut random)?;
    let number = u128::from_ne_bytes(random);
    Ok(format!("{}-{number:032x}", std::process::id()))
}

fn remove_nameless(path: &Path) {
    let Ok(metadata) = path.symlink_metadata() else {
        return;
    };
    let age = metadata.modified().ok().and_then(|it| it.elapsed().ok());
    if metadata.is_file() && age.is_some_and(|age| age > NAMELESS) {
        let _ = fs::remove_file(path);
    }
}

fn read_lease(path: &Path) -> Option<Vec<u8>> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
        .ok()?;
    if file.try_lock_shared().is_ok() {
        let _ = fs::remove_file(path);
        return None;
    }
    let length = file.metadata().ok()?.len().min(LARGEST);
    let mut bytes = vec![0; usize::try_from(length).ok()?];
    let read = file.read_at(&mut bytes, 0).ok()?;
    bytes.truncate(read);
    Some(bytes)
}

/// The default directory; none for a user without a runtime directory.
pub(crate) fn default_directory() -> Option<PathBuf> {
    if nix::unistd::geteuid().is_root() {
        return Some(PathBuf::from("/run/ppc/leases"));
    }
    let runtime = PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR")?);
    runtime.is_absolute().then(|| runtime.join("ppc/leases"))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::{Instant, SystemTime};

    use super::*;

    #[test]
    fn live_leases_are_read_and_dead_ones_removed() {
        let number = std::process::id();
        let directory = std::env::temp_dir().join(format!("maio-leases-{number}"));
        let _ = fs::remove_dir_all(&directory);
        let here = directory.join("sub");
        let one = Lease::create(&here).expect("one");
        let other = Lease::create(&here).expect("other");
        assert_eq!(one.read_others(), [b""], "it has said nothing yet");
        other.publish(b"long words").expect("said");
        other.publish(b"words").expect("said");
        assert_eq!(one.read_others(), [b"words"]);
        assert_eq!(other.read_others(), [b""]);
        // The owner of this file has crashed.
        let left = here.join("1-1");
        fs::write(&left, "stale").expect("written");
        std::os::unix::fs::symlink("/etc/passwd", here.join("link")).expect("a link");
        assert_eq!(one.read_others(), [b"words"]);
        assert!(!left.exists());
        drop(other);
        assert!(one.read_others().is_empty());
        // A file whose process ended before naming it, and one that is about to get its name.
        let (old, new) = (here.join(".1-1"), here.join(".1-2"));
        let file = File::create(&old).expect("made");
        let then = SystemTime::now() - 2 * NAMELESS;
        file.set_modified(then).expect("ours");
        File::create(&new).expect("made");
        assert!(one.read_others().is_empty());
        assert!(!old.exists() && new.exists());
        drop(one);
        fs::remove_dir_all(&directory).expect("cleared");
    }

    /// Two containers that share the directory, each with its process as number 1.
    #[test]
    fn processes_of_one_number_have_leases_of_their_own() {
        let directory =
            std::env::temp_dir().join(format!("maio-leases-{}-containers", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).expect("a folder");
        let helper = || {
            let program = std::env::current_exe().expect("this program");
            let mut command = Command::new("unshare");
            command
                .args([
                    "--user",
                    "--map-root-user",
                    "--pid",
                    "--fork",
                    "--kill-child",
                ])
                .arg(program)
                .args(["--exact", "peers::leases::tests::has_a_lease", "--ignored"])
                .env("MAIO_LEASES", &directory)
                .stdin(Stdio::piped())
                .stdout(Stdio::null());
            command.spawn()
        };
        let allowed = Command::new("unshare")
            .args(["--user", "--map-root-user", "--pid", "--fork", "true"])
            .stderr(Stdio::null())
            .status();
        if !allowed.is_ok_and(|status| status.success()) {
            return test_support::skip("user namespaces are not allowed");
        }
        let own = Lease::create(&directory).expect("one of ours");
        let mut two = [helper(), helper()].map(|it| it.expect("a process"));
        let until = Instant::now() + Duration::from_mins(1);
        let heard = |count| {
            while Instant::now() < until {
                let said = own.read_others();
                if said.len() == count && said.iter().all(|it| it == b"pid 1") {
                    return true;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            false
        };
        assert!(heard(2), "{:?}", own.read_others());
        drop(two[0].stdin.take());
        assert!(two[0].wait().expect("its end").success());
        assert!(heard(1), "the other's is still there");
        drop(two[1].stdin.take());
        assert!(two[1].wait().expect("its end").success());
        assert!(own.read_others().is_empty());
        drop(own);
        fs::remove_dir_all(&directory).expect("cleared");
    }

    #[test]
    #[ignore = "only as a helper of processes_of_one_number_have_leases_of_their_own"]
    fn has_a_lease() {
        let directory = std::env::var_os("MAIO_LEASES").expect("a folder");
        let lease = Lease::create(Path::new(&directory)).expect("one");
        let said = format!("pid {}", std::process::id());
        lease.publish(said.as_bytes()).expect("said");
        io::stdin().read_to_end(&mut Vec::new()).expect("its end");
    }
}
