//! Reports programs that are executed on this machine, by the kernel's tracepoint: a perf event per CPU, and a ring.
//!
//! The kernel picks out programs by the ends of their paths, so that others cost a comparison and wake no thread. A
//! listener that wants all programs is woken for few of them, and polls now and then.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use super::record::{Field, Point, half, id_in, record_in, samples, word};
use crate::machine::topology::CpuSet;
use crate::sys::perf::{Event, Ring, Wakes, Whose};
use crate::sys::tracefs::Tracefs;

const POINT: &str = "sched/sched_process_exec";
/// Bytes for the records of one CPU: some hundreds of them.
const ROOM: usize = 32 << 10;
/// How many bytes of records wake us, if no single one does.
const FULL: u32 = 8 << 10;
/// How far apart at most two records of the same exec are, in ns.
const TWICE: u64 = 1_000_000;

/// Which programs are reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// Those whose paths have one of these ends, at once; `*` in it matches anything.
    Ends(Vec<String>),
    /// All programs, at once.
    All,
}

impl Told {
    fn is_nothing(&self) -> bool {
        matches!(self, Self::Ends(ends) if ends.is_empty())
    }

    /// As a filter for the kernel; `None` if none is needed, or this cannot be one.
    fn filter(&self) -> Option<String> {
        /// Upper bound on the length of a filter.
        const LONGEST: usize = 4000;
        const LONGEST_END: usize = 200;

        let Self::Ends(ends) = self else { return None };
        let plain = |end: &String| {
            let may_be = |it: char| it.is_ascii_alphanumeric() || "._-+*".contains(it);
            !end.is_empty() && end.len() <= LONGEST_END && end.chars().all(may_be)
        };
        let rules = ends.iter().map(|end| format!("filename ~ \"*{end}\""));
        let text = rules.collect::<Vec<_>>().join(" || ");
        (ends.iter().all(plain) && text.len() <= LONGEST).then_some(text)
    }
}

/// A program has been executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Exec {
    pub(crate) process: u32,
    /// The path as it was executed: for a script the script's, perhaps relative to the process's directory.
    pub(crate) path: PathBuf,
    time_ns: u64,
}

/// The events of all CPUs.
#[derive(Debug)]
pub(crate) struct Execs {
    rings: Vec<Ring>,
    ready: Epoll,
    path: Field,
    /// Events are reported while this exists.
    #[expect(dead_code, reason = "dropping one ends it")]
    events: Vec<Event>,
}

impl Execs {
    /// Reports these programs at once, and, if `all`, all others after a while.
    pub(crate) fn open(told: &Told, all: bool) -> io::Result<Self> {
        let format = Tracefs::open()?.read(POINT, "format")?;
        let id = id_in(&format).ok_or(io::ErrorKind::Unsupported)?;
        let path = Field::parse(&format, "filename").ok_or(io::ErrorKind::Unsupported)?;
        let online = fs::read_to_string("/sys/devices/system/cpu/online")?;
        let online: CpuSet = online.parse().map_err(io::Error::other)?;
        let ready = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let (mut rings, mut events) = (Vec::new(), Vec::new());
        for cpu in online.iter().map(u32::from) {
            let whose = Whose::Cpu(cpu);
            let owner = Event::dummy(whose)?;
            rings.push(Ring::new(&owner, ROOM)?);
            ready.add(&owner, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
            let mut of_cpu = Vec::new();
            if !told.is_nothing() {
                let at_once = Event::open(id.into(), whose, Wakes::Each)?;
                if let Some(filter) = told.filter() {
                    at_once.filter(&filter)?;
                }
                of_cpu.push(at_once);
            }
            if all && *told != Told::All {
                of_cpu.push(Event::open(id.into(), whose, Wakes::Bytes(FULL))?);
            }
            for event in &of_cpu {
                event.join(&owner)?;
                event.enable(true)?;
            }
            events.push(owner);
            events.append(&mut of_cpu);
        }
        Ok(Self {
            rings,
            ready,
            path,
            events,
        })
    }

    /// Readable when there is a program to report at once.
    pub(crate) fn ready(&self) -> BorrowedFd<'_> {
        self.ready.0.as_fd()
    }

    /// Takes all executed programs, in order.
    pub(crate) fn take(&self) -> Vec<Exec> {
        let (mut bytes, mut execs) = (Vec::new(), Vec::new());
        for ring in &self.rings {
            bytes.clear();
            ring.take(&mut bytes);
            samples(&bytes, |sample| execs.extend(exec(sample, self.path)));
        }
        execs.sort_by_key(|exec| exec.time_ns);
        once(execs)
    }
}

