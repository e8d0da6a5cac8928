//! The two layers of framing on NRI's socket. Pure.
//!
//! ```text
//! socket ─ frames of two connections: number, length ─ messages of ttrpc: length, stream, kind, flags
//! ```
//!
//! A message may come in several frames, and a frame may have several messages.

/// The connection on which the runtime calls the plugin.
pub(super) const PLUGIN: u32 = 1;
/// The connection on which the plugin calls the runtime.
pub(super) const RUNTIME: u32 = 2;
/// A call.
pub(super) const REQUEST: u8 = 1;
/// The answer to a call.
pub(super) const RESPONSE: u8 = 2;

/// Bytes before the content of a frame: the number of its connection and its length.
const FRAME_HEAD: usize = 8;
/// Bytes before the content of a message.
const MESSAGE_HEAD: usize = 10;
/// Upper bound on a message.
const LONGEST: usize = 4 << 20;
/// Upper bound on our frames: the runtime refuses frames that are longer than its buffer.
const PIECE: usize = 4096;

/// Why nothing further can be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Broken {
    #[error("a frame of {0} bytes is too long")]
    Frame(usize),
    #[error("a message of {0} bytes is too long")]
    Message(usize),
}

/// A message of ttrpc.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) connection: u32,
    /// A response has that of its request.
    pub(super) stream: u32,
    pub(super) kind: u8,
    pub(super) content: Vec<u8>,
}

impl Message {
    /// As it is sent.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let length = u32::try_from(self.content.len()).unwrap_or(u32::MAX);
        let mut message = Vec::with_capacity(MESSAGE_HEAD + self.content.len());
        message.extend(length.to_be_bytes());
        message.extend(self.stream.to_be_bytes());
        message.extend([self.kind, 0]);
        message.extend(&self.content);
        let mut sent = Vec::with_capacity(message.len() + FRAME_HEAD);
        for piece in message.chunks(PIECE) {
            sent.extend(self.connection.to_be_bytes());
            sent.extend(u32::try_from(piece.len()).unwrap_or(0).to_be_bytes());
            sent.extend(piece);
        }
        sent
    }
}

/// Received bytes of an incomplete frame.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    frames: Vec<u8>,
    /// By connection.
    messages: [Vec<u8>; 2],
}

impl Incoming {
    /// Takes in bytes of the socket, and adds the messages that are whole now.
    pub(super) fn take(&mut self, bytes: &[u8], into: &mut Vec<Message>) -> Result<(), Broken> {
        self.frames.extend(bytes);
        let mut at = 0;
        while let Some((connection, length)) = numbers(&self.frames[at..]) {
            if length > LONGEST + MESSAGE_HEAD {
                return Err(Broken::Frame(length));
            }
            let content = at + FRAME_HEAD;
            let Some(content) = self.frames.get(content..content + length) else {
                break;
            };
            // Frames of connections that are not known here are left out.
            if let PLUGIN | RUNTIME = connection {
                let waiting = &mut self.messages[usize::from(connection == RUNTIME)];
                waiting.extend(content);
                whole(connection, waiting, into)?;
            }
            at += FRAME_HEAD + length;
        }
        self.frames.drain(..at);
        Ok(())
    }
}

/// Takes the whole messages out of what has come on a connection.
fn whole(connection: u32, waiting: &mut Vec<u8>, into: &mut Vec<Message>) -> Result<(), Broken> {
    let mut at = 0;
    while let Some(head) = waiting.get(at..at + MESSAGE_HEAD) {
        let (length, stream) = (number(head, 0), number(head, 4));
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > LONGEST {
            return Err(Broken::Message(length));
        }
        let content = at + MESSAGE_HEAD;
        let Some(content) = waiting.get(content..content + length) else {
            break;
        };
        into.push(Message {
            connection,
            stream,
            kind: head[8],
            content: content.to_vec(),
        });
        at += MESSAGE_HEAD + length;
    }
    waiting.drain(..at);
    Ok(())
}

