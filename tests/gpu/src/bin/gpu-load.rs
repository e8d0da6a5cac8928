//! Loads all files of a directory to a GPU, one after the other: a loader for `ppc-bench run`. With `--stay`,
//! it is a worker that only uses a GPU until its input ends.
//!
//! ```text
//! gpu-load DIR
//! gpu-load --stay ORDINAL
//! ```

use std::error::Error;

use gpu_tests::Gpu;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Some(why) = gpu_tests::why_not() {
        return Err(why.into());
    }
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [folder] => load(folder),
        ["--stay", ordinal] => {
            let gpu = Gpu::open(ordinal.parse()?)?;
            println!("it works");
            std::io::stdin().read_line(&mut String::new())?;
            drop(gpu);
            Ok(())
        }
        _ => Err("gpu-load DIR, or gpu-load --stay ORDINAL".into()),
    }
}

fn load(folder: &str) -> Result<(), Box<dyn Error>> {
    let mut gpu = Gpu::open(0)?;
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        paths.push(entry?.path());
    }
    paths.sort();
    paths.retain(|path| path.is_file());
    for path in paths {
        // Each file makes room for the next: models may be larger than the GPU's free memory.
        drop(gpu.load(&path)?);
    }
    Ok(())
}
