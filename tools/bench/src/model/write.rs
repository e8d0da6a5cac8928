//! Writes a model's files to a disk.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use super::shards::{Model, Shard};
use crate::error::{Failure, Result, file};
use crate::signals;
use crate::units::{MIB, index};

/// Writes all files of a model into a folder.
pub(crate) fn write(model: &Model, folder: &Path) -> Result<()> {
    for (name, text) in &model.small {
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(file("Writing", &path))?;
    }
    for shard in &model.shards {
        if signals::came() {
            return Err(Failure::Interrupted);
        }
        let path = folder.join(&shard.name);
        write_shard(shard, &path).map_err(file("Writing", &path))?;
    }
    Ok(())
}

fn write_shard(shard: &Shard, path: &Path) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(&shard.header)?;
    let mut buffer = vec![0; index(4 * MIB)];
    let mut offset = shard.header.len() as u64;
    while offset < shard.size {
        let part = index((shard.size - offset).min(buffer.len() as u64));
        shard.pattern.fill(offset, &mut buffer[..part]);
        file.write_all(&buffer[..part])?;
        offset += part as u64;
    }
    file.sync_all()
}