/// Each exec once, though two events may have reported it.
fn once(all: Vec<Exec>) -> Vec<Exec> {
    let mut kept: Vec<Exec> = Vec::new();
    for exec in all {
        let told = kept.iter().rev().find(|it| it.process == exec.process);
        let again =
            told.is_some_and(|it| it.path == exec.path && exec.time_ns - it.time_ns < TWICE);
        if !again {
            kept.push(exec);
        }
    }
    kept
}

fn exec(sample: &[u8], path: Field) -> Option<Exec> {
    let record = record_in(sample)?;
    // Offset and length of the text in the record, including its NUL.
    let place = usize::try_from(path.read(record)?).ok()?;
    let text = record.get(place & 0xffff..)?.get(..place >> 16)?;
    let text = text.split(|&byte| byte == 0).next()?;
    Some(Exec {
        process: half(sample, 0)?,
        path: Path::new(OsStr::from_bytes(text)).to_owned(),
        time_ns: word(sample, 8)?,
    })
}

/// Whether this kernel reports all reads of a start, as Linux does since 6.12; if not, why.
pub(crate) fn kernel_tells() -> io::Result<()> {
    let layouts = super::available::layouts()?;
    if layouts.iter().any(|layout| layout.point == Point::Get) {
        return Ok(());
    }
    Err(io::Error::other(
        "kernels before 6.12 do not report all reads",
    ))
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn filters_are_the_kernels_or_none() {
        let ends = |ends: &[&str]| Told::Ends(ends.iter().map(|&it| it.to_owned()).collect());
        let filter = ends(&["python3*", "vllm"]).filter();
        let expected = "filename ~ \"*python3*\" || filename ~ \"*vllm\"";
        assert_eq!(filter.as_deref(), Some(expected));
        for odd in ["a\"b", "a?", "[a]", "a b", "é", ""] {
            assert_eq!(ends(&[odd]).filter(), None, "{odd}");
        }
        let many: Vec<_> = (0..1000).map(|number| format!("name{number}")).collect();
        assert_eq!(Told::Ends(many).filter(), None);
        assert_eq!(Told::All.filter(), None);
    }

    #[test]
    fn a_sample_is_read_and_a_short_one_is_not() {
        let path = Field { offset: 8, size: 4 };
        let mut record = vec![0; 12];
        record[8..12].copy_from_slice(&(7_u32 << 16 | 0xc).to_ne_bytes());
        record.extend(b"/bin/a\0\0");
        let mut sample = Vec::new();
        sample.extend(5_u32.to_ne_bytes());
        sample.extend(5_u32.to_ne_bytes());
        sample.extend(99_u64.to_ne_bytes());
        sample.extend(0_u64.to_ne_bytes());
        sample.extend(u32::try_from(record.len()).expect("short").to_ne_bytes());
        sample.extend(&record);
        let expected = Exec {
            process: 5,
            path: "/bin/a".into(),
            time_ns: 99,
        };
        assert_eq!(exec(&sample, path), Some(expected));
        for length in 0..sample.len() - 2 {
            assert_eq!(exec(&sample[..length], path), None, "{length}");
        }
    }

    #[test]
    fn duplicate_execs_in_quick_succession_are_dropped() {
        let exec = |process, path: &str, time_ns| Exec {
            process,
            path: path.into(),
            time_ns,
        };
        let all = vec![
            exec(1, "/a", 0),
            exec(2, "/a", 10),
            exec(1, "/a", 20),
            exec(1, "/b", 30),
            exec(1, "/b", 2 * TWICE),
        ];
        let kept = [
            all[0].clone(),
            all[1].clone(),
            all[3].clone(),
            all[4].clone(),
        ];
        assert_eq!(once(all), kept);
    }

    #[test]
    fn programs_are_heard_of_by_their_names() {
        let ends = Told::Ends(vec!["tru*".to_owned()]);
        let execs = match Execs::open(&ends, false) {
            Ok(execs) => execs,
            Err(error) => return crate::sys::testing::skip(&error.to_string()),
        };
        let mut other = Command::new("/bin/echo");
        assert!(other.output().expect("echo").status.success());
        let mut child = Command::new("/bin/true").spawn().expect("true");
        let process = child.id();
        child.wait().expect("its end");
        let until = Instant::now() + Duration::from_secs(20);
        let mut heard = Vec::new();
        while !heard.iter().any(|exec: &Exec| exec.process == process) && Instant::now() < until {
            heard.extend(execs.take());
        }
        let found = heard.iter().find(|exec| exec.process == process);
        assert_eq!(
            found.expect("the execution is reported").path,
            Path::new("/bin/true")
        );
        let is_named = |exec: &Exec| exec.path.to_string_lossy().contains("tru");
        assert!(heard.iter().all(is_named), "{heard:?}");
    }
}
