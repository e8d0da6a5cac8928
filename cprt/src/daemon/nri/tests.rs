//! The plugin and a runtime of the test's own, over a pair of sockets.

use std::os::unix::net::UnixListener as BoundListener;
use std::sync::mpsc::{Receiver, channel};

use proptest::prelude::*;
use prost::Message as _;
use test_support::Folder;
use tokio::net::UnixListener;

use super::conversation::Heard;
use super::frames::{Incoming, Message, PLUGIN, REQUEST, RESPONSE, RUNTIME};
use super::messages::{
    ConfigureRequest, ConfigureResponse, Container, ContainerRequest, Image, Mount, PodSandbox,
    RegisterPluginRequest, Request, Response, StateChangeEvent, Status, SynchronizeRequest,
    SynchronizeResponse,
};
use super::*;
use crate::daemon::services::ContainerFacts;

/// Much longer than any of it takes.
const LATEST: Duration = Duration::from_secs(30);

/// The runtime's end.
struct FakeRuntime {
    stream: UnixStream,
    incoming: Incoming,
    messages: Vec<Message>,
    calls: u32,
}

impl FakeRuntime {
    fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            incoming: Incoming::default(),
            messages: Vec::new(),
            calls: 0,
        }
    }

    async fn next(&mut self) -> Message {
        while self.messages.is_empty() {
            let mut room = [0; 1000];
            let read = timeout(LATEST, self.stream.read(&mut room)).await;
            let read = read.expect("in time").expect("a stream");
            assert!(read > 0, "the plugin has hung up");
            let taken = self.incoming.take(&room[..read], &mut self.messages);
            taken.expect("frames");
        }
        self.messages.remove(0)
    }

    /// Has the plugin register itself, and accepts it.
    async fn accept(&mut self) -> RegisterPluginRequest {
        let message = self.next().await;
        assert_eq!((message.connection, message.kind), (RUNTIME, REQUEST));
        let request = Request::decode(&message.content[..]).expect("a request");
        assert_eq!(
            (request.service.as_str(), request.method.as_str()),
            ("nri.pkg.api.v1alpha1.Runtime", "RegisterPlugin")
        );
        self.respond(&message, Response::default()).await;
        RegisterPluginRequest::decode(&request.payload[..]).expect("a registration")
    }

    async fn respond(&mut self, to: &Message, response: Response) {
        let message = Message {
            kind: RESPONSE,
            content: response.encode_to_vec(),
            ..to.clone()
        };
        let sent = self.stream.write_all(&message.bytes()).await;
        sent.expect("a stream");
    }

    async fn call(&mut self, method: &str, payload: &impl prost::Message) -> Response {
        self.calls += 1;
        let stream = 2 * self.calls - 1;
        let sent = self.stream.write_all(&call(stream, method, payload)).await;
        sent.expect("a stream");
        let answer = self.next().await;
        assert_eq!(
            (answer.connection, answer.stream, answer.kind),
            (PLUGIN, stream, RESPONSE)
        );
        Response::decode(&answer.content[..]).expect("a response")
    }
}

fn call(stream: u32, method: &str, payload: &impl prost::Message) -> Vec<u8> {
    let request = Request {
        service: "nri.pkg.api.v1alpha1.Plugin".to_owned(),
        method: method.to_owned(),
        payload: payload.encode_to_vec(),
    };
    let message = Message {
        connection: PLUGIN,
        stream,
        kind: REQUEST,
        content: request.encode_to_vec(),
    };
    message.bytes()
}

fn pod() -> PodSandbox {
    PodSandbox {
        name: "pod".into(),
        namespace: "default".into(),
    }
}

