//! The driver: the main process of a service, which starts workers.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::profile::Task;
use super::work::Worked;
use crate::error::{Failure, Result, file, system};
use crate::model::CONFIG;
use crate::units::now;
use crate::{cgroup, sys};

/// The outcome of a load.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Loaded {
    /// When the driver opened the configuration, in ns of the clock that all processes share.
    pub(crate) began: u64,
    pub(crate) workers: Vec<Worked>,
}

/// The driver's report at its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ended {
    Loaded(Loaded),
    Failed(String),
}

/// Runs as the driver: a line on standard input makes it begin, end of file makes it end.
pub(crate) fn drive(task: &Task) -> Result<()> {
    sys::end_with_parent();
    sys::sleep_exactly();
    let ended = match load(task) {
        Ok(None) => return Ok(()),
        Ok(Some((loaded, workers))) => {
            say(&Ended::Loaded(loaded))?;
            let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
            return workers.into_iter().try_for_each(WorkerProcess::end);
        }
        Err(failure) => Ended::Failed(cprt::error::chain(&failure)),
    };
    say(&ended)
}

fn load(task: &Task) -> Result<Option<(Loaded, Vec<WorkerProcess>)>> {
    if let Some(group) = &task.cgroup {
        cgroup::join(group)?;
    }
    // Workers start early and wait, as starting processes is not part of the measurement.
    let workers = (0..task.profile.workers).map(|rank| WorkerProcess::start(task, rank));
    let mut workers = workers.collect::<Result<Vec<_>>>()?;
    println!("ready");
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    if read.map_err(system("Waiting"))? == 0 {
        return Ok(None);
    }
    let began = now();
    let path = task.folder.join(CONFIG);
    std::fs::read(&path).map_err(file("Reading", &path))?;
    sleep(Duration::from_millis(task.start_ms));
    for worker in &mut workers {
        worker.go()?;
    }
    let worked = workers.iter_mut().map(WorkerProcess::wait);
    let loaded = Loaded {
        began,
        workers: worked.collect::<Result<_>>()?,
    };
    Ok(Some((loaded, workers)))
}

fn say(ended: &Ended) -> Result<()> {
    let text = serde_json::to_string(ended)?;
    let mut output = std::io::stdout().lock();
    let said = writeln!(output, "{text}").and_then(|()| output.flush());
    said.map_err(system("Reporting the outcome"))
}

struct WorkerProcess {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl WorkerProcess {
    fn start(task: &Task, rank: u32) -> Result<Self> {
        let text = serde_json::to_string(task)?;
        let mut command = Command::new("/proc/self/exe");
        if let Some(title) = task.profile.worker_title(rank) {
            command.arg0(title);
        }
        let mut child = command
            .args(["work", "--rank", &rank.to_string(), "--task", &text])
            // As launchers of workers do.
            .env("RANK", rank.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(system("Starting a worker"))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failure::Said("A process has no pipes".to_owned()));
        };
        let mut worker = Self {
            child,
            input,
            output: BufReader::new(output),
        };
        worker.hear()?;
        Ok(worker)
    }

    fn go(&mut self) -> Result<()> {
        let said = self.input.write_all(b"go\n");
        said.map_err(system("Making a worker begin"))
    }

    fn wait(&mut self) -> Result<Worked> {
        Ok(serde_json::from_str(&self.hear()?)?)
    }

    fn hear(&mut self) -> Result<String> {
        let mut line = String::new();
        let read = self.output.read_line(&mut line);
        match read.map_err(system("Reading from a worker"))? {
            0 => Err(Failure::Said(format!(
                "A worker has ended: {:?}",
                self.child.try_wait()
            ))),
            _ => Ok(line),
        }
    }

    fn end(mut self) -> Result<()> {
        drop(self.input);
        self.child.wait().map_err(system("Waiting for a worker"))?;
        Ok(())
    }
}
