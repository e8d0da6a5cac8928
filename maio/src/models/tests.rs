use super::*;

/// Folders, given by the paths of their files.
struct FakeFolders(Vec<(String, u64)>, BTreeMap<String, Vec<&'static str>>);

impl FakeFolders {
    fn of(paths: &[&str]) -> Self {
        let files = paths.iter().map(|&path| (path.to_owned(), 1 << 30));
        Self(files.collect(), BTreeMap::new())
    }

    fn key(&self, path: &str) -> ModelKey {
        model_of(path, self).expect("a model")
    }
}

impl Folders for FakeFolders {
    fn list(&self, folder: &str) -> Vec<(String, Option<u64>)> {
        let inside = self.0.iter().filter_map(|(path, size)| {
            let rest = below(folder, path)?;
            Some(match rest.split_once('/') {
                Some((name, _)) => (name.to_owned(), None),
                None => (rest.to_owned(), Some(*size)),
            })
        });
        let entries: BTreeMap<_, _> = inside.collect();
        entries.into_iter().collect()
    }

    fn index(&self, path: &str, _: u64) -> Option<BTreeSet<String>> {
        let names = self.1.get(path)?.iter();
        Some(names.map(|&name| name.to_owned()).collect())
    }
}

fn root(root: &str) -> ModelKey {
    ModelKey {
        root: root.to_owned(),
        family: None,
    }
}

fn family(of: &str, family: &str) -> ModelKey {
    ModelKey {
        family: Some(family.to_owned()),
        ..root(of)
    }
}

#[test]
fn a_file_belongs_to_the_nearest_folder_with_weights() {
    let folders = FakeFolders::of(&[
        "README.md",
        "a/config.json",
        "a/model-00001-of-00002.safetensors",
        "a/model-00002-of-00002.safetensors",
        "a/sub/tokenizer.json",
        "a/lora/adapter_config.json",
        "a/lora/adapter_model.safetensors",
        "b/config.json",
        "b/model.safetensors",
        "c/config.json",
    ]);
    assert_eq!(folders.key("a/model-00002-of-00002.safetensors"), root("a"));
    assert_eq!(folders.key("a/config.json"), root("a"));
    assert_eq!(folders.key("a/sub/tokenizer.json"), root("a"));
    assert_eq!(
        folders.key("a/lora/adapter_model.safetensors"),
        root("a/lora")
    );
    assert_eq!(folders.key("b/config.json"), root("b"));
    assert_eq!(
        folders.key("c/config.json"),
        root("c"),
        "it is being downloaded"
    );
    assert_eq!(model_of("README.md", &folders), None);
    let all = models_among(&folders.0, &folders);
    let roots: Vec<_> = all.into_iter().map(|key| key.root).collect();
    assert_eq!(roots, ["a", "a/lora", "b"]);
}

#[test]
fn model_files_exclude_those_of_other_models() {
    let below_a = [
        "config.json",
        "model-1.safetensors",
        "model-2.safetensors",
        "sub/tokenizer.json",
        "lora/adapter_config.json",
        "lora/adapter_model.safetensors",
        "pytorch_model.bin",
    ];
    let folders = FakeFolders::of(&below_a);
    let names = |wanted| {
        let own = own(folders.0.clone(), wanted, &folders);
        own.into_iter().map(|(path, _)| path).collect::<Vec<_>>()
    };
    assert_eq!(names(None), &below_a[..4]);
    let other = ["config.json", "sub/tokenizer.json", "pytorch_model.bin"];
    assert_eq!(names(Some("pytorch_model")), other);
    assert_eq!(
        folders.key("pytorch_model.bin"),
        family("", "pytorch_model")
    );
}

#[test]
fn standalone_files_in_a_folder_are_separate_models() {
    let folders = FakeFolders::of(&[
        "llm/q4.gguf",
        "llm/q8-00001-of-00002.gguf",
        "llm/q8-00002-of-00002.gguf",
        "one/m-00001-of-00002.gguf",
        "one/m-00002-of-00002.gguf",
        "checkpoints/sd15.safetensors",
        "checkpoints/sdxl.safetensors",
        "old/a.bin",
        "old/b.bin",
    ]);
    assert_eq!(
        folders.key("llm/q8-00002-of-00002.gguf"),
        family("llm", "q8")
    );
    assert_eq!(folders.key("llm/q4.gguf"), family("llm", "q4"));
    assert_eq!(folders.key("one/m-00001-of-00002.gguf"), root("one"));
    let sdxl = folders.key("checkpoints/sdxl.safetensors");
    assert_eq!(sdxl, family("checkpoints", "sdxl"));
    assert_eq!(folders.key("old/b.bin"), root("old"));
}

#[test]
fn files_outside_the_index_are_another_model() {
    let mut folders = FakeFolders::of(&[
        "config.json",
        "consolidated.safetensors",
        "draft.safetensors",
        "model-1.safetensors",
        "model-2.safetensors",
        "model.safetensors.index.json",
    ]);
    assert_eq!(folders.key("draft.safetensors"), root(""), "all are read");
    let copy = family("", "consolidated");
    assert_eq!(folders.key("consolidated.safetensors"), copy);
    let listed = vec!["model-1.safetensors", "model-2.safetensors"];
    let index = "model.safetensors.index.json".to_owned();
    folders.1.insert(index, listed);
    assert_eq!(folders.key("model-1.safetensors"), root(""));
    assert_eq!(folders.key("draft.safetensors"), family("", "draft"));
    assert_eq!(folders.key("consolidated.safetensors"), copy);
}

#[test]
fn a_pipeline_is_one_model() {
    let folders = FakeFolders::of(&[
        "p/model_index.json",
        "p/unet/config.json",
        "p/unet/a.safetensors",
        "p/vae/config.json",
        "p/vae/b.safetensors",
    ]);
    assert_eq!(folders.key("p/vae/b.safetensors"), root("p"));
    assert_eq!(folders.key("p/unet/config.json"), root("p"));
    assert_eq!(models_among(&folders.0, &folders).len(), 1);
}

#[test]
fn opened_files_narrow_down_the_revision() {
    let folders = FakeFolders::of(&[
        "hub/models--x--y/blobs/1",
        "hub/models--x--y/snapshots/aa/config.json",
        "blobs/1",
    ]);
    let of = |path| repository(path, &folders);
    assert_eq!(of("hub/models--x--y/blobs/1"), Some("hub/models--x--y"));
    let linked = "hub/models--x--y/snapshots/aa/config.json";
    assert_eq!(of(linked), Some("hub/models--x--y"));
    assert_eq!(of("blobs/1"), None, "it has no snapshots");
    assert_eq!(revision("hub/models--x--y", linked), Some("aa"));
    assert_eq!(snapshot("", "aa"), "snapshots/aa");

    let set = |all: &[&str]| all.iter().map(|&it| it.to_owned()).collect::<BTreeSet<_>>();
    let mut revisions = Revisions::default();
    let mut narrow = |these: &[&str]| revisions.narrow("r", 1, &set(these), Some("aa"));
    assert_eq!(narrow(&["aa", "bb", "cc"]).as_deref(), Some("aa"));
    assert_eq!(narrow(&["bb", "cc"]).as_deref(), Some("cc"));
    assert_eq!(
        narrow(&["aa", "bb"]).as_deref(),
        Some("bb"),
        "it was not aa"
    );
    assert_eq!(narrow(&["aa"]).as_deref(), Some("aa"), "another load");
    assert_eq!(narrow(&[]), None);
}
