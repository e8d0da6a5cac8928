//! A file system that stops answering on request. Another process serves it: this test program, started once more.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEntry, ReplyOpen, Request,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use test_support::skip;

use crate::ground::Ground;

const SIZE: u64 = 64 << 20;
/// How long the kernel trusts the file system's names and attributes.
const BELIEVED: Duration = Duration::ZERO;

/// The way in which the file system does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// It accepts requests to read but never answers them: a process that waits for one cannot be killed.
    Reads,
    /// The same for all requests.
    All,
    /// Its process is stopped by a signal.
    Stopped,
}

/// A file system that can be made to stop answering.
pub(crate) struct Hung {
    path: PathBuf,
    flags: PathBuf,
    server: Child,
}

impl Hung {
    /// `None` without FUSE, after saying so.
    pub(crate) fn mount(ground: &Ground, name: &str) -> Option<Self> {
        if fs::File::open("/dev/fuse").is_err() {
            skip("there is no /dev/fuse");
            return None;
        }
        let path = ground.directory(name);
        let flags = ground.directory(format!("{name}-flags"));
        let mut server = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "hung::server", "--ignored", "--nocapture"])
            .env("CPRT_HUNG_AT", &path)
            .env("CPRT_HUNG_FLAGS", &flags)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program");
        let mut said = BufReader::new(server.stdout.take().expect("its output"));
        let mut line = String::new();
        while !line.contains("SERVES") {
            line.clear();
            assert!(said.read_line(&mut line).expect("a line") > 0, "it ended");
        }
        Some(Self {
            path,
            flags,
            server,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Sets whether it answers from now on.
    pub(crate) fn answers(&self, way: Way, answers: bool) {
        let flag = match way {
            Way::Reads => "reads",
            Way::All => "all",
            Way::Stopped => {
                let signal = if answers {
                    Signal::SIGCONT
                } else {
                    Signal::SIGSTOP
                };
                let server = Pid::from_raw(self.server.id().try_into().expect("a process"));
                return kill(server, signal).expect("it is ours");
            }
        };
        let flag = self.flags.join(flag);
        let done = if answers {
            fs::remove_file(flag)
        } else {
            fs::write(flag, "")
        };
        done.expect("it is ours");
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
        let _ = nix::mount::umount2(&self.path, nix::mount::MntFlags::MNT_DETACH);
    }
}

#[test]
#[ignore = "only as a helper of others"]
fn server() {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    let (Some(at), Some(flags)) = (variable("CPRT_HUNG_AT"), variable("CPRT_HUNG_FLAGS")) else {
        return;
    };
    let mut config = Config::default();
    config.mount_options = vec![MountOption::RO, MountOption::FSName("hung".to_owned())];
    config.n_threads = Some(4);
    config.clone_fd = true;
    let session = fuser::Session::new(Server(flags), &at, &config).expect("to mount");
    let serving = session.spawn().expect("to serve");
    println!("SERVES");
    let _ = std::io::stdin().read(&mut [0]);
    drop(serving);
}

struct Server(PathBuf);

impl Server {
    fn wait(&self, flags: &[&str]) {
        while flags.iter().any(|flag| self.0.join(flag).exists()) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn attributes(id: u64) -> FileAttr {
    let is_root = id == 1;
    FileAttr {
        ino: INodeNo(id),
        size: if is_root { 0 } else { SIZE },
        blocks: SIZE / 512,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: if is_root {
            FileType::Directory
        } else {
            FileType::RegularFile
        },
        perm: if is_root { 0o755 } else { 0o644 },
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl Filesystem for Server {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.wait(&["all"]);
        if name == "f" {
            reply.entry(&BELIEVED, &attributes(2), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &Request, id: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.wait(&["all"]);
        reply.attr(&BELIEVED, &attributes(id.0));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.wait(&["all"]);
        reply.opened(FileHandle(1), FopenFlags::empty());
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        // Makes loading the whole file take a while.
        std::thread::sleep(Duration::from_millis(200));
        self.wait(&["all", "reads"]);
        let left = SIZE.saturating_sub(offset).min(size.into());
        reply.data(&vec![7; usize::try_from(left).unwrap_or(0)]);
    }
}
