//! Facts that events lack: the ranks of readers, which of them are gone, read directly or belong to other services, and
//! what those have yet to read. A thread finds them, in `/proc` and the leases.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ppc::Waker;
use ppc::ranks::Layout;

use super::processes;
use super::thread::{IoThread, Reply};
use crate::peers::{Belongs, Claims, Demand, FileKey, Heard, Members, Peers};

/// Upper bound on processes that are remembered.
const MOST_PROCESSES: usize = 1 << 14;

#[derive(Debug)]
enum NodeQuestion {
    Rank(u32),
    Direct {
        ticket: u64,
        process: u32,
        inode: u64,
    },
    Gone(Vec<u32>),
    Join(u64, PathBuf, Vec<Option<FileKey>>),
    /// With claims if these may have changed; `bool`: the policy waits for the answer.
    Exchange(Demand, Option<Claims>, bool),
    Leave,
}

/// What a process's title, environment and command line say about it.
#[derive(Clone, Copy, Debug, Default)]
struct ProcessWords {
    rank: Option<u32>,
    layout: Option<Layout>,
    owner: Belongs,
}

#[derive(Debug)]
enum NodeAnswer {
    Words(u32, ProcessWords),
    Direct(u64, bool),
    Gone(HashSet<u32>),
    /// Valid for the numbered load only, as files have other numbers in the next one.
    Heard(u64, Result<Heard, String>),
}

/// The answers up to now. Ranks and dead processes are kept for one load only, as process numbers are reused.
#[derive(Debug)]
pub(crate) struct NodeWatch {
    thread: IoThread<NodeQuestion, NodeAnswer>,
    asked: HashSet<u32>,
    words: HashMap<u32, ProcessWords>,
    direct: HashMap<u64, bool>,
    tickets: u64,
    gone: HashSet<u32>,
    /// The thread has been asked which processes are gone, and has not answered.
    looks: bool,
    /// How many loads have been announced to other services.
    load: u64,
}

impl NodeWatch {
    pub(crate) fn start(waker: Waker, members: Option<Arc<Members>>) -> io::Result<Self> {
        let mut peers = None;
        let answer = move |question| find_out(question, &mut peers, members.as_deref());
        Ok(Self {
            thread: IoThread::start("maio-node", waker, answer)?,
            asked: HashSet::new(),
            words: HashMap::new(),
            direct: HashMap::new(),
            tickets: 0,
            gone: HashSet::new(),
            looks: false,
            load: 0,
        })
    }

    /// Takes the thread's answers; returns the latest of what other services say.
    pub(crate) fn collect(&mut self) -> Option<Result<Heard, String>> {
        let answers = self.thread.take().into_iter();
        answers.filter_map(|answer| self.sort(answer)).last()
    }

    /// Waits for an answer; false if none comes within that time.
    pub(crate) fn wait(&mut self, at_most: Duration) -> bool {
        let answer = self.thread.wait(at_most);
        answer.map(|answer| self.sort(answer)).is_some()
    }

    fn sort(&mut self, answer: NodeAnswer) -> Option<Result<Heard, String>> {
        match answer {
            NodeAnswer::Words(process, words) => {
                self.words.insert(process, words);
            }
            NodeAnswer::Direct(ticket, direct) => {
                self.direct.insert(ticket, direct);
            }
            NodeAnswer::Gone(gone) => (self.gone, self.looks) = (gone, false),
            NodeAnswer::Heard(load, heard) => return Some(heard).filter(|_| load == self.load),
        }
        None
    }

    /// Whether an answer is there that an event waits for.
    pub(crate) fn has_urgent(&self) -> bool {
        self.thread.has_urgent()
    }

    /// Asks the thread for the rank of a process, once.
    pub(crate) fn ask_rank(&mut self, process: u32) {
        if self.asked.len() >= MOST_PROCESSES {
            // All ranks are asked for once more.
            self.asked.clear();
            self.words.clear();
        }
        if self.asked.insert(process) {
            self.thread.ask(NodeQuestion::Rank(process));
        }
    }

    /// Whether the question for a process's rank has been answered, if only with none.
    pub(crate) fn knows(&self, process: u32) -> bool {
        self.words.contains_key(&process)
    }

    /// Takes a process to have no rank, because the answer took too long.
    pub(crate) fn give_up_rank(&mut self, process: u32) {
        self.words.entry(process).or_default();
    }

    pub(crate) fn rank(&self, process: u32) -> Option<u32> {
        self.words.get(&process)?.rank
    }

