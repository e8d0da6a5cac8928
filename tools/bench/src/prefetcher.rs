//! The prefetcher built into frameworks: threads that read all files ahead of the workers, in large pieces, so
//! that they are cached. This one begins at once, with the driver, and hands out pieces in file order, which is
//! the best that is possible without knowing the readers; those of frameworks begin later.

use std::fs::File;
use std::io::{BufRead as _, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::error::{Result, system};
use crate::model::Model;
use crate::reader::Task;
use crate::units::index;
use crate::{cgroup, sys};

const THREADS: usize = 8;

/// Runs as the prefetcher: a line on standard input makes it begin, end of file makes it end.
pub(crate) fn prefetch(task: &Task) -> Result<()> {
    sys::end_with_parent();
    if let Some(group) = &task.cgroup {
        cgroup::join(group)?;
    }
    let pieces = pieces(&Model::new(&task.shape), task.piece);
    let next = AtomicUsize::new(0);
    let mut input = std::io::stdin().lock();
    let mut line = String::new();
    println!("ready");
    if input.read_line(&mut line).map_err(system("Waiting"))? == 0 {
        return Ok(());
    }
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let mut buffer = vec![0; index(task.piece)];
                while let Some((name, offset)) = pieces.get(next.fetch_add(1, Relaxed)) {
                    // A worker that needs the file will report the error.
                    if let Ok(file) = File::open(task.folder.join(name)) {
                        let _ = read(&file, *offset, &mut buffer);
                    }
                }
            });
        }
    });
    let _ = input.read_to_end(&mut Vec::new());
    Ok(())
}

fn read(file: &File, offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
    let mut read = 0;
    while read < buffer.len() {
        match file.read_at(&mut buffer[read..], offset + read as u64)? {
            0 => break,
            more => read += more,
        }
    }
    Ok(())
}

fn pieces(model: &Model, piece: u64) -> Vec<(PathBuf, u64)> {
    let mut all = Vec::new();
    for shard in &model.shards {
        let offsets = (0..shard.size.div_ceil(piece)).map(|number| number * piece);
        all.extend(offsets.map(|offset| (PathBuf::from(&shard.name), offset)));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::SMALL;

    #[test]
    fn pieces_cover_all_files_in_their_order() {
        let model = Model::new(&SMALL);
        let pieces = pieces(&model, 1 << 20);
        assert!(pieces.is_sorted());
        for shard in &model.shards {
            let last = pieces.iter().rfind(|(name, _)| *name == *shard.name);
            let (_, last) = last.expect("some of it");
            assert!(*last < shard.size && last + (1 << 20) >= shard.size);
        }
    }
}
