//! What a worker reads is recorded, whichever worker it is and however it reads.

use std::fs;
use std::ops::Range;
use std::path::PathBuf;
use std::thread::sleep;

use serde_json::Value;

use crate::case::{Case, scratch};
use crate::cgroup::{Group, Version};
use crate::daemon::Daemon;
use crate::files::{MIB, set_readahead};
use crate::model::{BUDGET, Model, SIZE, TENSOR, TENSORS, WORKERS, joined, part, recorded};
use crate::mount::Mount;
use crate::outcome::{Outcome, Stop, ensure, ensure_eq, kernel_is_at_least, millis, wait_until};
use crate::procfs;
use crate::reader::{Job, Reader, rests};
use crate::way::Way;

pub(crate) const CASES: &[Case] = &[
    Case::new("cprt_record_threads", 60, threads),
    Case::new("cprt_record_heads_first", 60, heads_first),
    Case::new("cprt_record_closed_mappings", 90, closed_mappings),
    Case::new("cprt_record_any_order", 120, any_order),
    Case::new("cprt_record_children", 60, children),
    Case::new("cprt_record_titles", 60, titles),
    Case::new("cprt_record_stages", 60, stages),
    Case::new("cprt_record_two_services", 180, two_services),
];

/// Bytes that one page table maps.
const TABLE: u64 = 2 * MIB;

/// The groups recorded from one load by these workers, in their order.
fn groups_of(model: &Model, daemon: &Daemon, workers: Vec<Job>) -> Outcome<Vec<Value>> {
    model.make_cold()?;
    // Real workers stay, too: one that ends while others are far from done counts as cut short.
    let stayers = (0..)
        .zip(workers)
        .map(|(number, job)| job.linger(stop(number)));
    let readers = model.load_by(0, stayers)?;
    groups(&template_of_stayers(model, daemon, readers)?)
}

fn groups(template: &Value) -> Outcome<Vec<Value>> {
    let groups = template["groups"].as_array().cloned().unwrap_or_default();
    ensure_eq!(groups.len(), 4, "workers of {template}");
    for (rank, group) in (0..).zip(&groups) {
        ensure_eq!(group["worker"], rank, "who it is");
    }
    Ok(groups)
}

/// Checks that each group has what its worker read, and nothing twice.
fn ensure_exact(groups: &[Value], read: impl Fn(u32) -> Vec<Range<u64>>) -> Outcome {
    for (rank, group) in (0..).zip(groups) {
        let found = recorded(group);
        ensure_eq!(found, joined(read(rank)), "what worker {rank} has read");
        let lengths = group["ranges"].as_array().into_iter().flatten();
        let lengths = lengths.filter(|range| range[0] == "weights.bin");
        let all: u64 = lengths.filter_map(|range| range[2].as_u64()).sum();
        ensure_eq!(all, bytes(&found), "what is recorded of worker {rank}");
    }
    Ok(())
}

/// With the module, checks that groups are exact; otherwise `slack` bytes may be missing, but none extra.
fn ensure_close(groups: &[Value], read: impl Fn(u32) -> Vec<Range<u64>>, slack: u64) -> Outcome {
    if Way::now() == Way::Module {
        return ensure_exact(groups, read);
    }
    for (rank, group) in (0..).zip(groups) {
        let (found, read) = (recorded(group), joined(read(rank)));
        let right = common(&found, &read);
        ensure_eq!(
            bytes(&found),
            right,
            "what worker {rank} has read, and others"
        );
        ensure!(
            right + slack >= bytes(&read),
            "{right} bytes are recorded of worker {rank}, it has read {}",
            bytes(&read)
        );
    }
    Ok(())
}

/// Checks that groups have all that was read, and at most `slack` bytes that other workers read.
fn ensure_covers(groups: &[Value], read: impl Fn(u32) -> Vec<Range<u64>>, slack: u64) -> Outcome {
    for (rank, group) in (0..).zip(groups) {
        let (found, read) = (recorded(group), joined(read(rank)));
        ensure_eq!(
            common(&found, &read),
            bytes(&read),
            "what worker {rank} has read and is recorded"
        );
        let along = bytes(&found) - bytes(&read);
        ensure!(
            along <= slack,
            "{along} bytes of others' are recorded of worker {rank}"
        );
    }
    Ok(())
}

