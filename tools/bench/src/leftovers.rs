//! Takes down what is on top of a simulated SSD, mounts and loop devices, by the folder that it is in.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use nix::mount::{MntFlags, umount2};

use crate::command;

/// Number of attempts to detach loop devices. Readers may need a moment to end.
const TRIES: u32 = 20;

/// Unmounts everything below a folder, except for one mount, and detaches its loop devices.
pub(crate) fn clear(folder: &Path, but: Option<&Path>) {
    let list = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let (others, device): (Vec<_>, Vec<_>) = mounts_below(&list, folder)
        .into_iter()
        .filter(|at| Some(at.as_path()) != but)
        .partition(|at| at.file_name() != Some("ssd".as_ref()));
    // A loop device is freed once nothing on it is mounted, and the mount of its file after that.
    unmount(&others);
    for _ in 0..TRIES {
        let nodes = loops_of(folder);
        if nodes.is_empty() {
            break;
        }
        for node in nodes {
            let _ = command::run("losetup", &["--detach".as_ref(), node.as_os_str()]);
        }
        sleep(Duration::from_millis(100));
    }
    unmount(&device);
}

/// Unmounts in reverse order of mounting.
fn unmount(places: &[PathBuf]) {
    for at in places.iter().rev() {
        let _ = umount2(at, MntFlags::MNT_DETACH);
    }
}

fn mounts_below(list: &[u8], folder: &Path) -> Vec<PathBuf> {
    let lines = list.split(|&byte| byte == b'\n');
    // Our folders have no blanks, so nothing is escaped.
    let places = lines.filter_map(|line| line.split(|&byte| byte == b' ').nth(4));
    places
        .map(|place| PathBuf::from(OsString::from_vec(place.to_vec())))
        .filter(|place| place.starts_with(folder) && place != folder)
        .collect()
}

/// The loop devices that are made of a file below a folder.
fn loops_of(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let ours = entries.filter(|entry| {
        let text = fs::read_to_string(entry.path().join("loop/backing_file"));
        text.is_ok_and(|text| Path::new(text.trim()).starts_with(folder))
    });
    ours.map(|entry| Path::new("/dev").join(entry.file_name()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mounts_below_the_folder_are_found() {
        let list = b"36 35 0:50 / /run/b ro shared:1 - tmpfs t ro\n\
            37 36 0:51 / /run/b/1/ssd rw - fuse f rw\n\
            38 36 7:0 / /run/b/1/model ro - ext4 /dev/loop0 ro\n\
            39 36 7:1 / /run/b/10 ro - ext4 /dev/loop1 ro\n\n- -\n";
        let found = mounts_below(list, Path::new("/run/b/1"));
        let expected = ["/run/b/1/ssd", "/run/b/1/model"].map(PathBuf::from);
        assert_eq!(found, expected);
        assert_eq!(mounts_below(b"", Path::new("/")), [] as [PathBuf; 0]);
    }

    #[test]
    fn missing_folder_has_no_loop_devices() {
        assert_eq!(loops_of(Path::new("/no/such/folder")), [] as [PathBuf; 0]);
    }
}
