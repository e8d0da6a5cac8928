//! A test's own disk: a `null_blk` that keeps its data in memory, can be slow and can have bad sectors.

use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::mount::{mount_type, unmount};
use crate::outcome::{For as _, Outcome, ensure, skip, wait_until};
use crate::sys;

const CONFIG: &str = "/sys/kernel/config/nullb";
/// Prefix of these tests' disks, by which they are found again.
const PREFIX: &str = "cprt";
const SECTOR: u64 = 512;
/// Size of a disk; xfs requires at least 300.
const SIZE_MIB: &str = "512";
/// Upper bound on a request to a slow disk. All kernels tested allow that much.
const REQUEST_KIB: u64 = 124;
/// How many requests a slow disk does at once. With one, the disk idles whenever a busy machine is late to hear of the
/// end of a request.
const DEPTH: u64 = 4;

#[derive(Debug)]
pub(crate) struct Disk {
    config: PathBuf,
    name: String,
    /// Where its file system is mounted.
    pub(crate) path: PathBuf,
}

impl Disk {
    /// Makes a disk with the file system under test and mounts it. Memory is allocated when written to.
    pub(crate) fn new(name: &str) -> Outcome<Self> {
        if !Path::new(CONFIG).exists() {
            skip!("no null_blk in configfs");
        }
        let name = format!("{PREFIX}{name}");
        let mut disk = Self {
            config: Path::new(CONFIG).join(&name),
            path: Path::new("/tmp/cprt").join(format!("disk-{name}")),
            name,
        };
        fs::create_dir(&disk.config)?;
        disk.set("memory_backed", "1")?;
        disk.set("size", SIZE_MIB)?;
        disk.set("power", "1")?;
        disk.find()?;
        disk.make_file_system()?;
        disk.mount()?;
        Ok(disk)
    }

    fn set(&self, attribute: &str, value: &str) -> Outcome {
        let path = self.config.join(attribute);
        fs::write(&path, value).of(format_args!("{value} into {}", path.display()))
    }

    /// Finds the node, which is named after the directory, or after the index on older kernels.
    fn find(&mut self) -> Outcome {
        if !Path::new("/dev").join(&self.name).exists() {
            let index = fs::read_to_string(self.config.join("index"))?;
            self.name = format!("nullb{}", index.trim());
        }
        let node = self.node();
        wait_until(5, "the disk's node", || Ok(node.exists().then_some(())))
    }

    fn node(&self) -> PathBuf {
        Path::new("/dev").join(&self.name)
    }

    fn make_file_system(&self) -> Outcome {
        let kind = file_system();
        let options: &[&str] = match kind.as_str() {
            "xfs" => &["-q", "-f", "-K"],
            _ => &[
                "-q",
                "-F",
                "-b",
                "4096",
                "-E",
                "lazy_itable_init=1,nodiscard",
            ],
        };
        let mut command = Command::new(format!("/sbin/mkfs.{kind}"));
        let status = command
            .args(options)
            .arg(self.node())
            .stdout(Stdio::null())
            .status()?;
        ensure!(status.success(), "mkfs.{kind}: {status}");
        Ok(())
    }

    fn mount(&self) -> Outcome {
        mount_type(&self.node(), &self.path, &file_system(), None)
    }

    /// Sets its bandwidth, in MB a second. Its data stays, but it is unmounted meanwhile.
    ///
    /// The disk does a few requests at a time, each as long as if all were as large as one may be. Its own limit,
    /// `mbps`, warns (`hrtimer_forward`) where two processors begin to read from it at once, on 6.1 at least:
    /// `null_handle_throttled` starts a timer that another processor has just started, and whose function is
    /// running.
    pub(crate) fn slow(&mut self, megabytes: u32) -> Outcome {
        let nanoseconds = DEPTH * REQUEST_KIB * 1024 * 1000 / u64::from(megabytes);
        unmount(&self.path)?;
        self.set("power", "0")?;
        self.set("irqmode", "2")?;
        self.set("completion_nsec", &nanoseconds.to_string())?;
        self.set("hw_queue_depth", &DEPTH.to_string())?;
        self.set("power", "1")?;
        self.find()?;
        let largest = format!("/sys/block/{}/queue/max_sectors_kb", self.name);
        fs::write(&largest, REQUEST_KIB.to_string()).of(&largest)?;
        self.mount()
    }

    /// Makes reads of this range of a file fail from now on.
    pub(crate) fn spoil(&self, file: &Path, range: Range<u64>) -> Outcome {
        let opened = File::open(file)?;
        let at = sys::physical(&opened, range.start, range.end - range.start).of(file.display())?;
        let last = (at + range.end - range.start) / SECTOR - 1;
        println!("kmsg-allow: I/O error");
        println!("kmsg-allow: EXT4-fs");
        println!("kmsg-allow: XFS");
        self.set("badblocks", &format!("+{}-{last}", at / SECTOR))
    }

    /// Bytes read from it since it was made.
    pub(crate) fn bytes_read(&self) -> Outcome<u64> {
        bytes_read(&self.name)
    }
}

/// Bytes read from a block device since it was made.
pub(crate) fn bytes_read(name: &str) -> Outcome<u64> {
    let path = format!("/sys/block/{name}/stat");
    let text = fs::read_to_string(&path).of(&path)?;
    let sectors = text.split_whitespace().nth(2).unwrap_or_default();
    Ok(sectors.parse::<u64>().of(&path)? * SECTOR)
}

/// The file system under test.
pub(crate) fn file_system() -> String {
    std::env::var("RFS_FS").unwrap_or_else(|_| "ext4".to_owned())
}

/// The rig's disk that is free for tests.
const SPARE: &str = "/dev/nullb1";

/// Gives the machine swap space until the test is over.
pub(crate) fn swap_on() -> Outcome {
    for command in ["mkswap", "swapon"] {
        let output = Command::new(format!("/bin/{command}"))
            .arg(SPARE)
            .output()?;
        ensure!(output.status.success(), "{command}: {output:?}");
    }
    Ok(())
}

fn swap_off() -> Outcome {
    if fs::read_to_string("/proc/swaps")?.contains(SPARE) {
        let status = Command::new("/bin/swapoff").arg(SPARE).status()?;
        ensure!(status.success(), "swapoff: {status}");
    }
    Ok(())
}

/// Removes all disks of these tests, whose file systems are already unmounted.
pub(crate) fn clear() -> Outcome {
    swap_off()?;
    for entry in fs::read_dir(CONFIG).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_name().to_string_lossy().starts_with(PREFIX) {
            fs::write(path.join("power"), "0")?;
            fs::remove_dir(&path).of(path.display())?;
        }
    }
    Ok(())
}
