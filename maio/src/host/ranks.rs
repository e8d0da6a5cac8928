//! The rank of a process among the workers of its service, from what it was started with. Pure, and the one
//! place that knows how launchers and frameworks tell it.

/// Ranks among all workers of a service, wherever they run.
const RANKS: [&str; 4] = ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"];

/// By its environment and its command line, both as `/proc` has them.
pub(super) fn rank_of(environment: &[u8], title: &[u8]) -> Option<u32> {
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
