//! Results as a page that explains itself: one file of HTML, written from the JSON alone.

mod chart;
mod page;
mod svg;
mod words;

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Result, file};
use crate::result::Results;

/// Writes the page of results beside them, and returns its path.
pub(crate) fn write(path: &Path) -> Result<PathBuf> {
    let text = fs::read_to_string(path).map_err(file("Reading", path))?;
    let results: Results = serde_json::from_str(&text)?;
    let path = path.with_extension("html");
    fs::write(&path, page::page(&results)).map_err(file("Writing", &path))?;
    Ok(path)
}
