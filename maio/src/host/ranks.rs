//! The rank of a process among the workers of its service, from what it was started with. Pure.

use ppc::ranks::{self, Ranks};

/// By its environment and its command line, both as `/proc` has them.
pub(super) fn rank_of(environment: &[u8], title: &[u8]) -> Option<u32> {
    let variable = |name: &str| {
        let all = environment.split(|&byte| byte == 0);
        let mut all =
            all.filter_map(|variable| std::str::from_utf8(variable).ok()?.split_once('='));
        all.find_map(|(key, value)| (key == name).then_some(value))
    };
    let by_title = || {
        let title = title.split(|&byte| byte == 0).next()?;
        Ranks::in_title(std::str::from_utf8(title).ok()?)?.tensor
    };
    ranks::global(variable).or_else(by_title)
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
}
