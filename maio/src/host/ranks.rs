//! A process's rank in its service, and how the service splits its model, by command lines and environment. Pure.

use ppc::ranks::{self, Layout, Ranks};

/// Its number among all workers, by its command line and its environment, both as in `/proc`. A title
/// is the worker's own; variables may be inherited from the process that started all workers.
pub(super) fn rank_of(environment: &[u8], title: &[u8]) -> Option<u32> {
    let variable = |name: &str| {
        let all = environment.split(|&byte| byte == 0);
        let mut all =
            all.filter_map(|variable| std::str::from_utf8(variable).ok()?.split_once('='));
        all.find_map(|(key, value)| (key == name).then_some(value))
    };
    let title = title.split(|&byte| byte == 0).next();
    let title = title.and_then(|it| std::str::from_utf8(it).ok());
    match title.and_then(Ranks::in_title) {
        Some(ranks) => ranks.number(),
        None => ranks::global(variable),
    }
}

/// How a service splits its model, by a command line.
pub(super) fn layout_of(command: &[u8]) -> Option<Layout> {
    let words = command.split(|&byte| byte == 0);
    Layout::in_arguments(words.filter_map(|word| std::str::from_utf8(word).ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_comes_from_title_or_environment() {
        let of = |environment: &str, title: &str| rank_of(environment.as_bytes(), title.as_bytes());
        assert_eq!(of("A=1\0RANK=3\0B=", "python"), Some(3));
        assert_eq!(of("LOCAL_RANK=3", "VLLM::Worker_TP2"), Some(2));
        let stage = Some((1 << 12) + 12);
        assert_eq!(of("RANK=x", "VLLM::Worker_PP1_TP12 "), stage);
        assert_eq!(of("SLURM_PROCID=0", "VLLM::Worker_PP1_TP12"), stage);
        assert_eq!(of("SLURM_PROCID=0\0SLURM_NTASKS=1", "python"), None);
        assert_eq!(of("RANK=0", "VLLM::Worker_TP1_DCP1"), None);
        assert_eq!(of("", "sglang::scheduler_TP0\0x"), Some(0));
        assert_eq!(of("RANKS=1", "VLLM::EngineCore"), None);
    }

    #[test]
    fn tensor_parallel_size_is_parsed_from_the_command() {
        let layout = layout_of(b"vllm\0serve\0m\0-tp\x004\0").expect("a layout");
        assert_eq!(layout.tensor, Some(4));
        assert_eq!(layout_of(b"VLLM::Worker_TP0\0"), None);
    }
}
