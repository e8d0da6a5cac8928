//! A file system on a simulated SSD: created and filled while the device runs at full speed, then
//! mounted read-only.

use std::fs;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::command;
use crate::error::{Failure, Result, file, system};
use crate::place::Place;
use crate::ssd::{Readings, Simulator, Timing};

/// The kernel's default readahead, in KiB.
pub(crate) const READ_AHEAD: u64 = 128;

/// A mounted disk, which is taken down when this is dropped.
#[derive(Debug)]
pub(crate) struct Disk {
    /// The mount point.
    pub(crate) path: PathBuf,
    node: PathBuf,
    pub(crate) simulator: Simulator,
}

impl Disk {
    /// Makes one with room for `bytes` bytes in `files` files, which `fill` writes.
    pub(crate) fn make(
        place: &Place,
        bytes: u64,
        files: usize,
        fill: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<Self> {
        let simulator = Simulator::start(&place.folder("ssd")?, bytes)?;
        let node = attach(&simulator.file())?;
        // From here on, dropping it takes it down.
        let disk = Self {
            path: place.folder("model")?,
            node,
            simulator,
        };
        // Loop devices are reused, and keep settings of earlier users.
        disk.read_ahead(READ_AHEAD)?;
        // Folders take inodes, too.
        let inodes = 256 + 2 * files;
        let options = format!(
            "-q -F -b 4096 -m 0 -N {inodes} -O ^has_journal,^resize_inode -E nodiscard,lazy_itable_init=0"
        );
        let mut words: Vec<&std::ffi::OsStr> = options.split(' ').map(AsRef::as_ref).collect();
        words.push(disk.node.as_os_str());
        command::run("mkfs.ext4", &words)?;
        disk.mount(MsFlags::MS_NOATIME)?;
        fill(&disk.path)?;
        umount2(&disk.path, MntFlags::empty()).map_err(file("Unmounting", &disk.path))?;
        disk.mount_read_only()?;
        Ok(disk)
    }

    fn mount_read_only(&self) -> Result<()> {
        let flags = MsFlags::MS_NOATIME | MsFlags::MS_RDONLY;
        match self.mount(flags) {
            // A mount namespace that was created meanwhile still has it mounted read-write.
            Err(Failure::File { source, .. }) if source.raw_os_error() == Some(libc::EBUSY) => {
                self.mount(MsFlags::MS_NOATIME)?;
                self.mount_again(flags)
            }
            done => done,
        }
    }

    /// Remounts it read-write.
    pub(crate) fn be_writable(&self) -> Result<()> {
        self.mount_again(MsFlags::MS_NOATIME)
    }

    fn mount_again(&self, flags: MsFlags) -> Result<()> {
        let (nothing, flags) = (None::<&str>, flags | MsFlags::MS_REMOUNT);
        mount(nothing, &self.path, nothing, flags, nothing).map_err(file("Mounting", &self.node))
    }

    fn mount(&self, flags: MsFlags) -> Result<()> {
        mount(
            Some(&self.node),
            &self.path,
            Some("ext4"),
            flags,
            None::<&str>,
        )
        .map_err(file("Mounting", &self.node))
    }

    /// The device with the file system.
    pub(crate) fn node(&self) -> &Path {
        &self.node
    }

    /// Sets the kernel's readahead for files opened from now on.
    pub(crate) fn read_ahead(&self, kib: u64) -> Result<()> {
        let name = self.node.file_name().unwrap_or_default();
        let path = Path::new("/sys/block")
            .join(name)
            .join("queue/read_ahead_kb");
        fs::write(&path, kib.to_string()).map_err(file("Writing", &path))
    }

    /// Sets the speed from now on.
    pub(crate) fn be(&mut self, timing: Timing) -> Result<()> {
        self.simulator.be(Some(timing))
    }

    /// Restarts the counters.
    pub(crate) fn reset(&mut self) -> Result<()> {
        self.simulator.reset()
    }

    pub(crate) fn read(&mut self) -> Result<Readings> {
        self.simulator.read()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // A process that still reads, because of an earlier failure, must not block the rest.
        if umount2(&self.path, MntFlags::empty()).is_err() {
            let _ = umount2(&self.path, MntFlags::MNT_DETACH);
        }
        let _ = self.read_ahead(READ_AHEAD);
        let _ = command::run("losetup", &["--detach".as_ref(), self.node.as_os_str()]);
    }
}

/// Makes a loop device of a file.
fn attach(path: &Path) -> Result<PathBuf> {
    let words = ["--find", "--show", "--direct-io=on"].map(AsRef::as_ref);
    let mut words = words.to_vec();
    words.push(path.as_os_str());
    let node = command::run("losetup", &words).map_err(|failure| Failure::Unavailable {
        what: "A loop device",
        why: failure.to_string(),
        remedy: "try 'modprobe loop'; in a container, '--privileged' with /dev mounted",
    })?;
    let name = Path::new(&node).file_name().unwrap_or_default().to_owned();
    let direct = Path::new("/sys/block").join(name).join("loop/dio");
    let text = fs::read_to_string(direct).map_err(system("Looking at the loop device"))?;
    if text.trim() == "1" {
        return Ok(node.into());
    }
    let _ = command::run("losetup", &["--detach".as_ref(), node.as_ref()]);
    Err(Failure::Said(
        "The loop device does not use direct I/O: its reads would be cached twice".to_owned(),
    ))
}
