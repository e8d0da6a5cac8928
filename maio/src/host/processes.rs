//! What can be found out about a process that reads.

use std::fs;
use std::path::{Path, PathBuf};

/// Ranks among all workers of a service, wherever they run.
const RANKS: [&str; 4] = ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"];

fn folder(process: u32) -> PathBuf {
    Path::new("/proc").join(process.to_string())
}

/// Whether it is there still.
pub(crate) fn is_alive(process: u32) -> bool {
    folder(process).exists()
}

/// Its rank, by the variables of the usual launchers or by what it calls itself.
pub(crate) fn rank(process: u32) -> Option<u32> {
    let folder = folder(process);
    let environment = fs::read(folder.join("environ")).unwrap_or_default();
    let title = fs::read(folder.join("cmdline")).unwrap_or_default();
    rank_of(&environment, &title)
}

fn rank_of(environment: &[u8], title: &[u8]) -> Option<u32> {
    let variables = || {
        let all = environment.split(|&byte| byte == 0);
        all.filter_map(|variable| std::str::from_utf8(variable).ok()?.split_once('='))
    };
    let named = |name: &&str| {
        let (_, value) = variables().find(|(key, _)| key == name)?;
        value.trim().parse().ok()
    };
    RANKS.iter().find_map(named).or_else(|| rank_in(title))
}

/// vLLM's and `SGLang`'s workers name themselves after their ranks: `VLLM::Worker_TP3`.
fn rank_in(title: &[u8]) -> Option<u32> {
    let name = std::str::from_utf8(title.split(|&byte| byte == 0).next()?).ok()?;
    let ranks = ["VLLM::Worker_", "sglang::scheduler_"]
        .iter()
        .find_map(|prefix| name.strip_prefix(prefix))?;
    let mut parts = ranks.split([' ', '_']);
    parts.find_map(|part| part.strip_prefix("TP")?.parse().ok())
}

/// Whether it has this file open for I/O that goes around the page cache.
pub(crate) fn reads_direct(process: u32, inode: u64) -> bool {
    let Ok(descriptors) = fs::read_dir(folder(process).join("fdinfo")) else {
        return false;
    };
    let texts = descriptors.filter_map(|entry| fs::read_to_string(entry.ok()?.path()).ok());
    texts.into_iter().any(|text| is_direct(&text, inode))
}

fn is_direct(text: &str, inode: u64) -> bool {
    let field = |name| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.map(str::trim)
    };
    let flags = field("flags:").and_then(|flags| i32::from_str_radix(flags, 8).ok());
    let number = field("ino:").and_then(|number| number.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & libc::O_DIRECT != 0) && number == Some(inode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_told_by_launchers_and_by_titles() {
        let of = |environment: &str, title: &str| rank_of(environment.as_bytes(), title.as_bytes());
        assert_eq!(of("A=1\0RANK=3\0B=", "python"), Some(3));
        assert_eq!(of("LOCAL_RANK=3", "VLLM::Worker_TP2"), Some(2));
        assert_eq!(of("RANK=x", "VLLM::Worker_PP1_TP12 "), Some(12));
        assert_eq!(of("", "sglang::scheduler_TP0\0x"), Some(0));
        assert_eq!(of("RANKS=1", "VLLM::EngineCore"), None);
    }

    #[test]
    fn flags_are_octal_and_the_inode_has_to_be_the_same() {
        let text = format!(
            "pos:\t0\nflags:\t0{:o}\nmnt_id:\t28\nino:\t77\n",
            libc::O_DIRECT
        );
        assert!(is_direct(&text, 77));
        assert!(!is_direct(&text, 78));
        assert!(!is_direct("pos:\t0\nflags:\t0100000\nino:\t77\n", 77));
        assert!(!is_direct("", 0));
    }

    #[test]
    fn this_process_is_alive_and_reads_nothing_directly() {
        assert!(is_alive(std::process::id()));
        assert!(!reads_direct(std::process::id(), 1));
        assert!(!is_alive(u32::MAX));
    }
}
