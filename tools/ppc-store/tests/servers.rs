//! Against servers of S3, of Azure and of `WebDAV`, which `make store-test` has; without them, these are skipped.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use maio::Extent;
use maio::template::{Group, Identity, Store, Template, TemplateKind};
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::{ObjectStore, ObjectStoreExt as _};
use ppc_store::remote::{Remote, Written};
use ppc_store::slot::Place;
use serde_json::Value;
use test_support::{Folder, skip};

/// The bucket, or container, that was made there.
const BUCKET: &str = "fleet";
/// Port 9 of this machine: no server.
const NONE: &str = "http://127.0.0.1:9";

/// A kind of storage.
#[derive(Clone, Copy, Debug)]
enum Kind {
    S3,
    Azure,
}

impl Kind {
    const fn scheme(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Azure => "az",
        }
    }

    /// Where the server is; `None` if there is none.
    fn server(self) -> Option<String> {
        let (variable, why) = match self {
            Self::S3 => (
                "PPC_S3_SERVER",
                "there is no S3 server: make store-test has one",
            ),
            Self::Azure => (
                "PPC_AZURE_SERVER",
                "there is no Azure server: make store-test has one",
            ),
        };
        let server = std::env::var(variable).ok();
        if server.is_none() {
            skip(why);
        }
        server
    }

    /// The program's environment: a test server accepts these credentials from anyone.
    fn environment(self, server: &str) -> Vec<(&'static str, &str)> {
        match self {
            Self::S3 => vec![
                ("AWS_ACCESS_KEY_ID", "node"),
                ("AWS_SECRET_ACCESS_KEY", "secret"),
                ("AWS_REGION", "us-east-1"),
                ("AWS_ALLOW_HTTP", "true"),
                ("AWS_ENDPOINT", server),
            ],
            // The account and its key are those that the library knows for its emulator.
            Self::Azure => vec![
                ("AZURE_STORAGE_USE_EMULATOR", "true"),
                ("AZURITE_BLOB_STORAGE_URL", server),
            ],
        }
    }

    /// The bucket, as any program sees it.
    fn bucket(self, server: &str) -> Arc<dyn ObjectStore> {
        match self {
            Self::S3 => {
                let builder = AmazonS3Builder::new()
                    .with_bucket_name(BUCKET)
                    .with_endpoint(server)
                    .with_allow_http(true)
                    .with_access_key_id("node")
                    .with_secret_access_key("secret")
                    .with_region("us-east-1");
                Arc::new(builder.build().expect("a bucket"))
            }
            // The environment says where it is; `make store-test` sets that.
            Self::Azure => {
                let builder = MicrosoftAzureBuilder::new()
                    .with_container_name(BUCKET)
                    .with_use_emulator(true);
                Arc::new(builder.build().expect("a container"))
            }
        }
    }
}

/// A folder of the bucket that only one test uses.
struct Fleet {
    kind: Kind,
    server: String,
    folder: &'static str,
}

impl Fleet {
    /// `None` if there is no server.
    fn new(kind: Kind, folder: &'static str) -> Option<Self> {
        let server = kind.server()?;
        Some(Self {
            kind,
            server,
            folder,
        })
    }

    fn url(&self) -> String {
        format!("{}://{BUCKET}/{}", self.kind.scheme(), self.folder)
    }

    /// Has the program make a round for the node with this store.
    fn run(&self, store: &Path, more: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_ppc-store"))
            .args([
                "--once",
                "--url",
                &self.url(),
                "--config",
                "/dev/null",
                "--store",
            ])
            .arg(store)
            .args(more)
            .envs(self.kind.environment(&self.server))
            .output()
            .expect("the program")
    }

    /// The same; what it reports.
    fn round(&self, store: &Path) -> Value {
        let output = self.run(store, &["--json"]);
        let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert!(
            output.status.success() && said["ok"] == true,
            "{said} {output:?}"
        );
        said["round"].clone()
    }

    fn bucket(&self) -> Arc<dyn ObjectStore> {
        self.kind.bucket(&self.server)
    }

    async fn put(&self, name: &str, bytes: Vec<u8>) {
        let path = object_store::path::Path::parse(format!("{}/{name}", self.folder));
        let done = self
            .bucket()
            .put(&path.expect("a path"), bytes.into())
            .await;
        done.expect("to put");
    }
}

