//! Sends each reply when it is due.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use fuser::{Errno, ReplyData};

use super::meter::{Meter, Readings};
use super::service::{Service, Timing};
use crate::sys::{self, Anonymous};
use crate::units::{index, now};

/// A request that is being served.
#[derive(Debug)]
struct Waiting {
    due: u64,
    offset: u64,
    length: u64,
    reply: ReplyData,
}

#[derive(Debug)]
struct Desk {
    /// `None` at full speed: it answers at once.
    service: Option<Service>,
    /// Requests in the order in which they are due.
    queue: VecDeque<Waiting>,
    ended: bool,
}

/// The inside of the device, shared by the thread that takes requests and the one that answers.
#[derive(Debug)]
pub(super) struct Device {
    image: RwLock<Anonymous>,
    desk: Mutex<Desk>,
    news: Condvar,
    meter: Mutex<Meter>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Device {
    /// A device of this many bytes, all zeros, at full speed.
    pub(super) fn new(bytes: u64) -> io::Result<Arc<Self>> {
        let desk = Desk {
            service: None,
            queue: VecDeque::new(),
            ended: false,
        };
        let device = Arc::new(Self {
            image: RwLock::new(Anonymous::new(bytes)?),
            desk: Mutex::new(desk),
            news: Condvar::new(),
            meter: Mutex::new(Meter::new(now())),
        });
        let its = Arc::clone(&device);
        std::thread::Builder::new()
            .name("timer".into())
            .spawn(move || its.answer())?;
        Ok(device)
    }

    /// Sets the speed from now on; `None` for full speed.
    pub(super) fn set(&self, timing: Option<Timing>) {
        lock(&self.desk).service = timing.map(Service::new);
    }

    pub(super) fn reset(&self) {
        *lock(&self.meter) = Meter::new(now());
    }

    pub(super) fn read_meter(&self, cpu_ms: u64) -> Readings {
        lock(&self.meter).read(cpu_ms)
    }

    pub(super) fn end(&self) {
        lock(&self.desk).ended = true;
        self.news.notify_one();
    }

    /// Takes a request.
    pub(super) fn ask(&self, offset: u64, length: u64, reply: ReplyData) {
        let arrived = now();
        let mut desk = lock(&self.desk);
        let due = match &mut desk.service {
            Some(service) => service.arrive(arrived, length),
            None => arrived,
        };
        desk.queue.push_back(Waiting {
            due,
            offset,
            length,
            reply,
        });
        // The timer sleeps until the first request is due; later ones need not wake it.
        if desk.queue.len() == 1 {
            self.news.notify_one();
        }
    }

    pub(super) fn write(&self, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let mut image = self.image.write().unwrap_or_else(PoisonError::into_inner);
        let offset = index(offset);
        let end = offset.checked_add(data.len()).ok_or(Errno::EINVAL)?;
        let place = image.bytes_mut().get_mut(offset..end);
        place.ok_or(Errno::ENOSPC)?.copy_from_slice(data);
        Ok(())
    }

    fn answer(&self) {
        sys::sleep_exactly();
        let mut desk = lock(&self.desk);
        while !desk.ended {
            let left = desk.queue.front().map(|it| it.due.saturating_sub(now()));
            desk = match left {
                None => self.news.wait(desk).unwrap_or_else(PoisonError::into_inner),
                Some(0) => {
                    let first = desk.queue.pop_front();
                    drop(desk);
                    if let Some(first) = first {
                        self.reply(first);
                    }
                    lock(&self.desk)
                }
                Some(left) => {
                    let slept = self.news.wait_timeout(desk, Duration::from_nanos(left));
                    slept.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn reply(&self, waiting: Waiting) {
        let Waiting {
            due,
            offset,
            length,
            reply,
        } = waiting;
        let image = self.image.read().unwrap_or_else(PoisonError::into_inner);
        let all = image.bytes();
        let begin = index(offset).min(all.len());
        let end = index(offset.saturating_add(length)).min(all.len());
        reply.data(&all[begin..end]);
        lock(&self.meter).count(length, due, now());
    }
}
