//! The server with clients of every kind, over sockets of its own.

use std::io::Write as _;
use std::net::{TcpListener as BoundTcp, TcpStream as Tcp};
use std::os::unix::net::UnixStream as Client;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::time::Instant;

use test_support::Folder;

use super::*;

const GET: &str = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
const SOON: Duration = Duration::from_millis(200);
/// How long to wait for anything, on a machine with much else to do.
const LATEST: Duration = Duration::from_secs(20);

/// A server that answers with what `collect` gives, in its own folder.
struct Rig {
    folder: Folder,
    server: MetricsServer,
}

impl Rig {
    fn new(
        name: &str,
        limits: Limits,
        collect: impl Fn(Format) -> Result<String> + Send + Sync + 'static,
    ) -> Self {
        let folder = Folder::new(name);
        let path = folder.path().join("s");
        let listener = BoundListener::bind(&path).expect("a free name");
        let at = Addresses {
            socket: Some((listener, path)),
            tcp: None,
        };
        let server = MetricsServer::start_within(limits, at, Arc::new(collect));
        let server = server.expect("a thread").expect("an address");
        Self { folder, server }
    }

    fn client(&self) -> Client {
        let client = Client::connect(self.folder.path().join("s")).expect("it listens");
        client.set_read_timeout(Some(LATEST)).expect("a socket");
        client
    }

    fn get(&self) -> String {
        said(self.client(), GET)
    }
}

fn said(mut client: Client, request: &str) -> String {
    client.write_all(request.as_bytes()).expect("it listens");
    heard(client)
}

fn heard(mut from: impl io::Read) -> String {
    let mut text = String::new();
    from.read_to_string(&mut text).expect("a response");
    text
}

#[test]
fn a_collector_gets_the_text_in_its_format() {
    let rig = Rig::new("metrics-get", LIMITS, |format| Ok(format!("{format:?}\n")));
    let text = rig.get();
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    assert!(text.ends_with("\r\n\r\nPrometheus\n"), "{text}");
    let open = GET.replace("Host: localhost", "Accept: application/openmetrics-text");
    let text = said(rig.client(), &open);
    assert!(text.ends_with("\r\n\r\nOpenMetrics\n"), "{text}");
    // In pieces, as a slow network delivers it.
    let mut client = rig.client();
    for piece in GET.as_bytes().chunks(7) {
        client.write_all(piece).expect("it listens");
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(heard(client).ends_with("Prometheus\n"));
    rig.server.end();
}

#[test]
fn silent_clients_make_room_for_others() {
    let limits = Limits {
        places: 2,
        to_ask: SOON,
        ..LIMITS
    };
    let rig = Rig::new("metrics-silent", limits, |_| Ok("text\n".into()));
    let silent: Vec<_> = (0..8).map(|_| rig.client()).collect();
    let since = Instant::now();
    assert!(rig.get().ends_with("text\n"));
    assert!(since.elapsed() >= SOON * 4, "{:?}", since.elapsed());
    for client in silent {
        assert_eq!(heard(client), "", "it was hung up on");
    }
    rig.server.end();
}

#[test]
fn a_client_that_takes_nothing_loses_its_place() {
    let limits = Limits {
        places: 1,
        to_take: SOON,
        ..LIMITS
    };
    let rig = Rig::new("metrics-full", limits, |_| Ok("x".repeat(8 << 20)));
    let mut lazy = rig.client();
    lazy.write_all(GET.as_bytes()).expect("it listens");
    assert!(rig.get().len() > 8 << 20);
    assert!(heard(lazy).len() < 8 << 20, "it was hung up on");
    rig.server.end();
}

#[test]
fn nonsense_is_refused_in_a_way_that_arrives() {
    let rig = Rig::new("metrics-bad", LIMITS, |_| Ok(String::new()));
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), "404"),
        ("\0\r\n\r\n".to_owned(), "400"),
        (
            format!("GET /metrics HTTP/1.1\r\nX: {}", "x".repeat(64 << 10)),
            "431",
        ),
    ] {
        let client = rig.client();
        let mut of_writer = client.try_clone().expect("a socket");
        let writer = std::thread::spawn(move || {
            // The server may have had enough.
            let _ = of_writer.write_all(request.as_bytes());
            let _ = of_writer.shutdown(std::net::Shutdown::Write);
        });
        let text = heard(client);
        assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{text}");
        writer.join().expect("it ends");
    }
    rig.server.end();
}