/// Connection and length of a frame, if its head has come.
fn numbers(frame: &[u8]) -> Option<(u32, usize)> {
    let head = frame.get(..FRAME_HEAD)?;
    let length = usize::try_from(number(head, 4)).unwrap_or(usize::MAX);
    Some((number(head, 0), length))
}

/// The number at a place of a head, which is long enough.
fn number(head: &[u8], at: usize) -> u32 {
    let bytes = head[at..].first_chunk().copied();
    u32::from_be_bytes(bytes.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(connection: u32, length: usize) -> Message {
        Message {
            connection,
            stream: 7,
            kind: REQUEST,
            content: (0..251).cycle().take(length).collect(),
        }
    }

    #[test]
    fn a_message_looks_as_the_protocol_has_it() {
        let bytes = message(PLUGIN, 2).bytes();
        let expected = [0, 0, 0, 1, 0, 0, 0, 12, 0, 0, 0, 2, 0, 0, 0, 7, 1, 0, 0, 1];
        assert_eq!(bytes, expected);
    }

    #[test]
    fn our_frames_fit_into_the_buffer_of_the_runtime() {
        let sent = message(PLUGIN, 10_000).bytes();
        let mut rest = &sent[..];
        while let Some((_, length)) = numbers(rest) {
            assert!(length <= PIECE, "{length}");
            rest = &rest[FRAME_HEAD + length..];
        }
        assert!(rest.is_empty());
    }

    #[test]
    fn oversized_frame_or_message_is_rejected_by_its_header() {
        let mut into = Vec::new();
        let head = [0, 0, 0, 1, 0x7f, 0, 0, 0];
        let refused = Incoming::default().take(&head, &mut into);
        assert_eq!(refused, Err(Broken::Frame(0x7f00_0000)));
        let head = [0, 0, 0, 1, 0, 0, 0, 10, 0xff, 0, 0, 0, 0, 0, 0, 1, 1, 0];
        let refused = Incoming::default().take(&head, &mut into);
        assert_eq!(refused, Err(Broken::Message(0xff00_0000)));
        assert!(into.is_empty());
    }

    #[test]
    fn other_connections_are_left_out() {
        let (mut incoming, mut into) = (Incoming::default(), Vec::new());
        let sent = [message(3, 20).bytes(), message(RUNTIME, 1).bytes()].concat();
        incoming.take(&sent, &mut into).expect("frames");
        assert_eq!(into, [message(RUNTIME, 1)]);
    }

    proptest! {
        #[test]
        fn messages_are_the_same_however_they_are_cut(
            lengths in prop::collection::vec((1_u32..3, 0_usize..9000), 0..6),
            cuts in prop::collection::vec(1_usize..5000, 1..40),
        ) {
            let messages: Vec<_> = lengths.iter().map(|&(on, length)| message(on, length)).collect();
            let sent: Vec<u8> = messages.iter().flat_map(Message::bytes).collect();
            let (mut incoming, mut into) = (Incoming::default(), Vec::new());
            let (mut rest, mut cuts) = (&sent[..], cuts.iter().cycle());
            while !rest.is_empty() {
                let cut = cuts.next().map_or(1, |&it| it.min(rest.len()));
                incoming.take(&rest[..cut], &mut into).expect("frames");
                rest = &rest[cut..];
            }
            prop_assert_eq!(into, messages);
            prop_assert!(incoming.frames.is_empty());
        }

        #[test]
        fn parser_of_arbitrary_bytes_buffers_only_the_input(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..20),
            small in any::<bool>(),
        ) {
            let (mut incoming, mut into) = (Incoming::default(), Vec::new());
            for mut piece in pieces {
                if small {
                    // Lengths that are believable.
                    for byte in piece.iter_mut().step_by(2) {
                        *byte &= 1;
                    }
                }
                if incoming.take(&piece, &mut into).is_err() {
                    break;
                }
            }
            let waits = incoming.frames.len() + incoming.messages.iter().map(Vec::len).sum::<usize>();
            prop_assert!(waits <= 4000, "no more waits than has come: {waits}");
        }
    }
}
