//! What MAIO sees of the machine beside events: the files of the mount by its host's services, processes by
//! `/proc` and other services by their leases. Everything beyond the host's services is left to a thread.

mod files;
mod node;
mod processes;
mod ranks;
mod thread;

pub(crate) use files::{FileTable, HostLibrary, files_below, info_of};
pub(crate) use node::NodeWatch;
pub(crate) use thread::{IoThread, Reply};

/// An I/O error as the policy's host receives it.
pub(crate) fn failed(error: &std::io::Error) -> ppc::Error {
    ppc::Error::Errno(error.raw_os_error().unwrap_or(libc::EAGAIN))
}