fn container(pid: u32) -> Container {
    let mount = |destination: &str, source: &str| Mount {
        destination: destination.into(),
        kind: "bind".into(),
        source: source.into(),
    };
    Container {
        id: "c1".into(),
        name: "server".into(),
        annotations: [("io.kubernetes.cri.image-name", "a:1")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        args: vec!["serve".into(), "--model=m".into()],
        env: vec!["PATH=/bin".into()],
        mounts: vec![mount("/proc", "proc"), mount("/models", "/srv/models")],
        pid,
        image: None,
    }
}

fn request(pid: u32) -> ContainerRequest {
    ContainerRequest {
        pod: Some(pod()),
        container: Some(container(pid)),
    }
}

fn known(process: Option<u32>) -> Box<ContainerFacts> {
    Box::new(ContainerFacts {
        id: "c1".into(),
        name: "default/pod/server".into(),
        image: Some("a:1".into()),
        arguments: vec!["serve".into(), "--model=m".into()],
        environment: vec!["PATH=/bin".into()],
        volumes: vec![("/models".into(), "/srv/models".into())],
        process,
        runtime: None,
    })
}

/// Runs a test in a runtime of tokio's.
fn run_async<T>(test: impl Future<Output = T>) -> T {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(test)
}

/// A plugin that passes what it hears to the test.
fn passing() -> (Pass, Receiver<ContainerNews>) {
    let (sender, receiver) = channel();
    let pass = move |news| sender.send(news).expect("the test listens");
    (Box::new(pass), receiver)
}

#[test]
fn a_container_is_reported_from_its_creation_to_its_end() {
    let (pass, news) = passing();
    run_async(async {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let plugin = tokio::spawn(async move { talk(ours, None, &pass).await });
        let mut runtime = FakeRuntime::new(theirs);
        let registered = runtime.accept().await;
        assert_eq!(
            (
                registered.plugin_name.as_str(),
                registered.plugin_idx.as_str()
            ),
            ("ppc", "90")
        );
        let configure = ConfigureRequest {
            runtime_name: "containerd".into(),
            runtime_version: "1.7.24".into(),
        };
        let answer = runtime.call("Configure", &configure).await;
        let wanted = ConfigureResponse::decode(&answer.payload[..]).expect("events");
        assert_eq!(wanted.events, 1 << 3 | 1 << 5 | 1 << 9);
        for more in [true, false] {
            let part = SynchronizeRequest { more };
            let answer = runtime.call("Synchronize", &part).await;
            let answer = SynchronizeResponse::decode(&answer.payload[..]).expect("an answer");
            assert_eq!(answer.more, more);
        }
        let nothing = Response::default();
        assert_eq!(runtime.call("CreateContainer", &request(0)).await, nothing);
        assert_eq!(runtime.call("StartContainer", &request(7)).await, nothing);
        assert_eq!(runtime.call("StopContainer", &request(7)).await, nothing);
        // Older runtimes report a start so.
        let changed = StateChangeEvent {
            event: 6,
            pod: Some(pod()),
            container: Some(container(8)),
        };
        assert_eq!(runtime.call("StateChange", &changed).await, nothing);
        let other = StateChangeEvent {
            event: 7,
            ..changed
        };
        assert_eq!(runtime.call("StateChange", &other).await, nothing);
        let answer = runtime.call("Dance", &request(0)).await;
        assert_eq!(answer.status.expect("a refusal").code, 12);
        drop(runtime);
        plugin.await.expect("no panic").expect("a good end");
    });
    let expected = [
        ContainerNews::Created(known(None)),
        ContainerNews::Started(known(Some(7))),
        ContainerNews::Stopped("c1".into()),
        ContainerNews::Started(known(Some(8))),
    ];
    assert_eq!(news.try_iter().collect::<Vec<_>>(), expected);
}

#[test]
fn newer_runtimes_name_the_image_themselves() {
    let mut new = request(7);
    let container = new.container.as_mut().expect("one");
    container.image = Some(Image { name: "b:2".into() });
    let heard = Conversation::with(None).take(&call(1, "StartContainer", &new));
    let heard = heard.expect("a call").news;
    let [News::Container(ContainerNews::Started(facts))] = &heard[..] else {
        panic!("{heard:?}");
    };
    assert_eq!(facts.image.as_deref(), Some("b:2"));
}

#[test]
fn plugin_reports_why_the_runtime_refused_it() {
    let (pass, _news) = passing();
    run_async(async {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let plugin = tokio::spawn(async move { talk(ours, None, &pass).await });
        let mut runtime = FakeRuntime::new(theirs);
        let message = runtime.next().await;
        let status = Status {
            code: 3,
            message: "invalid plugin index".into(),
        };
        let refused = Response {
            status: Some(status),
            payload: Vec::new(),
        };
        runtime.respond(&message, refused).await;
        let why = plugin.await.expect("no panic").expect_err("a refusal");
        assert!(why.to_string().contains("invalid plugin index"), "{why}");
    });
}

#[test]
fn runtime_is_answered_while_news_is_blocked() {
    let (entered, enters) = channel();
    let (leave, leaves) = channel();
    let leaves = std::sync::Mutex::new(leaves);
    let pass: Pass = Box::new(move |_| {
        entered.send(()).expect("the test listens");
        let leaves = leaves.lock().expect("no panic");
        leaves.recv().expect("the test lets it go");
    });
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("sockets");
    ours.set_nonblocking(true).expect("a socket");
    theirs.set_nonblocking(true).expect("a socket");
    let plugin = std::thread::spawn(move || {
        run_async(async move {
            let ours = UnixStream::from_std(ours).expect("a socket");
            talk(ours, None, &pass).await
        })
    });
    run_async(async {
        let mut runtime = FakeRuntime::new(UnixStream::from_std(theirs).expect("a socket"));
        runtime.accept().await;
        let answer = runtime.call("CreateContainer", &request(0)).await;
        assert_eq!(answer, Response::default());
        enters.recv().expect("the news come");
        drop(runtime);
    });
    leave.send(()).expect("it waits");
    plugin.join().expect("no panic").expect("a good end");
}

#[test]
fn plugin_reconnects_after_the_runtime_restarts() {
    let folder = Folder::new("nri");
    let path = folder.path().join("nri.sock");
    let (pass, news) = passing();
    let plugin = NriPlugin::start(path.clone(), pass).expect("a thread");
    for pid in [5, 6] {
        run_async(async {
            let listener = BoundListener::bind(&path).expect("a socket");
            listener.set_nonblocking(true).expect("a socket");
            let listener = UnixListener::from_std(listener).expect("a socket");
            let come = timeout(LATEST, listener.accept()).await.expect("in time");
            let mut runtime = FakeRuntime::new(come.expect("a connection").0);
            runtime.accept().await;
            runtime.call("StartContainer", &request(pid)).await;
            let told = news.recv_timeout(LATEST).expect("in time");
            let mut expected = known(Some(pid));
            // This process is both.
            expected.runtime = Some(std::process::id());
            assert_eq!(told, ContainerNews::Started(expected));
        });
        std::fs::remove_file(&path).expect("ours");
    }
    plugin.end();
}

/// What a conversation makes of bytes; answers have whole frames.
fn heard(bytes: &[u8]) -> std::result::Result<Heard, Failure> {
    Conversation::with(None).take(bytes)
}

proptest! {
    #[test]
    fn whatever_a_call_has_in_it_is_answered_without_an_error(
        method in prop::sample::select(vec![
            "Configure", "Synchronize", "CreateContainer", "StartContainer", "StopContainer",
            "StateChange", "Shutdown",
        ]),
        payload in prop::collection::vec(any::<u8>(), 0..300),
        garbled in prop::option::of((0_usize..2000, any::<u8>())),
    ) {
        let mut payload = payload;
        if let Some((at, byte)) = garbled {
            // Something that was a container before.
            payload = request(7).encode_to_vec();
            let length = payload.len();
            payload[at % length] ^= byte;
        }
        let asked = Request {
            service: String::new(),
            method: method.to_owned(),
            payload,
        };
        let message = Message {
            connection: PLUGIN,
            stream: 9,
            kind: REQUEST,
            content: asked.encode_to_vec(),
        };
        let heard = heard(&message.bytes()).expect("frames");
        let mut answers = Vec::new();
        Incoming::default().take(&heard.answers, &mut answers).expect("frames");
        prop_assert_eq!(answers.len(), 1);
        let response = Response::decode(&answers[0].content[..]).expect("a response");
        prop_assert_eq!(response.status, None);
        prop_assert!(heard.news.len() <= 1);
    }

    #[test]
    fn request_with_arbitrary_content_is_answered_once(content in prop::collection::vec(any::<u8>(), 0..400)) {
        let message = Message { connection: PLUGIN, stream: 1, kind: REQUEST, content };
        let heard = heard(&message.bytes()).expect("frames");
        let mut answers = Vec::new();
        Incoming::default().take(&heard.answers, &mut answers).expect("frames");
        prop_assert_eq!(answers.len(), 1);
    }

    #[test]
    fn conversation_survives_arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        // That it returns is all.
        let _ = heard(&bytes);
    }
}