fn template(node: &str, loads: u32) -> Template {
    let ranges = [
        Extent {
            file: 0,
            first: 0,
            pages: 512,
        },
        Extent {
            file: 0,
            first: 1024,
            pages: 9,
        },
    ];
    Template {
        kind: TemplateKind::Model,
        service: "llama".to_owned(),
        node: node.to_owned(),
        made_s: 1_790_000_000,
        loads,
        files: vec![Identity {
            path: "model.safetensors".to_owned(),
            size: 40 << 20,
            mtime_ns: 1,
            inode: 2,
            header: 3,
        }],
        groups: vec![Group::new(0, Some(0), &ranges).expect("a group")],
    }
}

fn place() -> Place {
    Place::of("llama", &template("any", 1))
}

/// What MAIO on a node that has recorded nothing finds of the service.
fn found(store: &Path) -> Vec<Template> {
    let store = Store::at(store);
    let others = store.load_others("llama", "itself", None);
    others.expect("to look").collect()
}

fn start_tls() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// The tests of one kind of storage.
macro_rules! tests_of {
    ($module:ident, $kind:expr) => {
        mod $module {
            use super::Kind;

            #[test]
            fn a_node_that_has_never_seen_a_service_has_what_another_recorded() {
                super::a_node_that_has_never_seen_a_service_has_what_another_recorded($kind);
            }

            #[tokio::test]
            async fn later_of_two_concurrent_writes_is_reported_lost() {
                super::later_of_two_concurrent_writes_is_reported_lost($kind).await;
            }

            #[tokio::test]
            async fn invalid_objects_are_rejected_once_deleted_ones_dropped() {
                super::invalid_objects_are_rejected_once_deleted_ones_dropped($kind).await;
            }

            #[test]
            fn without_the_storage_what_is_here_stays() {
                super::without_the_storage_what_is_here_stays($kind);
            }
        }
    };
}

tests_of!(s3, Kind::S3);
tests_of!(azure, Kind::Azure);

fn a_node_that_has_never_seen_a_service_has_what_another_recorded(kind: Kind) {
    let Some(fleet) = Fleet::new(kind, "recorded") else {
        return;
    };
    let (one, other) = (Folder::new("ppc-store-one"), Folder::new("ppc-store-other"));
    Store::at(one.path())
        .save(&template("one", 1))
        .expect("to save");
    let report = fleet.round(one.path());
    assert_eq!((&report["put"], &report["lost"]), (&1.into(), &0.into()));
    let report = fleet.round(other.path());
    assert_eq!(
        (&report["fetched"], &report["held"]),
        (&1.into(), &1.into())
    );
    let [known] = &found(other.path())[..] else {
        panic!("one template");
    };
    assert_eq!(known.groups, template("one", 1).groups);

    // Nothing has changed: nothing is fetched, nothing is put.
    for store in [&one, &other] {
        let report = fleet.round(store.path());
        assert_eq!(
            (&report["put"], &report["fetched"]),
            (&0.into(), &0.into()),
            "{report}"
        );
    }

    // A load there has proven it, and the first node's template is not better, so this one replaces it.
    Store::at(other.path())
        .save(&template("other", 2))
        .expect("to save");
    assert_eq!(fleet.round(other.path())["put"], 1);
    let report = fleet.round(one.path());
    assert_eq!(
        (&report["put"], &report["fetched"]),
        (&0.into(), &1.into()),
        "{report}"
    );
    let held = Store::at(one.path()).fleet().load("llama", &place().slot);
    assert_eq!(held.expect("to load").expect("a template").loads, 2);
    let own = Store::at(one.path()).load("llama", "one");
    assert_eq!(own.expect("to load").expect("its own").loads, 1);
}

async fn later_of_two_concurrent_writes_is_reported_lost(kind: Kind) {
    let Some(fleet) = Fleet::new(kind, "at-once") else {
        return;
    };
    start_tls();
    let remote = Remote::over(fleet.bucket(), "at-once".into(), true);
    let bytes = |loads| template("n", loads).to_bytes().expect("bytes");
    let (place, remote) = (place(), &remote);
    let put = |loads, instead| remote.put(&place, bytes(loads), instead);
    let Written::Done(_, first) = put(1, None).await.expect("to put") else {
        panic!("nothing was there");
    };
    assert!(matches!(put(2, None).await.expect("to put"), Written::Lost));
    let done = put(3, Some(first.clone())).await.expect("to put");
    assert!(matches!(done, Written::Done(..)), "{done:?}");
    assert!(matches!(
        put(4, Some(first)).await.expect("to put"),
        Written::Lost
    ));
    let there = remote
        .get(&place)
        .await
        .expect("to get")
        .expect("it is there");
    assert_eq!(there.bytes, bytes(3));
    let listing = remote.list().await.expect("to list");
    assert_eq!(
        listing.objects[0].tag, there.tag,
        "a listing shows the same version"
    );
}

