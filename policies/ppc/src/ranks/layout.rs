//! How a service splits its model, by the command that starts it.

/// How many workers there are in each dimension, as far as a command line shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Layout {
    /// Replicas.
    pub data: Option<u32>,
    /// Stages of a pipeline.
    pub pipeline: Option<u32>,
    /// Workers that share each layer.
    pub tensor: Option<u32>,
    /// Whether experts are shared, too.
    pub expert: bool,
}

/// Upper bound on the workers in a dimension.
const MOST: u32 = 4096;

impl Layout {
    /// From arguments as vLLM, `SGLang` and `TensorRT-LLM` spell them; `None` without any of those.
    pub fn in_arguments<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let mut layout = Self::default();
        let mut arguments = arguments.into_iter().peekable();
        while let Some(argument) = arguments.next() {
            let (option, value) = match argument.split_once('=') {
                Some((option, value)) => (option, Some(value)),
                None => (argument, arguments.peek().copied()),
            };
            let number = value.and_then(|it| it.parse().ok());
            let number = number.filter(|it| (1..=MOST).contains(it));
            match option.replace('_', "-").as_str() {
                "-tp" | "--tp" | "--tp-size" | "--tensor-parallel-size" => layout.tensor = number,
                "-pp" | "--pp" | "--pp-size" | "--pipeline-parallel-size" => {
                    layout.pipeline = number;
                }
                "-dp" | "--dp" | "--dp-size" | "--data-parallel-size" => layout.data = number,
                // A switch of vLLM's.
                "-ep" | "--enable-expert-parallel" => layout.expert = true,
                "--ep" | "--ep-size" | "--expert-parallel-size" => {
                    layout.expert = number.is_some_and(|it| it > 1);
                }
                _ => {}
            }
        }
        (layout != Self::default()).then_some(layout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_each_framework_are_parsed() {
        let of = |text: &str| Layout::in_arguments(text.split(' '));
        let table = [
            ("vllm serve m -tp 4", (None, None, Some(4), false)),
            (
                "python -m vllm.entrypoints.openai.api_server --tensor-parallel-size=2 -pp 3",
                (None, Some(3), Some(2), false),
            ),
            (
                "vllm serve m --data-parallel-size 2 -tp=4 --enable-expert-parallel",
                (Some(2), None, Some(4), true),
            ),
            (
                "python -m sglang.launch_server --tp 8 --dp-size 2 --ep-size 8 --pp-size 2",
                (Some(2), Some(2), Some(8), true),
            ),
            (
                "trtllm-serve m --tp_size 4 --pp_size 2 --ep_size 1",
                (None, Some(2), Some(4), false),
            ),
        ];
        for (text, (data, pipeline, tensor, expert)) in table {
            let expected = Layout {
                data,
                pipeline,
                tensor,
                expert,
            };
            assert_eq!(of(text), Some(expected), "{text}");
        }
        for text in [
            "vllm serve m",
            "tar -tp file",
            "x --tp",
            "x -tp 0 --pp=a",
            "",
        ] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
