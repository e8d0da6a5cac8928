//! The messages of NRI (`nri.pkg.api.v1alpha1`) and of ttrpc, with the fields that are needed here: protobuf's decoder
//! leaves out all others.

use std::collections::HashMap;

use prost::Message;

/// A call of ttrpc.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Request {
    #[prost(string, tag = "1")]
    pub(super) service: String,
    #[prost(string, tag = "2")]
    pub(super) method: String,
    #[prost(bytes = "vec", tag = "3")]
    pub(super) payload: Vec<u8>,
}

/// The answer to a call.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Response {
    /// Missing or 0 where all went well.
    #[prost(message, optional, tag = "1")]
    pub(super) status: Option<Status>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) payload: Vec<u8>,
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Status {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
    #[prost(string, tag = "2")]
    pub(super) message: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RegisterPluginRequest {
    #[prost(string, tag = "1")]
    pub(super) plugin_name: String,
    /// Two digits: plugins are called in this order.
    #[prost(string, tag = "2")]
    pub(super) plugin_idx: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ConfigureRequest {
    #[prost(string, tag = "2")]
    pub(super) runtime_name: String,
    #[prost(string, tag = "3")]
    pub(super) runtime_version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ConfigureResponse {
    /// Bit N - 1 stands for event N.
    #[prost(int32, tag = "2")]
    pub(super) events: i32,
}

/// What there is when a plugin comes, in several parts if it is much.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SynchronizeRequest {
    #[prost(bool, tag = "3")]
    pub(super) more: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SynchronizeResponse {
    #[prost(bool, tag = "2")]
    pub(super) more: bool,
}

/// What `CreateContainer`, `StartContainer`, `StopContainer` and `RemoveContainer` have in common.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ContainerRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) pod: Option<PodSandbox>,
    #[prost(message, optional, tag = "2")]
    pub(super) container: Option<Container>,
}

/// How runtimes report starts that have no call for them: before NRI 0.12.
#[derive(Clone, PartialEq, Message)]
pub(super) struct StateChangeEvent {
    #[prost(int32, tag = "1")]
    pub(super) event: i32,
    #[prost(message, optional, tag = "2")]
    pub(super) pod: Option<PodSandbox>,
    #[prost(message, optional, tag = "3")]
    pub(super) container: Option<Container>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PodSandbox {
    #[prost(string, tag = "2")]
    pub(super) name: String,
    #[prost(string, tag = "4")]
    pub(super) namespace: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Container {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    #[prost(string, tag = "3")]
    pub(super) name: String,
    #[prost(map = "string, string", tag = "6")]
    pub(super) annotations: HashMap<String, String>,
    #[prost(string, repeated, tag = "7")]
    pub(super) args: Vec<String>,
    #[prost(string, repeated, tag = "8")]
    pub(super) env: Vec<String>,
    #[prost(message, repeated, tag = "9")]
    pub(super) mounts: Vec<Mount>,
    /// 0 where there is no process yet, and always by CRI-O.
    #[prost(uint32, tag = "12")]
    pub(super) pid: u32,
    /// By the newest runtimes only.
    #[prost(message, optional, tag = "22")]
    pub(super) image: Option<Image>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Mount {
    #[prost(string, tag = "1")]
    pub(super) destination: String,
    #[prost(string, tag = "2")]
    pub(super) kind: String,
    #[prost(string, tag = "3")]
    pub(super) source: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Image {
    #[prost(string, tag = "1")]
    pub(super) name: String,
}