async fn invalid_objects_are_rejected_once_deleted_ones_dropped(kind: Kind) {
    let Some(fleet) = Fleet::new(kind, "hostile") else {
        return;
    };
    start_tls();
    let good = template("n", 1).to_bytes().expect("bytes");
    let mut damaged = good.clone();
    *damaged.last_mut().expect("bytes") ^= 1;
    let slot = |digit: &str| format!("fleet-{}.maio", digit.repeat(16));
    fleet.put(&place().object(), good).await;
    fleet.put(&format!("llama/{}", slot("a")), damaged).await;
    fleet
        .put(
            &format!("llama/{}", slot("b")),
            b"MAIOTPL\n\xff\xff\xff\xff".to_vec(),
        )
        .await;
    fleet
        .put(&format!("llama/{}", slot("c")), vec![0; (64 << 20) + 1])
        .await;
    fleet
        .put(&format!(".ssh/{}", slot("d")), b"key".to_vec())
        .await;
    fleet.put("llama/deep/er.maio", b"x".to_vec()).await;
    let store = Folder::new("ppc-store-hostile");
    let report = fleet.round(store.path());
    let refused = report["refused"].as_array().expect("a list");
    assert_eq!(
        (&report["held"], &report["left"], refused.len()),
        (&1.into(), &1.into(), 2),
        "{report}"
    );
    assert_eq!(found(store.path()).len(), 1);
    let entries = std::fs::read_dir(store.path().join(".fleet")).expect("a folder");
    let mut names: Vec<_> = entries
        .map(|it| it.expect("an entry").file_name())
        .collect();
    names.sort();
    assert_eq!(names, [".known.json", ".tidied", "llama"]);
    let again = fleet.round(store.path());
    assert_eq!(
        (&again["fetched"], &again["held"]),
        (&0.into(), &1.into()),
        "{again}"
    );

    let path = object_store::path::Path::parse(format!("hostile/{}", place().object()));
    fleet
        .bucket()
        .delete(&path.expect("a path"))
        .await
        .expect("to delete");
    let report = fleet.round(store.path());
    assert_eq!(
        (&report["dropped"], &report["held"]),
        (&1.into(), &0.into()),
        "{report}"
    );
    assert!(found(store.path()).is_empty());
}

fn without_the_storage_what_is_here_stays(kind: Kind) {
    let Some(fleet) = Fleet::new(kind, "away") else {
        return;
    };
    let (one, other) = (
        Folder::new("ppc-store-away-one"),
        Folder::new("ppc-store-away-other"),
    );
    Store::at(one.path())
        .save(&template("one", 1))
        .expect("to save");
    fleet.round(one.path());
    fleet.round(other.path());
    let away = Fleet {
        kind,
        server: NONE.to_owned(),
        folder: "away",
    };
    let output = away.run(other.path(), &[]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("starts use the local templates"), "{said}");
    assert_eq!(found(other.path()).len(), 1);
    assert_eq!(fleet.round(other.path())["fetched"], 0, "it is remembered");
}

#[test]
fn dav_a_server_of_files_is_read_and_not_written() {
    let (Ok(server), Ok(root)) = (
        std::env::var("PPC_DAV_SERVER"),
        std::env::var("PPC_DAV_ROOT"),
    ) else {
        return skip("there is no WebDAV server: make store-test has one");
    };
    let file = Path::new(&root).join("ppc").join(place().object());
    std::fs::create_dir_all(file.parent().expect("a folder")).expect("to make it");
    std::fs::write(&file, template("n", 1).to_bytes().expect("bytes")).expect("to write");
    let store = Folder::new("ppc-store-dav");
    Store::at(store.path())
        .save(&template("here", 3))
        .expect("to save");
    let run = || {
        let output = Command::new(env!("CARGO_BIN_EXE_ppc-store"))
            .args([
                "--once",
                "--json",
                "--config",
                "/dev/null",
                "--url",
                &format!("{server}/ppc"),
                "--store",
            ])
            .arg(store.path())
            .output()
            .expect("the program");
        serde_json::from_slice::<Value>(&output.stdout).expect("JSON")["round"].clone()
    };
    let report = run();
    assert_eq!(
        (&report["held"], &report["fetched"], &report["put"]),
        (&1.into(), &1.into(), &0.into()),
        "{report}"
    );
    assert_eq!(found(store.path()).len(), 2);
    assert_eq!(run()["fetched"], 0);
    std::fs::remove_file(file).expect("it is ours");
    assert_eq!(run()["dropped"], 1);
}
