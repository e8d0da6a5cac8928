//! The framing of the control socket: a JSON object and a newline, in both directions.
//!
//! All functions take readers and writers and know no sockets, so both sides share them and tests use
//! bytes. The daemon uses [`read_request`] and [`write_line`], a client [`write_line`] and
//! [`read_reply`]. The other end may send anything: a line has a greatest length, and a line that is
//! not understood becomes [`Error::Protocol`] with a sentence that can be sent back.

use std::io::{BufRead, Read as _, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::protocol::{Reply, Request};
use crate::{Error, Result};

/// The greatest length of a request, not counting the newline: many times what a mount, a library and a
/// screenful of settings take.
pub const REQUEST_MAX: usize = 1 << 20;

/// The greatest length of a reply: a status has log lines of each mount.
pub const REPLY_MAX: usize = 16 << 20;

/// How many bytes of a line that is not understood are shown.
const EXCERPT: usize = 60;

/// Reads a client's request; `None` if the client has hung up.
///
/// # Errors
///
/// This version does not know the request, which can be sent back as a reply, or the connection broke.
pub fn read_request(from: &mut impl BufRead) -> Result<Option<Request>> {
    let Some(line) = line(from, REQUEST_MAX)? else {
        return Ok(None);
    };
    match serde_json::from_slice(&line) {
        Ok(request) => Ok(Some(request)),
        Err(error) => Err(Error::Protocol(format!(
            "cprtd {} does not know this request: {error}",
            env!("CARGO_PKG_VERSION")
        ))),
    }
}

/// Reads the daemon's answer; `None` if the daemon has hung up.
///
/// # Errors
///
/// The daemon refused, or its answer is not a reply, or the connection broke.
pub fn read_reply<T: DeserializeOwned>(from: &mut impl BufRead) -> Result<Option<T>> {
    let Some(line) = line(from, REPLY_MAX)? else {
        return Ok(None);
    };
    match serde_json::from_slice(&line) {
        Ok(Reply::Ok(reply)) => Ok(Some(reply)),
        Ok(Reply::Error(refusal)) => Err(refusal.into()),
        Err(error) => {
            let start = &line[..line.len().min(EXCERPT)];
            Err(Error::Protocol(format!(
                "client {} does not know this reply: {error}; it begins with {:?}",
                env!("CARGO_PKG_VERSION"),
                String::from_utf8_lossy(start)
            )))
        }
    }
}

/// Writes one message as a whole line.
///
/// # Errors
///
/// The other side is gone, or a path in the message is not UTF-8, which JSON cannot express.
pub fn write_line(to: &mut impl Write, what: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(what)
        .map_err(|error| Error::Protocol(format!("cannot encode the message: {error}")))?;
    line.push(b'\n');
    to.write_all(&line)
        .and_then(|()| to.flush())
        .map_err(|source| Error::System {
            doing: "Writing to the control socket",
            source,
        })
}

/// The next line without its newline; `None` at the end.
pub(crate) fn line(from: &mut impl BufRead, max: usize) -> Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    // One more for the newline; usize is at most as wide as u64 on all platforms that this runs on.
    from.take(max as u64 + 1)
        .read_until(b'\n', &mut line)
        .map_err(|source| Error::System {
            doing: "Reading from the control socket",
            source,
        })?;
    match line.pop() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(line)),
        Some(_) if line.len() >= max => Err(Error::Protocol(format!(
            "A line is longer than {}",
            crate::control::config::Bytes(max as u64)
        ))),
        Some(_) => Err(Error::Protocol(
            "The connection ended in the middle of a line".to_owned(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::control::protocol::{EventLine, MountState, MountStatus, Settings};
    use crate::error::{Refusal, RefusalKind};

    fn request(bytes: &[u8]) -> Result<Option<Request>> {
        read_request(&mut { bytes })
    }

    fn reply(bytes: &[u8]) -> Result<Option<MountStatus>> {
        read_reply(&mut { bytes })
    }

    fn said(what: &impl Serialize) -> String {
        let mut bytes = Vec::new();
        write_line(&mut bytes, what).expect("a Vec takes all");
        String::from_utf8(bytes).expect("JSON is UTF-8")
    }

    fn text<T: std::fmt::Debug>(result: Result<T>) -> String {
        let error = result.expect_err("nothing to be understood");
        assert!(matches!(error, Error::Protocol(_)), "{error:?}");
        error.to_string()
    }

    #[test]
    fn requests_are_these_bytes() {
        let settings: Settings = [("length".to_owned(), "4096".to_owned())].into();
        for (request, bytes) in [
            (
                Request::RegPolicy {
                    mount: "/mnt".into(),
                    library: "/p.so".into(),
                    settings: settings.clone(),
                    cgroup: Some("/sys/fs/cgroup/a".into()),
                    backend: None,
                },
                r#"{"do":"reg-policy","mount":"/mnt","library":"/p.so","settings":{"length":"4096"},"cgroup":"/sys/fs/cgroup/a"}"#,
            ),
            (
                Request::RmPolicy {
                    mount: "/mnt".into(),
                },
                r#"{"do":"rm-policy","mount":"/mnt"}"#,
            ),
            (
                Request::Configure {
                    mount: "/mnt".into(),
                    settings,
                },
                r#"{"do":"configure","mount":"/mnt","settings":{"length":"4096"}}"#,
            ),
            (
                Request::Status { mount: None },
                r#"{"do":"status","mount":null}"#,
            ),
            (
                Request::Stats {
                    mount: Some("/mnt".into()),
                },
                r#"{"do":"stats","mount":"/mnt"}"#,
            ),
            (
                Request::Events {
                    mount: "/mnt".into(),
                },
                r#"{"do":"events","mount":"/mnt"}"#,
            ),
        ] {
            let bytes = format!("{bytes}\n");
            assert_eq!(said(&request), bytes);
            let back = read_request(&mut bytes.as_bytes()).expect("a request");
            assert_eq!(back, Some(request));
        }
    }

    #[test]
    fn optional_request_fields_may_be_omitted() {
        let bytes = br#"{"do":"reg-policy","mount":"/mnt","library":"/p.so"}
"#;
        let expected = Request::RegPolicy {
            mount: "/mnt".into(),
            library: "/p.so".into(),
            settings: Settings::new(),
            cgroup: None,
            backend: None,
        };
        assert_eq!(request(bytes).expect("a request"), Some(expected));
        assert_eq!(
            request(b"{\"do\":\"status\"}\n").expect("a request"),
            Some(Request::Status { mount: None })
        );
    }

    #[test]
    fn requests_that_would_mean_something_else_are_refused() {
        for (bytes, part) in [
            (&b"hello\n"[..], "expected value at line 1"),
            (b"\n", "EOF"),
            (b"\xff\xfe\0\n", "line 1 column 1"),
            (b"{\"do\":\"frob\"}\n", "unknown variant `frob`"),
            (b"{\"mount\":\"/mnt\"}\n", "missing field `do`"),
            (b"{\"do\":\"rm-policy\"}\n", "missing field `mount`"),
            (
                b"{\"do\":\"status\",\"colour\":1}\n",
                "unknown field `colour`",
            ),
            (
                b"{\"do\":\"events\",\"mount\":\"/m\",\"kinds\":[]}\n",
                "unknown field `kinds`",
            ),
            (b"{\"do\":\"status\"} {}\n", "trailing characters"),
        ] {
            let text = text(request(bytes));
            assert!(text.contains("does not know this request"), "{text}");
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn a_request_at_a_time_is_taken() {
        let mut bytes = &b"{\"do\":\"status\"}\n{\"do\":\"stats\"}\nrest"[..];
        for expected in [
            Request::Status { mount: None },
            Request::Stats { mount: None },
        ] {
            assert_eq!(read_request(&mut bytes).expect("one"), Some(expected));
        }
        assert_eq!(bytes, b"rest");
    }

    #[test]
    fn the_end_is_no_request_and_half_a_line_an_error() {
        assert_eq!(request(b"").expect("the end"), None);
        for half in [&b"{\"do\":\"status\"}"[..], b"{", b"x"] {
            let text = text(request(half));
            assert_eq!(text, "The connection ended in the middle of a line");
        }
    }

    #[test]
    fn a_line_may_be_as_long_as_the_limit_and_no_longer() {
        let mut bytes = b"{\"do\":\"status\"}".to_vec();
        bytes.resize(REQUEST_MAX, b' ');
        bytes.push(b'\n');
        let longest = request(&bytes).expect("as long as may be");
        assert_eq!(longest, Some(Request::Status { mount: None }));
        bytes.insert(0, b' ');
        assert_eq!(text(request(&bytes)), "A line is longer than 1 MiB");
        // No more is read of a line that never ends.
        let mut endless = io::BufReader::new(io::repeat(b'x'));
        let never = read_request(&mut endless);
        assert_eq!(text(never), "A line is longer than 1 MiB");
    }

    #[test]
    fn replies_are_these_bytes() {
        let mount = MountStatus {
            path: "/mnt".into(),
            lower: "/srv".into(),
            device: "rfs0".into(),
            state: MountState::Native,
            reason: None,
            policy: None,
        };
        let bytes = r#"{"ok":{"path":"/mnt","lower":"/srv","device":"rfs0","state":"native"}}"#
            .to_owned()
            + "\n";
        assert_eq!(said(&Reply::Ok(mount.clone())), bytes);
        assert_eq!(reply(bytes.as_bytes()).expect("a reply"), Some(mount));

        let refusal = Refusal {
            kind: RefusalKind::NotFound,
            message: "No rfs at /mnt".into(),
            remedy: None,
        };
        let bytes =
            r#"{"error":{"kind":"not-found","message":"No rfs at /mnt"}}"#.to_owned() + "\n";
        assert_eq!(said(&Reply::<()>::Error(refusal.clone())), bytes);
        match reply(bytes.as_bytes()) {
            Err(Error::Refused(said)) => assert_eq!(said, refusal),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn events_are_these_bytes() {
        let event = EventLine {
            kind: "MISS".into(),
            path: Some("a/b".into()),
            file: 7,
            offset: 4096,
            length: 8192,
            time_ns: 5,
            count: 2,
            process: 10,
            thread: 11,
            cpu: 1,
            mmap: true,
            direct: false,
        };
        let bytes = r#"{"ok":{"kind":"MISS","path":"a/b","file":7,"offset":4096,"length":8192,"time_ns":5,"count":2,"process":10,"thread":11,"cpu":1,"mmap":true,"direct":false}}"#;
        let bytes = format!("{bytes}\n");
        assert_eq!(said(&Reply::Ok(event.clone())), bytes);
        let back = read_reply(&mut bytes.as_bytes()).expect("an event");
        assert_eq!(back, Some(event));
    }

    #[test]
    fn replies_may_have_more_than_we_know() {
        let bytes = br#"{"ok":{"path":"/mnt","lower":"/srv","device":"rfs0","state":"native","mood":"good"}}
"#;
        let mount = reply(bytes).expect("a reply").expect("not the end");
        assert_eq!(mount.state, MountState::Native);
    }

    #[test]
    fn invalid_reply_is_quoted_in_the_error() {
        for bytes in [
            &b"HTTP/1.1 400 Bad Request\n"[..],
            b"{\"ok\":{}}\n",
            b"{\"yes\":{}}\n",
            b"{}\n",
        ] {
            let text = text(reply(bytes));
            assert!(text.contains("does not know this reply"), "{text}");
        }
        let shown = text(reply(b"HTTP/1.1 400 Bad Request\n"));
        assert!(
            shown.ends_with(r#"it begins with "HTTP/1.1 400 Bad Request""#),
            "{shown}"
        );
        assert_eq!(reply(b"").expect("the end"), None);
    }

    #[test]
    fn request_with_a_non_utf8_path_is_rejected() {
        use std::os::unix::ffi::OsStringExt as _;
        let mount = std::ffi::OsString::from_vec(vec![b'/', 0xff]).into();
        let text = text(write_line(&mut Vec::new(), &Request::RmPolicy { mount }));
        assert!(text.contains("UTF-8"), "{text}");
    }
}
