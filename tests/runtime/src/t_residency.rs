//! Files in the page cache on purpose: `ppcctl warm`, `drop` and `verify`, without a daemon and a mount.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::case::{Case, scratch};
use crate::cgroup::{Group, Version};
use crate::files::{KIB, MIB, Pattern};
use crate::mount::lower_of;
use crate::outcome::{For as _, Outcome, ensure, ensure_eq};

pub(crate) const CASES: &[Case] = &[
    Case::new("cprt_residency_comes_and_goes", 90, comes_and_goes),
    Case::new("cprt_residency_ends_with_memory", 120, ends_with_memory),
    Case::new("cprt_residency_moves", 60, moves),
];

/// How often a check is made where the machine may reclaim pages at any time.
const ATTEMPTS: usize = 10;

/// The test's own folder on the file system under test.
fn folder() -> PathBuf {
    let scratch = scratch();
    let name = scratch.file_name().unwrap_or_default();
    lower_of(&name.to_string_lossy())
}

/// Runs ppcctl on a folder, in a group if there is one; returns its exit status and what it told.
fn ppcctl(words: &[&str], folder: &Path, group: Option<&Group>) -> Outcome<(i32, Value)> {
    let enter = "[ -z \"$1\" ] || echo $$ > \"$1\"; shift; exec /usr/bin/ppcctl --json \"$@\"";
    let procs = group.map(Group::procs).unwrap_or_default();
    let output = Command::new("sh")
        .args(["-c", enter, "sh"])
        .arg(procs)
        .args(words)
        .arg(folder)
        .output()?;
    let told = serde_json::from_slice(&output.stdout).of(format_args!("{output:?}"))?;
    Ok((output.status.code().unwrap_or(-1), told))
}

fn comes_and_goes() -> Outcome {
    let folder = folder();
    let large = Pattern::make(&folder.join("model.safetensors"), 1, 24 * MIB)?;
    let small = Pattern::make(&folder.join("sub/config.json"), 2, 100 * KIB + 5)?;
    let all = large.size + small.size.next_multiple_of(4 * KIB);
    let mut cached = (0, 0);
    for _ in 0..ATTEMPTS {
        let (code, told) = ppcctl(&["warm"], &folder, None)?;
        cached = (large.cached()? + small.cached()?, all);
        ensure_eq!(code, 0, "warm: {told}");
        ensure_eq!(told["bytes"], large.size + small.size, "bytes in {told}");
        let (code, told) = ppcctl(&["verify"], &folder, None)?;
        ensure_eq!(code, 0, "verify: {told}");
        let (code, told) = ppcctl(&["drop"], &folder, None)?;
        ensure_eq!(code, 0, "drop: {told}");
        ensure_eq!(large.cached()? + small.cached()?, 0, "cached: {told}");
        if cached.0 == cached.1 {
            break;
        }
    }
    ensure_eq!(cached.0, cached.1, "cached after warm");
    Ok(())
}

/// What a former run has brought in on one node comes to the other.
fn moves() -> Outcome {
    let folder = folder();
    let file = Pattern::make(&folder.join("model.safetensors"), 1, 24 * MIB)?;
    let pages = usize::try_from(file.size / (4 * KIB))?;
    for node in [1, 0, 1] {
        let mut nodes = [0; 2];
        for _ in 0..ATTEMPTS {
            let number = node.to_string();
            let (code, told) = ppcctl(&["warm", "--node", &number], &folder, None)?;
            ensure_eq!(code, 0, "warm: {told}");
            nodes = file.nodes()?;
            if nodes[node] == pages {
                break;
            }
        }
        ensure_eq!(nodes[node], pages, "pages on node {node} of {nodes:?}");
    }
    Ok(())
}

fn ends_with_memory() -> Outcome {
    const LIMIT: u64 = 128 * MIB;
    let group = Group::new(Version::V2, "warm")?;
    group.limit(LIMIT)?;
    let folder = folder();
    let file = Pattern::make(&folder.join("weights"), 3, 2 * LIMIT)?;
    let (code, told) = ppcctl(&["warm"], &folder, Some(&group))?;
    let cached = file.cached()?;
    ensure_eq!(code, 12, "warm: {told}");
    ensure_eq!(told["lacked_memory"], true, "{told}");
    ensure_eq!(told["memory_limit"], LIMIT, "{told}");
    ensure!(
        (LIMIT / 4..LIMIT).contains(&cached),
        "{cached} is cached: {told}"
    );
    ensure_eq!(group.oom_kills()?, 0, "processes killed for memory");
    fs::remove_file(&file.lower)?;
    Ok(())
}
