//! How fast workers can be that each read in an order of their own. Pure.
//!
//! No loader can have what each of them wants next, as the device brings one tensor at a time: when the last one
//! comes, some worker still has several before it to process. So such a load takes longer than the device and longer
//! than the workers, whatever is loaded in which order.

/// What a worker takes next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    /// The number of the tensor, from 0.
    pub(crate) tensor: usize,
    /// How long the device takes for it, in seconds.
    pub(crate) device: f64,
    /// How long the worker takes for it once it is there.
    pub(crate) worker: f64,
}

/// A worker on its way through its order.
struct Worker<'a> {
    items: &'a [Item],
    /// When it is done with what it has taken.
    free: f64,
}

impl Worker<'_> {
    /// Takes what has come by `now`.
    fn take(&mut self, came: &[f64], now: f64) {
        while let [first, rest @ ..] = self.items
            && came[first.tensor] <= now
        {
            self.free = self.free.max(came[first.tensor]) + first.worker;
            self.items = rest;
        }
    }

    /// The first of its items that is not loaded yet, and how urgent that is: the work that waits for it, less the
    /// work that comes before it.
    fn wants(&self, came: &[f64], now: f64) -> Option<(f64, Item)> {
        let first = self
            .items
            .iter()
            .position(|it| came[it.tensor].is_infinite())?;
        let work = |items: &[Item]| items.iter().map(|it| it.worker).sum::<f64>();
        let (before, after) = self.items.split_at(first);
        let before = (self.free - now).max(0.0) + work(before);
        Some((work(after) - before, after[0]))
    }
}

/// The time of a load by workers that begin to read after `start` seconds, by a loader that knows all their orders: it
/// loads for the worker that would otherwise be the last. For the testbed's model no faster order was found by
/// 60,000 random changes of it.
pub(crate) fn shortest(orders: &[Vec<Item>], start: f64) -> f64 {
    let tensors = orders.iter().flatten().map(|it| it.tensor + 1).max();
    let mut came = vec![f64::INFINITY; tensors.unwrap_or(0)];
    let worker = |items| Worker { items, free: start };
    let mut workers: Vec<_> = orders.iter().map(|it| worker(it.as_slice())).collect();
    let mut now = 0.0;
    loop {
        for worker in &mut workers {
            worker.take(&came, now);
        }
        let wants = workers.iter().filter_map(|it| it.wants(&came, now));
        let Some((_, next)) = wants.max_by(|one, other| one.0.total_cmp(&other.0)) else {
            break;
        };
        now += next.device;
        came[next.tensor] = now;
    }
    for worker in &mut workers {
        worker.take(&came, f64::MAX);
    }
    workers.iter().map(|it| it.free).fold(now, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn orders(all: &[&[usize]], device: f64, worker: f64) -> Vec<Vec<Item>> {
        let item = |&tensor: &usize| Item {
            tensor,
            device,
            worker,
        };
        all.iter()
            .map(|order| order.iter().map(item).collect())
            .collect()
    }

    #[track_caller]
    fn assert_takes(orders: &[Vec<Item>], start: f64, time: f64) {
        let found = shortest(orders, start);
        assert!((found - time).abs() < 1e-9, "{found} instead of {time}");
    }

    #[test]
    fn one_order_takes_as_long_as_the_slower_of_device_and_worker() {
        let one: &[usize] = &[0, 1, 2, 3];
        assert_takes(&orders(&[one, one], 1.0, 0.5), 0.0, 4.5);
        assert_takes(&orders(&[one], 0.5, 1.0), 0.0, 4.5);
        assert_takes(&orders(&[one], 0.5, 1.0), 2.0, 6.0);
        assert_takes(&[], 1.0, 0.0);
    }

    #[test]
    fn opposite_orders_leave_work_for_when_the_device_is_done() {
        let opposite: [&[usize]; 2] = [&[0, 1, 2, 3], &[3, 2, 1, 0]];
        // The one that gets its first tensor second waits no longer than that, or the other one waits once more.
        assert_takes(&orders(&opposite, 1.0, 1.0), 0.0, 7.0);
        assert_takes(&orders(&opposite, 1.0, 0.0), 0.0, 4.0);
    }
}
