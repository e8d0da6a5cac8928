//! What MAIO sees of the machine: the files of the mount by its host's services, and the processes that
//! read them by `/proc`.

mod files;
pub(crate) mod processes;

pub(crate) use files::{FileTable, HostLibrary};
