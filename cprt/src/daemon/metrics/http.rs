//! The part of HTTP that a collector of metrics speaks: one request without a body, one response, and no more. Pure.

use crate::control::metrics::Format;

/// The greatest length of a request.
const MAX: usize = 8 << 10;

/// What a client asks, or the refusal.
pub(super) type Head = Result<Request, Response>;

/// A request for the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) format: Format,
    /// It wants no body.
    is_head: bool,
}

/// What the client gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Response {
    status: &'static str,
    headers: &'static str,
    content_type: &'static str,
    body: String,
    is_head: bool,
}

impl Request {
    /// The response with this text, or with why there is none.
    pub(super) fn answered(self, text: Result<String, String>) -> Response {
        let is_head = self.is_head;
        match text {
            Ok(body) => Response {
                status: "200 OK",
                headers: "",
                content_type: self.format.content_type(),
                body,
                is_head,
            },
            Err(why) => Response {
                is_head,
                ..refusal("503 Service Unavailable", &why)
            },
        }
    }
}

impl Response {
    pub(super) fn bytes(&self) -> Vec<u8> {
        let Self {
            status,
            headers,
            content_type,
            body,
            ..
        } = self;
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n\
             X-Content-Type-Options: nosniff\r\n{headers}Connection: close\r\n\r\n"
        );
        let mut bytes = head.into_bytes();
        if !self.is_head {
            bytes.extend_from_slice(body.as_bytes());
        }
        bytes
    }
}

fn refusal(status: &'static str, why: &str) -> Response {
    Response {
        status,
        headers: "",
        content_type: "text/plain; charset=utf-8",
        body: format!("{why}\n"),
        is_head: false,
    }
}

/// What a client asks with what it has sent so far; `None` if it has to send more.
pub(super) fn head(bytes: &[u8]) -> Option<Head> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
    match end {
        Some(end) if end <= MAX => Some(request(&String::from_utf8_lossy(&bytes[..end]))),
        None if bytes.len() < MAX + 4 => None,
        _ => Some(Err(refusal(
            "431 Request Header Fields Too Large",
            "The request is longer than 8 KiB",
        ))),
    }
}

fn request(head: &str) -> Head {
    let (first, headers) = head.split_once("\r\n").unwrap_or((head, ""));
    let words: Vec<_> = first.split(' ').collect();
    let [method, target, version] = words[..] else {
        return Err(refusal("400 Bad Request", "This is not an HTTP request"));
    };
    if !version.starts_with("HTTP/1.") {
        let why = "cprtd speaks HTTP/1.1 only";
        return Err(refusal("505 HTTP Version Not Supported", why));
    }
    let path = target.split_once('?').map_or(target, |(path, _)| path);
    if path != "/metrics" {
        return Err(refusal("404 Not Found", "The metrics are at /metrics"));
    }
    if !matches!(method, "GET" | "HEAD") {
        return Err(Response {
            headers: "Allow: GET, HEAD\r\n",
            ..refusal("405 Method Not Allowed", "The metrics can only be read")
        });
    }
    let fields = headers.split("\r\n");
    let fields = fields.filter_map(|line| line.split_once(':'));
    let accept = fields.filter(|(name, _)| name.eq_ignore_ascii_case("accept"));
    let accept: Vec<_> = accept.map(|(_, value)| value).collect();
    Ok(Request {
        format: Format::accepted(&accept.join(",")),
        is_head: method == "HEAD",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(text: &str) -> Head {
        let head = head(text.as_bytes());
        head.unwrap_or_else(|| panic!("{text:?} is not whole"))
    }

    fn refused(text: &str) -> &'static str {
        asked(text).expect_err(text).status
    }

    #[test]
    fn collectors_get_the_format_that_they_ask_for() {
        let get = |format| {
            Ok(Request {
                format,
                is_head: false,
            })
        };
        let prometheus = "GET /metrics HTTP/1.1\r\nHost: a\r\naccept: text/plain;q=0.5\r\n\
                          ACCEPT:application/openmetrics-text; version=1.0.0\r\n\r\n";
        assert_eq!(asked(prometheus), get(Format::OpenMetrics));
        assert_eq!(
            asked("GET /metrics HTTP/1.0\r\n\r\n"),
            get(Format::Prometheus)
        );
        let query = "GET /metrics?a=/b HTTP/1.1\r\nX: \u{fffd}\r\n\r\nbody";
        assert_eq!(asked(query), get(Format::Prometheus));
    }

    #[test]
    fn other_requests_are_refused_with_what_is_wrong() {
        for (text, status) in [
            ("GET / HTTP/1.1\r\n\r\n", "404 Not Found"),
            ("GET /metrics/ HTTP/1.1\r\n\r\n", "404 Not Found"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
            ("get /metrics HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
            ("GET /metrics\r\n\r\n", "400 Bad Request"),
            ("GET  /metrics HTTP/1.1\r\n\r\n", "400 Bad Request"),
            ("{\"do\":\"status\"}\r\n\r\n", "400 Bad Request"),
            ("\r\n\r\n", "400 Bad Request"),
            ("PRI * HTTP/2.0\r\n\r\n", "505 HTTP Version Not Supported"),
        ] {
            assert_eq!(refused(text), status, "{text:?}");
        }
        let post = asked("POST /metrics HTTP/1.1\r\n\r\n").expect_err("a refusal");
        let post = String::from_utf8(post.bytes()).expect("text");
        assert!(post.contains("\r\nAllow: GET, HEAD\r\n"), "{post}");
    }

    #[test]
    fn a_request_ends_or_is_too_long() {
        assert_eq!(head(b""), None);
        assert_eq!(head(b"GET /metrics HTTP/1.1\r\nAccept: a\r\n"), None);
        let long =
            |length: usize| [b"GET /metrics HTTP/1.1\r\nX: ", &vec![b'x'; length][..]].concat();
        assert_eq!(head(&long(MAX - 100)), None);
        let whole = [&long(MAX - 100)[..], b"\r\n\r\n"].concat();
        assert!(matches!(head(&whole), Some(Ok(_))));
        for bytes in [long(MAX), [&long(MAX)[..], b"\r\n\r\n"].concat()] {
            let refused = head(&bytes).expect("an end").expect_err("too long");
            assert!(refused.status.starts_with("431 "), "{refused:?}");
        }
    }

    #[test]
    fn a_response_has_its_length_and_head_no_body() {
        let get = asked("GET /metrics HTTP/1.1\r\n\r\n").expect("a request");
        let text = String::from_utf8(get.answered(Ok("é\n".into())).bytes()).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("both");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"));
        assert!(head.contains("\r\nContent-Length: 3\r\n"), "{head}");
        assert_eq!(body, "é\n");
        let head = asked("HEAD /metrics HTTP/1.1\r\n\r\n").expect("a request");
        for (text, status) in [(Ok("a\n".into()), "200 OK"), (Err("b".into()), "503 S")] {
            let text = String::from_utf8(head.answered(text).bytes()).expect("text");
            assert!(text.starts_with(&format!("HTTP/1.1 {status}")), "{text}");
            assert!(text.contains("\r\nContent-Length: 2\r\n"), "{text}");
            assert!(text.ends_with("\r\n\r\n"), "{text}");
        }
    }
}