fn bytes(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

/// How many bytes two lists of joined ranges have in common.
fn common(some: &[Range<u64>], others: &[Range<u64>]) -> u64 {
    let both = |one: &Range<u64>, other: &Range<u64>| {
        let (from, to) = (one.start.max(other.start), one.end.min(other.end));
        to.saturating_sub(from)
    };
    let pairs = some
        .iter()
        .flat_map(|one| others.iter().map(move |it| both(one, it)));
    pairs.sum()
}

/// What a worker's threads read counts as the worker's.
fn threads() -> Outcome {
    let model = Model::new()?;
    let daemon = Daemon::start()?;
    model.register(&daemon, &[])?;
    // The last rank starts first: the order of starting does not make ranks.
    let workers = (0..WORKERS).rev().map(|rank| model.worker(rank).threads(3));
    let groups = groups_of(&model, &daemon, workers.collect())?;
    // Without the module: where a folio with I/O in flight, as the loader's, follows cached ones in a read, the
    // kernel's filemap_get_pages returns before its tracepoint. The kernel's own trace has such holes, too, when
    // one plain process reads a file behind another that reads ahead. The worker fills them where a reader goes
    // on in requests of one length; the beginning of a jump may be missing.
    ensure_close(&groups, part, 256 << 10)?;
    daemon.stop()
}

/// Some loaders open a file, look at where each tensor begins, and come back for all of it.
fn heads_first() -> Outcome {
    let model = Model::new()?;
    let daemon = Daemon::start()?;
    model.register(&daemon, &[])?;
    let workers = (0..WORKERS).map(|rank| model.worker(rank).heads(8 << 10));
    let groups = groups_of(&model, &daemon, workers.collect())?;
    // Without the module, the length of a read is inferred from where the reader continues; now and then that of
    // a second read at the same place is taken for that of the first.
    ensure_close(&groups, part, 256 << 10)?;
    daemon.stop()
}

/// What the worker of a rank reads through a mapping. The module reports it as the kernel maps it, 64 KiB
/// at a time. Otherwise it is known from what has been mapped, which may be a whole table; so there the
/// worker reads every third table, and its own among the others.
fn mapped(rank: u32) -> Vec<Range<u64>> {
    if Way::now() == Way::Module {
        return part(rank);
    }
    let all = 0..SIZE / TABLE;
    let own = |at: &u64| at.is_multiple_of(3) || at % u64::from(WORKERS) == u64::from(rank);
    let own = all.filter(own);
    own.map(|at| at * TABLE..(at + 1) * TABLE).collect()
}

/// Workers read a mapping long after they have closed its file.
fn closed_mappings() -> Outcome {
    let model = Model::new()?;
    let daemon = Daemon::start()?;
    model.register(&daemon, &[])?;
    let workers = (0..WORKERS).map(|rank| model.worker(rank).ranges(mapped(rank)).closed());
    let groups = groups_of(&model, &daemon, workers.collect())?;
    // Large folios are mapped whole, and older kernels map 64 KiB of a process's addresses, wherever they begin in the
    // file. Nothing shows here which worker the rest belongs to.
    let maps_more = kernel_is_at_least(6, 16) || !kernel_is_at_least(6, 1);
    if Way::now() == Way::Module && maps_more {
        ensure_covers(&groups, mapped, SIZE / 10)?;
    } else {
        // Without the module, the last few MiB may be mapped after the mappings were last examined.
        ensure_close(&groups, mapped, SIZE / 20)?;
    }
    daemon.stop()
}

/// The file that ends a worker's stay. Real workers stay, too: one that ends while others read counts as
/// cut short.
fn stop(rank: u32) -> PathBuf {
    scratch().join(format!("stop-{rank}"))
}

/// The template recorded from workers that stay until it exists.
fn template_of_stayers(model: &Model, daemon: &Daemon, readers: Vec<Reader>) -> Outcome<Value> {
    for rank in 0..WORKERS {
        wait_until(60, "all to be read", || {
            Ok(rests(&stop(rank)).exists().then_some(()))
        })?;
    }
    let template = model.template(daemon)?;
    for (rank, reader) in (0..).zip(readers) {
        fs::write(stop(rank), "")?;
        reader.finish()?;
    }
    Ok(template)
}

/// The process that opens a file and looks at it is not the one that reads it; and of workers without a
/// known rank, the first to read is the first.
fn children() -> Outcome {
    let model = Model::new()?;
    let daemon = Daemon::start()?;
    model.register(&daemon, &[])?;
    model.make_cold()?;
    Job::new(&model.mount, &model.config).run()?;
    // Without what the parents read.
    let own = |rank| part(rank).split_off(1);
    let worker = |rank: u32| {
        let job = model.worker(rank).unranked().ranges(own(rank));
        let job = job.linger(stop(rank));
        // The last worker has no parent that reads first.
        if rank + 1 < WORKERS {
            job.parent(64 << 10)
        } else {
            job
        }
    };
    let mut readers = Vec::new();
    for rank in 0..WORKERS {
        let reader = worker(rank).start()?;
        wait_until(30, "a worker to read", || {
            Ok(has_read(&reader, rank + 1 < WORKERS)?.then_some(()))
        })?;
        readers.push(reader);
        // Without the module, events within a few ms are reported in any order.
        sleep(millis(300));
    }
    let template = template_of_stayers(&model, &daemon, readers)?;
    ensure_exact(&groups(&template)?, own)?;
    daemon.stop()
}

/// Whether a reader, or its child, has begun to read.
fn has_read(reader: &Reader, child: bool) -> Outcome<bool> {
    let process = if child {
        procfs::children(reader.pid())?.first().copied()
    } else {
        Some(reader.pid())
    };
    // More than any program reads as it starts.
    Ok(process.is_some_and(|it| procfs::io(it, "rchar").is_ok_and(|bytes| bytes >= 128 << 10)))
}

/// Workers that get their rank through a pipe show it in their process title.
fn titles() -> Outcome {
    let model = Model::new()?;
    let daemon = Daemon::start()?;
    model.register(&daemon, &[])?;
    let worker = |rank| {
        let title = format!("VLLM::Worker_TP{rank}");
        model.worker(rank).unranked().title(title)
    };
    let groups = groups_of(&model, &daemon, [3, 1, 0, 2].map(worker).into())?;
    ensure_exact(&groups, part)?;
    daemon.stop()
}

/// Two stages of a pipeline with two workers each: workers with the same tensor rank are kept apart.
fn stages() -> Outcome {
    let model = Model::new()?;
    let daemon = Daemon::start()?;
    model.register(&daemon, &[])?;
    let worker = |(number, rank): (u32, u32)| {
        let title = format!("VLLM::Worker_PP{}_TP{}", rank / 2, rank % 2);
        let job = model.worker(rank).unranked().title(title);
        job.linger(stop(number))
    };
    model.make_cold()?;
    let readers = model.load_by(0, (0..).zip([3, 1, 0, 2]).map(worker))?;
    let template = template_of_stayers(&model, &daemon, readers)?;
    let groups = template["groups"].as_array().cloned().unwrap_or_default();
    let names: Vec<_> = groups.iter().filter_map(|it| it["name"].as_str()).collect();
    ensure_eq!(names, ["0", "1", "PP1 TP0", "PP1 TP1"], "who they are");
    ensure_exact(&groups, part)?;
    daemon.stop()
}

/// A reader copies tensors out of a mapping in any order while MAIO loads them in file order: the template
/// has each byte that was read. The reader reads the whole file, so there is nothing else to record.
fn any_order() -> Outcome {
    // For large folios, which one fault maps whole.
    set_readahead("4096")?;
    let model = Model::new()?;
    let daemon = Daemon::start()?;
    let tensors: Vec<_> = (0..TENSORS)
        .map(|at| at * TENSOR..(at + 1) * TENSOR)
        .collect();
    let every = |step: usize| {
        let each = |from| tensors.iter().skip(from).step_by(step).cloned();
        (0..step).flat_map(each).collect::<Vec<_>>()
    };
    let backwards = tensors.iter().rev().cloned().collect();
    let orders = [
        ("forwards", tensors.clone()),
        ("backwards", backwards),
        ("each-third", every(3)),
        ("each-seventh", every(7)),
    ];
    for (service, order) in orders {
        model.register_as(&daemon, &model.mount, service, &[])?;
        model.make_cold()?;
        let job = Job::new(&model.mount, &model.weights);
        job.mmap().ranges(order).run()?;
        let template = model.template_of(&daemon, service)?;
        let groups = template["groups"].as_array().cloned().unwrap_or_default();
        ensure_eq!(groups.len(), 1, "workers of {template}");
        let found = recorded(&groups[0]);
        let right = common(&found, std::slice::from_ref(&(0..SIZE)));
        ensure!(
            right * 1000 >= SIZE * 999,
            "{service}: {right} of {SIZE} bytes are in the template: {found:?}"
        );
        daemon.unregister(&model.mount)?;
    }
    daemon.stop()
}

/// Two services, each with its own mount, read the same file at the same time, one of them backwards.
fn two_services() -> Outcome {
    set_readahead("128")?;
    let model = Model::new()?;
    let daemon = Daemon::start()?;
    let other = Mount::at(&model.mount.lower, &scratch().join("other"))?;
    let tensors = || (0..TENSORS).map(|at| at * TENSOR..(at + 1) * TENSOR);
    let services = [
        (&model.mount, "forwards", tensors().collect::<Vec<_>>()),
        (&other, "backwards", tensors().rev().collect()),
    ];
    let job = |mount: &Mount, order: &[Range<u64>]| {
        let job = Job::new(mount, &model.weights).ranges(order.to_vec());
        job.pause(30)
    };
    for (mount, service, order) in &services {
        model.register_as(&daemon, mount, service, &[])?;
        model.make_cold()?;
        job(mount, order).run()?;
        model.template_of(&daemon, service)?;
        daemon.unregister(mount)?;
    }
    let budget = format!("budget={BUDGET}");
    for more in [&[][..], &[budget.as_str()]] {
        for (mount, service, _) in &services {
            model.register_as(&daemon, mount, service, &[&["record=never"], more].concat())?;
        }
        let read = at_once(
            &model,
            services.iter().map(|(mount, _, order)| job(mount, order)),
        )?;
        println!("two services {more:?}: the device gave {read} of {SIZE}");
        ensure!(
            Way::now() != Way::Module || !more.is_empty() || read <= SIZE + SIZE * 3 / 100,
            "the device gave {read} bytes for {SIZE}"
        );
        for (mount, ..) in &services {
            daemon.unregister(mount)?;
        }
    }
    // What that costs without the runtime, in as little memory.
    let group = match Group::new(Version::V2, "services") {
        Err(Stop::Skip(why)) => {
            println!("without us: {why}");
            return daemon.stop();
        }
        made => made?,
    };
    group.limit(2 * BUDGET)?;
    let native = services.iter().map(|(_, _, order)| {
        let job = Job::lower(&model.weights).ranges(order.clone());
        job.pause(30).within(group.procs())
    });
    let read = at_once(&model, native)?;
    println!("without us, in a group of as much memory: the device gave {read} of {SIZE}");
    daemon.stop()
}

/// Runs these readers at the same time from a cold cache, and returns how many bytes the device delivers.
fn at_once(model: &Model, jobs: impl Iterator<Item = Job>) -> Outcome<u64> {
    model.make_cold()?;
    let before = model.device_bytes()?;
    let readers: Outcome<Vec<_>> = jobs.map(|job| job.start()).collect();
    for reader in readers? {
        reader.finish()?;
    }
    Ok(model.device_bytes()? - before)
}
