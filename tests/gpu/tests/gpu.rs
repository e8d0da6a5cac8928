//! Tests that require a GPU. Without one, each test reports that and counts as skipped.

use std::error::Error;
use std::fs;
use std::io::Write as _;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::Command;

use cprt::machine::topology::{Processes, Topology, compute_processes};
use gpu_tests::{Gpu, nodes_of, on_node, pages_by_node, why_not};
use test_support::{drop_cached, skip, skip_part};

const SIZE: usize = (100 << 20) + 4321;

/// A file whose bytes depend on their offsets, removed when this is dropped.
struct Pattern(PathBuf, Vec<u8>);

impl Pattern {
    fn write(name: &str) -> Self {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join(format!("{name}.{}", std::process::id()));
        // The lowest byte of a sum that depends on the offset.
        let bytes: Vec<u8> = (0..SIZE)
            .map(|at| (at % 251 + (at >> 16)).to_le_bytes()[0])
            .collect();
        let mut file = fs::File::create(&path).expect("a file");
        file.write_all(&bytes).expect("to write");
        file.sync_all().expect("to write");
        Self(path.canonicalize().expect("it is there"), bytes)
    }

    /// Drops it from the page cache.
    fn drop_cached(&self) {
        drop_cached(&self.0).expect("to drop it from the cache");
    }
}

impl Drop for Pattern {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn gpu_gets_what_is_in_a_file_through_pinned_buffers() -> Result<(), Box<dyn Error>> {
    if let Some(why) = why_not() {
        skip(&why);
        return Ok(());
    }
    let pattern = Pattern::write("pinned");
    let mut gpu = Gpu::open(0)?;
    // From the disk, and from the page cache.
    pattern.drop_cached();
    for _ in 0..2 {
        let there = gpu.load(&pattern.0)?;
        assert!(
            gpu.bytes(&there)? == pattern.1,
            "bytes are not what they were"
        );
    }
    Ok(())
}

#[test]
fn gpu_pages_are_at_its_node() -> Result<(), Box<dyn Error>> {
    if let Some(why) = why_not() {
        skip(&why);
        return Ok(());
    }
    let topology = Topology::detect()?;
    let near = nodes_of(&topology);
    if topology.nodes().iter().filter(|node| node.memory).count() < 2 {
        skip("the machine has one NUMA node");
        return Ok(());
    }
    let near: Vec<_> = near
        .into_iter()
        .filter_map(|(ordinal, node)| Some((ordinal, node?)))
        .collect();
    if near.is_empty() {
        skip("the machine does not say which node a GPU is at");
        return Ok(());
    }
    for (ordinal, node) in near {
        let pattern = Pattern::write(&format!("node-{ordinal}"));
        pattern.drop_cached();
        let there = on_node(&topology, node, || {
            let load = || -> Result<Vec<u8>, Box<dyn Error>> {
                let mut gpu = Gpu::open(ordinal.into())?;
                let there = gpu.load(&pattern.0)?;
                gpu.bytes(&there)
            };
            load().map_err(|error| error.to_string())
        })?;
        assert!(there == pattern.1, "bytes are not what they were");
        let pages = mapped_by_node(&pattern.0)?;
        let all: u64 = pages.values().sum();
        let here = pages.get(&node).copied().unwrap_or(0);
        assert!(
            all > 0 && here * 100 >= all * 99,
            "GPU {ordinal} at {node}: {pages:?}"
        );
    }
    Ok(())
}

/// Maps all of a file and reads it, because the kernel lists only pages that a process has accessed.
#[allow(unsafe_code, reason = "a mapping to look at")]
fn mapped_by_node(path: &Path) -> Result<std::collections::BTreeMap<u16, u64>, Box<dyn Error>> {
    use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

    let file = fs::File::open(path)?;
    let length = NonZeroUsize::new(SIZE).ok_or("nothing to map")?;
    let (read, private) = (ProtFlags::PROT_READ, MapFlags::MAP_PRIVATE);
    // SAFETY: a new mapping at an address that the kernel chooses, where no memory is in use.
    let start = unsafe { mmap(None, length, read, private, &file, 0) }?;
    // SAFETY: mapped for reading with this length, and no process writes to the file meanwhile.
    let bytes = unsafe { std::slice::from_raw_parts(start.as_ptr().cast::<u8>(), SIZE) };
    let sum: u64 = bytes
        .iter()
        .step_by(4096)
        .map(|byte| u64::from(*byte))
        .sum();
    assert!(sum > 0);
    let maps = fs::read_to_string("/proc/self/numa_maps")?;
    // SAFETY: mapped with this length, and its bytes are no longer read.
    unsafe { munmap(start, SIZE) }?;
    Ok(pages_by_node(&maps, path))
}

#[test]
fn gpu_workers_are_known_as_nvml_knows_them() -> Result<(), Box<dyn Error>> {
    if let Some(why) = why_not() {
        skip(&why);
        return Ok(());
    }
    let topology = Topology::detect()?;
    // A separate process, because this one may already use other GPUs: it reports when it works, and waits.
    let gpus = nodes_of(&topology);
    assert!(!gpus.is_empty(), "CUDA has a GPU, and the topology none");
    for (ordinal, _) in gpus {
        let mut child = Command::new(env!("CARGO_BIN_EXE_gpu-load"))
            .args(["--stay", &ordinal.to_string()])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().ok_or("no pipe")?;
        let lines = std::io::BufRead::lines(std::io::BufReader::new(output));
        let works = lines
            .map_while(Result::ok)
            .any(|line| line.contains("it works"));
        let by_nvml = compute_processes()
            .into_iter()
            .find(|it| it.pid == child.id());
        let known = topology.process_xpu(child.id(), &Processes::default());
        // The child ends when its input does.
        drop(child.stdin.take());
        child.wait()?;
        assert!(works, "the worker of GPU {ordinal} does not work");
        let known = known.and_then(|number| topology.xpus().get(usize::from(number)));
        assert_eq!(known.and_then(|xpu| xpu.ordinal), Some(ordinal));
        match by_nvml {
            Some(by_nvml) => assert_eq!(known.map(|xpu| xpu.pci), Some(by_nvml.pci)),
            None => skip_part("NVML knows processes by other numbers here, as in containers"),
        }
    }
    Ok(())
}

#[test]
fn gpu_table_on_real_time() -> Result<(), Box<dyn Error>> {
    if let Some(why) = why_not() {
        skip(&why);
        return Ok(());
    }
    let Some(bench) = std::env::var_os("PPC_BENCH") else {
        skip("PPC_BENCH does not say where ppc-bench is, as 'make gpu-test' does");
        return Ok(());
    };
    let loader = format!("{} {{}}", env!("CARGO_BIN_EXE_gpu-load"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("table");
    let output = Command::new(bench)
        .args([
            "run",
            "--real",
            "--rounds",
            "3",
            "--command",
            &loader,
            "--output",
        ])
        .arg(&folder)
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    print!("{said}");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(said.contains("MAIO, second load"), "{said}");
    Ok(())
}
