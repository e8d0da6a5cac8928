//! What the plugin and the runtime say to each other, from the first word on. Pure.
//!
//! An error in an answer would make the runtime give the container up, so no event of a container is ever answered with
//! one: what is not understood is answered as if it had been.

use std::collections::HashMap;

use prost::Message as _;

use super::frames::{Broken, Incoming, Message, PLUGIN, REQUEST, RESPONSE, RUNTIME};
use super::messages::{
    ConfigureRequest, ConfigureResponse, Container, ContainerRequest, PodSandbox,
    RegisterPluginRequest, Request, Response, StateChangeEvent, Status, SynchronizeRequest,
    SynchronizeResponse,
};
use crate::daemon::services::{ContainerFacts, ContainerNews};

/// The name of the plugin, and its place among others: late, as these may change arguments and mounts.
const NAME: &str = "ppc";
const PLACE: &str = "90";

/// Numbers of events.
const CREATE: i32 = 4;
const START: i32 = 6;
const STOP: i32 = 10;

/// The code of a call that does not exist here.
const UNIMPLEMENTED: i32 = 12;

/// Where runtimes note the name of the image: containerd and CRI-O.
const IMAGE_NAMES: [&str; 2] = [
    "io.kubernetes.cri.image-name",
    "io.kubernetes.cri-o.ImageName",
];

/// Why the conversation is over.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Failure {
    #[error("it does not speak NRI: {0}")]
    Broken(#[from] Broken),
    #[error("it refuses the plugin: {0}")]
    Refused(String),
}

/// What the runtime has said.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    /// The plugin is accepted by this runtime.
    Runtime { name: String, version: String },
    /// The state of a container changes.
    Container(ContainerNews),
}

/// What follows from bytes that have come.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Heard {
    /// To be sent before anything else is done.
    pub(super) answers: Vec<u8>,
    pub(super) news: Vec<News>,
}

/// A connection to a runtime.
#[derive(Debug)]
pub(super) struct Conversation {
    incoming: Incoming,
    /// The runtime's process, if the kernel names it.
    runtime: Option<u32>,
}

impl Conversation {
    pub(super) fn with(runtime: Option<u32>) -> Self {
        Self {
            incoming: Incoming::default(),
            runtime,
        }
    }

    /// The first word, which is ours.
    pub(super) fn begin() -> Vec<u8> {
        let register = RegisterPluginRequest {
            plugin_name: NAME.to_owned(),
            plugin_idx: PLACE.to_owned(),
        };
        let request = Request {
            service: "nri.pkg.api.v1alpha1.Runtime".to_owned(),
            method: "RegisterPlugin".to_owned(),
            payload: register.encode_to_vec(),
        };
        let message = Message {
            connection: RUNTIME,
            stream: 1,
            kind: REQUEST,
            content: request.encode_to_vec(),
        };
        message.bytes()
    }

    /// Takes in bytes of the runtime.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<Heard, Failure> {
        let (mut messages, mut heard) = (Vec::new(), Heard::default());
        self.incoming.take(bytes, &mut messages)?;
        for message in messages {
            match (message.connection, message.kind) {
                (PLUGIN, REQUEST) => {
                    let answer = self.answer(&message.content, &mut heard.news);
                    let answer = Message {
                        kind: RESPONSE,
                        content: answer.encode_to_vec(),
                        ..message
                    };
                    heard.answers.extend(answer.bytes());
                }
                (RUNTIME, RESPONSE) => accepted(&message.content)?,
                _ => {}
            }
        }
        Ok(heard)
    }

    /// Answers a call, and adds the news in it.
    fn answer(&self, content: &[u8], news: &mut Vec<News>) -> Response {
        let Ok(Request {
            method, payload, ..
        }) = Request::decode(content)
        else {
            return Response::default();
        };
        let payload = &payload[..];
        let mut payload_of_answer = Vec::new();
        match method.as_str() {
            "Configure" => {
                let asked = ConfigureRequest::decode(payload).unwrap_or_default();
                news.push(News::Runtime {
                    name: asked.runtime_name,
                    version: asked.runtime_version,
                });
                let events = [CREATE, START, STOP].map(|event| 1 << (event - 1));
                let wanted = ConfigureResponse {
                    events: events.iter().sum(),
                };
                payload_of_answer = wanted.encode_to_vec();
            }
            "Synchronize" => {
                // Containers that run already have started.
                let asked = SynchronizeRequest::decode(payload).unwrap_or_default();
                payload_of_answer = SynchronizeResponse { more: asked.more }.encode_to_vec();
            }
            "CreateContainer" => news.extend(self.of(payload, CREATE)),
            "StartContainer" => news.extend(self.of(payload, START)),
            "StopContainer" => news.extend(self.of(payload, STOP)),
            "StateChange" => {
                let changed = StateChangeEvent::decode(payload).unwrap_or_default();
                news.extend(self.news_of(changed.event, changed.pod, changed.container));
            }
            "Shutdown" => {}
            _ => {
                return Response {
                    status: Some(Status {
                        code: UNIMPLEMENTED,
                        message: format!("{NAME} has no {method}"),
                    }),
                    payload: Vec::new(),
                };
            }
        }
        Response {
            status: None,
            payload: payload_of_answer,
        }
    }

    fn of(&self, payload: &[u8], event: i32) -> Option<News> {
        let asked = ContainerRequest::decode(payload).ok()?;
        self.news_of(event, asked.pod, asked.container)
    }

    fn news_of(
        &self,
        event: i32,
        pod: Option<PodSandbox>,
        container: Option<Container>,
    ) -> Option<News> {
        let container = container.filter(|it| !it.id.is_empty())?;
        let news = match event {
            CREATE => ContainerNews::Created(self.facts(pod, container)),
            START => ContainerNews::Started(self.facts(pod, container)),
            STOP => ContainerNews::Stopped(container.id),
            _ => return None,
        };
        Some(News::Container(news))
    }

    fn facts(&self, pod: Option<PodSandbox>, container: Container) -> Box<ContainerFacts> {
        let pod = pod.unwrap_or_default();
        let image = container.image.map(|it| it.name);
        let image = image.or_else(|| noted_image(container.annotations));
        let mounts = container.mounts.into_iter();
        Box::new(ContainerFacts {
            name: [pod.namespace, pod.name, container.name].join("/"),
            id: container.id,
            image: image.filter(|it| !it.is_empty()),
            arguments: container.args,
            environment: container.env,
            volumes: mounts
                .filter(|it| it.source.starts_with('/') && it.destination.starts_with('/'))
                .map(|it| (it.destination.into(), it.source.into()))
                .collect(),
            process: (container.pid > 0).then_some(container.pid),
            runtime: self.runtime,
        })
    }
}

/// The answer to our registration.
fn accepted(content: &[u8]) -> Result<(), Failure> {
    let response = Response::decode(content);
    let status = response.ok().and_then(|it| it.status);
    match status.filter(|it| it.code != 0) {
        Some(status) => Err(Failure::Refused(status.message)),
        None => Ok(()),
    }
}

fn noted_image(mut annotations: HashMap<String, String>) -> Option<String> {
    IMAGE_NAMES
        .iter()
        .find_map(|name| annotations.remove(*name))
}
