//! Pages are loaded into the memory nearest to the accelerator, whichever cgroup pays for them.

use crate::case::Case;
use crate::cgroup::{Group, Version};
use crate::daemon::{Daemon, test_policy};
use crate::files::{MIB, Pattern, set_readahead};
use crate::mount::Mount;
use crate::outcome::{For as _, Outcome, ensure, ensure_eq, wait_until};
use crate::reader::Job;
use crate::t_register::wait_cached;

pub(crate) const CASES: &[Case] = &[
    Case::new("cprt_affinity_xpu_0", 30, || uncharged(0)),
    Case::new("cprt_affinity_xpu_1", 30, || uncharged(1)),
    Case::new("cprt_affinity_charged_cgroup1", 60, || charged(Version::V1)),
    Case::new("cprt_affinity_charged", 60, || charged(Version::V2)),
    Case::new("cprt_affinity_first_reader_pays_cgroup1", 60, || {
        first_reader_pays(Version::V1)
    }),
    Case::new("cprt_affinity_first_reader_pays", 60, || {
        first_reader_pays(Version::V2)
    }),
];

const SIZE: u64 = 16 * MIB;

/// Loads all of a file for one accelerator, from the policy's start so that no reader loads any of it.
fn load(daemon: &Daemon, mount: &Mount, file: &Pattern, xpu: usize, more: &[&str]) -> Outcome {
    let xpu_setting = format!("xpu={xpu}");
    let settings = [&["load=f", xpu_setting.as_str()], more].concat();
    daemon.register(mount, &test_policy("probe"), &settings)?;
    wait_cached(file, file.size)?;
    let mut expected = [0; 2];
    expected[xpu] = usize::try_from(file.size / 4096)?;
    // A page that is being moved or collapsed is on no node for a moment; none is ever on the other node.
    wait_until(5, "all pages to be seen", || {
        let nodes = file.nodes()?;
        ensure_eq!(nodes[1 - xpu], 0, "pages on the other node of {nodes:?}");
        Ok((nodes == expected).then_some(()))
    })
}

fn uncharged(xpu: usize) -> Outcome {
    let mount = Mount::new()?;
    let file = mount.file("f", 3, SIZE)?;
    let daemon = Daemon::start()?;
    load(&daemon, &mount, &file, xpu, &[])?;
    Job::new(&mount, &file).mmap().run()?;
    daemon.stop()
}

/// The worker lives in a group, which pays.
fn charged(version: Version) -> Outcome {
    let group = Group::new(version, "affinity")?;
    let mount = Mount::new()?;
    let file = mount.file("f", 3, SIZE)?;
    let daemon = Daemon::start()?;
    let path = group
        .path
        .to_str()
        .ok_or("no text")
        .of("the group's path")?;
    load(&daemon, &mount, &file, 1, &["--cgroup", path])?;
    let worker = daemon.worker(&mount)?;
    ensure_eq!(group.members()?, [worker], "who is in the group");
    let cache = group.cache()?;
    ensure!(
        cache >= SIZE * 9 / 10,
        "the group pays for {cache} bytes of {SIZE}"
    );
    let status = daemon.status(&mount)?;
    let told = status.policy.and_then(|policy| policy.cgroup);
    ensure_eq!(told.as_ref(), Some(&group.path), "the group in the status");
    daemon.stop()
}

/// No load names a process, so the first reader pays.
fn first_reader_pays(version: Version) -> Outcome {
    set_readahead("0")?;
    let group = Group::new(version, "reader")?;
    let mount = Mount::new()?;
    let file = mount.file("f", 3, SIZE)?;
    let daemon = Daemon::start()?;
    let ahead = format!("ahead={SIZE}");
    daemon.register(&mount, &test_policy("probe"), &["log=0", "xpu=1", &ahead])?;
    let job = Job::new(&mount, &file).within(group.procs());
    // Loads may be charged to the reader only as long as it lives.
    let stop = crate::case::scratch().join("stop");
    let reader = job.range(0..8).linger(stop.clone()).start()?;
    wait_until(15, "the pages to be loaded", || {
        Ok((file.cached()? >= file.size - 4096).then_some(()))
    })?;
    std::fs::write(stop, "")?;
    reader.finish()?;
    let cache = group.cache()?;
    ensure!(
        cache >= SIZE / 2,
        "the group pays for {cache} bytes of {SIZE}"
    );
    let [elsewhere, near] = file.nodes()?;
    ensure!(
        elsewhere <= 16,
        "{elsewhere} pages on node 0, {near} on node 1"
    );
    daemon.stop()
}