    /// Whose reader a process is, as far as is known.
    pub(crate) fn owner(&self, process: u32) -> Belongs {
        self.words
            .get(&process)
            .map_or(Belongs::Here, |it| it.owner)
    }

    /// How the service of a process splits its model, if that is known.
    pub(crate) fn layout(&self, process: u32) -> Option<Layout> {
        self.words.get(&process)?.layout
    }

    /// Asks whether a process has a file open for I/O around the page cache; returns the ticket of the answer.
    pub(crate) fn ask_direct(&mut self, process: u32, inode: u64) -> u64 {
        self.tickets += 1;
        let ticket = self.tickets;
        self.thread.ask(NodeQuestion::Direct {
            ticket,
            process,
            inode,
        });
        ticket
    }

    /// The answer to that question, if there is one yet.
    pub(crate) fn direct(&self, ticket: u64) -> Option<bool> {
        self.direct.get(&ticket).copied()
    }

    /// The same, and forgets it.
    pub(crate) fn take_direct(&mut self, ticket: u64) -> Option<bool> {
        self.direct.remove(&ticket)
    }

    /// Asks which of these processes are gone, unless that question is pending.
    pub(crate) fn look_for(&mut self, processes: Vec<u32>) {
        if !std::mem::replace(&mut self.looks, true) {
            self.thread.ask(NodeQuestion::Gone(processes));
        }
    }

    /// Whether a process was gone at the last answer.
    pub(crate) fn is_gone(&self, process: u32) -> bool {
        self.gone.contains(&process)
    }

    /// A load begins: exchanges claims with other services in this directory from now on.
    pub(crate) fn join_peers(&mut self, directory: PathBuf, keys: Vec<Option<FileKey>>) {
        self.load += 1;
        self.thread
            .ask(NodeQuestion::Join(self.load, directory, keys));
    }

    /// Publishes how much memory this service takes, and what it has yet to read if that may have changed; `waits` if
    /// the policy waits for what the others say.
    pub(crate) fn exchange(&self, demand: Demand, claims: Option<Claims>, waits: bool) {
        let question = NodeQuestion::Exchange(demand, claims, waits);
        self.thread.ask(question);
    }

    /// The load is over.
    pub(crate) fn end_load(&mut self) {
        self.thread.ask(NodeQuestion::Leave);
        self.asked.clear();
        self.words.clear();
        self.direct.clear();
        self.gone.clear();
    }
}

fn find_out(
    question: NodeQuestion,
    peers: &mut Option<(u64, Peers)>,
    members: Option<&Members>,
) -> Reply<NodeAnswer> {
    match question {
        NodeQuestion::Rank(process) => {
            let words = ProcessWords {
                rank: processes::read_rank(process),
                layout: processes::read_layout(process),
                owner: members.map_or(Belongs::Here, |it| it.owner(process, processes::parent)),
            };
            Reply::Urgent(NodeAnswer::Words(process, words))
        }
        NodeQuestion::Direct {
            ticket,
            process,
            inode,
        } => {
            let direct = processes::reads_direct(process, inode);
            Reply::Urgent(NodeAnswer::Direct(ticket, direct))
        }
        NodeQuestion::Gone(mut all) => {
            all.retain(|&process| !processes::is_alive(process));
            Reply::Quiet(NodeAnswer::Gone(all.into_iter().collect()))
        }
        NodeQuestion::Join(load, directory, keys) => {
            // The lease of an earlier load goes first.
            *peers = None;
            match Peers::join(&directory, keys) {
                Ok(joined) => *peers = Some((load, joined)),
                Err(error) => {
                    let directory = directory.display();
                    let line = format!(
                        "Cannot exchange claims with other services in {directory}: {error}"
                    );
                    return Reply::Urgent(NodeAnswer::Heard(load, Err(line)));
                }
            }
            Reply::Nothing
        }
        NodeQuestion::Exchange(demand, ours, waits) => {
            let Some((load, joined)) = peers else {
                return Reply::Nothing;
            };
            let load = *load;
            let theirs = joined.exchange(demand, ours.as_ref()).map_err(|error| {
                *peers = None;
                format!("No longer exchanges claims with other services: {error}")
            });
            let answer = NodeAnswer::Heard(load, theirs);
            if waits {
                Reply::Urgent(answer)
            } else {
                Reply::Quiet(answer)
            }
        }
        NodeQuestion::Leave => {
            *peers = None;
            Reply::Nothing
        }
    }
}