#[test]
fn collecting_that_hangs_or_panics_is_an_answer_and_holds_up_no_end() {
    let limits = Limits {
        to_collect: SOON,
        to_drain: SOON,
        ..LIMITS
    };
    let has_panicked = AtomicBool::new(false);
    let rig = Rig::new("metrics-panic", limits, move |_| {
        assert!(has_panicked.swap(true, Relaxed), "as a bug would");
        Ok("text\n".into())
    });
    let text = rig.get();
    assert!(text.starts_with("HTTP/1.1 503 "), "{text}");
    assert!(text.ends_with("Collecting the metrics failed\n"), "{text}");
    assert!(rig.get().ends_with("text\n"));
    rig.server.end();

    let (_never, waits) = channel::<()>();
    let waits = Mutex::new(waits);
    let rig = Rig::new("metrics-hung", limits, move |_| {
        let _ = waits.lock().map(|waits| waits.recv());
        Ok(String::new())
    });
    for _ in 0..2 {
        let text = rig.get();
        assert!(text.contains("took longer than"), "{text}");
    }
    let since = Instant::now();
    rig.server.end();
    assert!(since.elapsed() < LATEST / 2, "{:?}", since.elapsed());
}

#[test]
fn at_the_end_clients_get_their_response_and_new_ones_none() {
    let (began, begins) = channel();
    let rig = Rig::new("metrics-end", LIMITS, move |_| {
        began.send(()).expect("the test waits");
        std::thread::sleep(SOON);
        Ok("text\n".into())
    });
    let client = rig.client();
    let served = std::thread::spawn(move || said(client, GET));
    begins.recv_timeout(LATEST).expect("a request");
    let path = rig.folder.path().join("s");
    rig.server.end();
    assert!(served.join().expect("it ends").ends_with("text\n"));
    assert!(!path.exists());
}

#[test]
fn an_address_is_served_once_it_is_free() {
    let taken = BoundTcp::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("a port");
    let limits = Limits {
        again: Duration::from_millis(20),
        ..LIMITS
    };
    let at = Addresses {
        socket: None,
        tcp: Some(address),
    };
    let server = MetricsServer::start_within(limits, at, Arc::new(|_| Ok("text\n".into())));
    let server = server.expect("a thread").expect("an address");
    std::thread::sleep(SOON);
    drop(taken);
    let until = Instant::now() + LATEST;
    let mut client = loop {
        match Tcp::connect(address) {
            Ok(client) => break client,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    client.write_all(GET.as_bytes()).expect("it listens");
    assert!(heard(client).ends_with("text\n"));
    server.end();
    assert!(Tcp::connect(address).is_err(), "it is closed");
}

#[test]
fn metrics_server_without_addresses_is_not_started() {
    let at = Addresses {
        socket: None,
        tcp: None,
    };
    let server = MetricsServer::start(at, Arc::new(|_| Ok(String::new())));
    assert!(server.expect("no need").is_none());
}

#[test]
fn bind_error_without_network_access_names_the_remedy() {
    let why = why_not(&io::Error::from_raw_os_error(libc::EAFNOSUPPORT));
    assert!(why.contains("systemctl edit cprtd"), "{why}");
    let why = why_not(&io::Error::from_raw_os_error(libc::EADDRINUSE));
    assert!(why.contains("in use"), "{why}");
}
