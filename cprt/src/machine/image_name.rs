//! The name of a container's image, as the program that manages the container has written it down.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Digits of a container's id.
const DIGITS: usize = 64;
/// Upper bound on bytes read of a file.
const LONGEST: u64 = 8 << 20;
/// Where containerd keeps its containers, in a folder for each of its namespaces; K3s has its own containerd.
const CONTAINERD: [&str; 2] = [
    "run/containerd/io.containerd.runtime.v2.task",
    "run/k3s/containerd/io.containerd.runtime.v2.task",
];
/// Where CRI-O and Podman keep theirs while these run.
const RUNNING: &str = "run/containers/storage/overlay-containers";
/// The lists of Podman's containers; the second one is of those that are removed when they end.
const LISTS: [&str; 2] = ["containers.json", "volatile-containers.json"];
const STORED: &str = "var/lib/containers/storage/overlay-containers";
const DOCKER: &str = "var/lib/docker/containers";

/// The name of the image from which the container was made whose processes are in this cgroup.
pub(crate) fn image_name(cgroup: &str) -> Option<String> {
    below(Path::new("/"), container_of(cgroup)?)
}

/// The id of the container that a cgroup is of, or is in.
fn container_of(cgroup: &str) -> Option<&str> {
    cgroup.rsplit('/').find_map(|part| {
        let mut words = part.split(|letter: char| !letter.is_ascii_hexdigit());
        words.find(|word| word.len() == DIGITS)
    })
}

fn below(root: &Path, id: &str) -> Option<String> {
    let annotated = |folder: PathBuf, name: &str| {
        let config = json(&folder.join("config.json"))?;
        text(&config, &["annotations", name])
    };
    let of_containerd = || {
        let spaces = CONTAINERD.iter().flat_map(|it| fs::read_dir(root.join(it)));
        let mut folders = spaces.flatten().flatten().map(|it| it.path().join(id));
        folders.find_map(|folder| annotated(folder, "io.kubernetes.cri.image-name"))
    };
    let of_crio = || {
        let folder = root.join(RUNNING).join(id).join("userdata");
        annotated(folder, "io.kubernetes.cri-o.ImageName")
    };
    let of_docker = || {
        let config = json(&root.join(DOCKER).join(id).join("config.v2.json"))?;
        text(&config, &["Config", "Image"])
    };
    of_containerd()
        .or_else(of_crio)
        .or_else(of_docker)
        .or_else(|| of_podman(root, id))
}

/// Podman's list has what it knows of each container as text in JSON.
fn of_podman(root: &Path, id: &str) -> Option<String> {
    LISTS.iter().find_map(|list| {
        let list = json(&root.join(STORED).join(list))?;
        let is_it = |one: &&Value| text(one, &["id"]).as_deref() == Some(id);
        let known = text(list.as_array()?.iter().find(is_it)?, &["metadata"])?;
        text(&serde_json::from_str(&known).ok()?, &["image-name"])
    })
}

fn json(path: &Path) -> Option<Value> {
    let mut bytes = Vec::new();
    let file = File::open(path).ok()?;
    file.take(LONGEST).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// The text at these keys, one within the other, if there is any.
fn text(value: &Value, keys: &[&str]) -> Option<String> {
    let found = keys.iter().try_fold(value, |value, key| value.get(key))?;
    let found = found.as_str().filter(|it| !it.is_empty())?;
    Some(found.to_owned())
}

#[cfg(test)]
mod tests {
    use test_support::Folder;

    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const NAME: &str = "docker.io/vllm/vllm-openai:v0.9";

    #[test]
    fn a_cgroup_has_the_id_of_its_container() {
        for cgroup in [
            format!("/system.slice/docker-{ID}.scope"),
            format!("/docker/{ID}"),
            format!("/machine.slice/libpod-{ID}.scope/container"),
            format!("/kubepods.slice/kubepods-pod12_3.slice/cri-containerd-{ID}.scope"),
            format!("/kubepods/burstable/pod0123-4567/{ID}"),
        ] {
            assert_eq!(container_of(&cgroup), Some(ID), "{cgroup}");
        }
        let short = &ID[1..];
        for cgroup in ["/", "/system.slice/a.service", short, &format!("/{ID}0")] {
            assert_eq!(container_of(cgroup), None, "{cgroup}");
        }
    }

    #[test]
    fn image_name_is_found_for_every_container_manager() {
        let annotations = |key| format!(r#"{{"annotations": {{"{key}": "{NAME}"}}}}"#);
        let cri = annotations("io.kubernetes.cri.image-name");
        let crio = annotations("io.kubernetes.cri-o.ImageName");
        let listed = format!(
            r#"[{{"id": "x", "metadata": ""}}, {{"id": "{ID}", "metadata": "{{\"image-name\":\"{NAME}\"}}"}}]"#
        );
        let places = [
            (
                format!("{}/k8s.io/{ID}/config.json", CONTAINERD[0]),
                cri.clone(),
            ),
            (format!("{}/k8s.io/{ID}/config.json", CONTAINERD[1]), cri),
            (format!("{RUNNING}/{ID}/userdata/config.json"), crio),
            (
                format!("{DOCKER}/{ID}/config.v2.json"),
                format!(r#"{{"Config": {{"Image": "{NAME}"}}}}"#),
            ),
            (format!("{STORED}/{}", LISTS[0]), listed.clone()),
            (format!("{STORED}/{}", LISTS[1]), listed),
        ];
        for (number, (path, content)) in places.iter().enumerate() {
            let folder = Folder::new(&format!("image-name-{number}"));
            folder.write(path, content);
            assert_eq!(below(folder.path(), ID).as_deref(), Some(NAME), "{path}");
            assert_eq!(below(folder.path(), &"1".repeat(DIGITS)), None);
        }
    }

    #[test]
    fn malformed_metadata_gives_no_image_name() {
        let folder = Folder::new("image-name-odd");
        let docker = format!("{DOCKER}/{ID}/config.v2.json");
        for content in [
            "",
            "{",
            "[]",
            r#"{"Config": []}"#,
            r#"{"Config": {"Image": ""}}"#,
        ] {
            folder.write(&docker, content);
            folder.write(&format!("{STORED}/{}", LISTS[0]), content);
            assert_eq!(below(folder.path(), ID), None, "{content}");
        }
        assert_eq!(below(&folder.path().join("none"), ID), None);
    }
}
