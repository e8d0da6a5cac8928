//! A fleet of up to a thousand nodes that share one storage: the rounds of the product, an hour or two of them, by a
//! clock that leaps from one event to the next.
//!
//! cargo test -p ppc-store --test fleet -- --nocapture --test-threads 1

#[path = "fleet/directory.rs"]
mod directory;
#[path = "fleet/storage.rs"]
mod storage;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use maio::template::Template;
use object_store::ObjectStore;
use object_store::path::Path;
use ppc_store::known::Known;
use ppc_store::pace::{Dice, Pace};
use ppc_store::remote::Remote;
use ppc_store::round::Node;
use ppc_store::serve::{Told, rounds};
use tokio::time::Instant;

use directory::{Directory, Plan, templates};
use storage::Storage;

const INTERVAL: Duration = Duration::from_mins(5);
const NODES: [u64; 4] = [1, 10, 100, 1000];
const SERVICES: usize = 20;
const NEVER: Duration = Duration::from_hours(10_000);
const BUDGET: u64 = 256 << 20;

/// What a fleet did.
#[derive(Debug)]
struct Outcome {
    lists: u64,
    gets: u64,
    puts: u64,
    lost: u64,
    /// When the storage had all templates, and when all nodes had, from the beginning.
    complete: Duration,
    converged: Option<Duration>,
    objects: usize,
    bytes: u64,
}

/// Makes this number of nodes run rounds against a storage for this long, all by the same plan.
async fn fleet(
    nodes: u64,
    storage: &Arc<Storage>,
    known: &Rc<Vec<Template>>,
    plan: Plan,
    lasts: Duration,
) -> Outcome {
    let began = Instant::now();
    let converged = RefCell::new(vec![None; usize::try_from(nodes).expect("few")]);
    let one = |number: u64| {
        let mut node = node(storage, known, plan, number);
        let converged = &converged;
        async move {
            let tell = |told: Told| {
                let has_all = told.result.is_ok_and(|report| report.held == known.len());
                let first: &mut Option<Duration> =
                    &mut converged.borrow_mut()[usize::try_from(number).expect("few")];
                if has_all && first.is_none() {
                    *first = Some(began.elapsed());
                }
            };
            rounds(&mut node, Pace::new(INTERVAL), || storage.now_s(), tell).await;
        }
    };
    let all = futures_util::future::join_all((0..nodes).map(one));
    // They never end by themselves.
    let _ = tokio::time::timeout(lasts, all).await;
    let counts = &storage.counts;
    let (objects, bytes) = storage.size().await;
    let converged = converged.take().into_iter().collect::<Option<Vec<_>>>();
    Outcome {
        lists: counts.lists.swap(0, Relaxed),
        gets: counts.gets.swap(0, Relaxed),
        puts: counts.puts.swap(0, Relaxed),
        lost: counts.lost.swap(0, Relaxed),
        complete: storage.complete_at(),
        converged: converged.and_then(|all| all.into_iter().max()),
        objects,
        bytes,
    }
}

fn node(
    storage: &Arc<Storage>,
    known: &Rc<Vec<Template>>,
    plan: Plan,
    number: u64,
) -> Node<Directory> {
    let directory = Directory::new(Rc::clone(known), plan);
    let shared: Arc<dyn ObjectStore> = Arc::clone(storage) as _;
    let remote = Remote::over(shared, Path::from("fleet"), true);
    Node::new(
        directory,
        remote,
        Known::default(),
        BUDGET,
        true,
        Dice::seeded(number),
    )
}

fn heading(title: &str) {
    println!("\n{title}");
    println!(
        "  nodes  list/node  get/node  put/node   puts  too late  storage complete  nodes complete  objects   KiB"
    );
}

fn row(nodes: u64, it: &Outcome) {
    #[expect(clippy::cast_precision_loss, reason = "a table")]
    let each = |count: u64| count as f64 / nodes as f64;
    let seconds = |at: Duration| format!("{} s", at.as_secs());
    println!(
        "{nodes:7} {:10.1} {:9.1} {:9.2} {:6} {:9} {:>17} {:>15} {:8} {:5}",
        each(it.lists),
        each(it.gets),
        each(it.puts),
        it.puts,
        it.lost,
        seconds(it.complete),
        it.converged.map_or("never".to_owned(), seconds),
        it.objects,
        it.bytes >> 10,
    );
}

const fn recorded(at: Duration, proven: Duration) -> Plan {
    Plan {
        services: SERVICES,
        recorded: at,
        proven,
    }
}

#[tokio::test(start_paused = true)]
async fn services_that_all_nodes_start_at_once() {
    heading(
        "20 new services that all nodes start within the first minute, and again after 30 min; one hour",
    );
    let known = templates(SERVICES);
    let plan = recorded(Duration::from_mins(1), Duration::from_mins(30));
    for nodes in NODES {
        let storage = Arc::new(Storage::new(NEVER..NEVER));
        let it = fleet(nodes, &storage, &known, plan, Duration::from_hours(1)).await;
        row(nodes, &it);
        assert_eq!(it.objects, SERVICES);
        // One node puts what was recorded, and one that it is proven.
        assert_eq!(it.puts - it.lost, 2 * SERVICES as u64);
        assert!(it.lost <= 2 * SERVICES as u64 && it.gets <= nodes * 2 * SERVICES as u64);
        let bound = plan.recorded + INTERVAL.mul_f64(2.0 * 1.25 + 0.1);
        assert!(
            it.converged.is_some_and(|at| at <= bound),
            "{:?}",
            it.converged
        );
    }
}

#[tokio::test(start_paused = true)]
async fn nodes_that_come_with_proven_records() {
    heading("Nodes that have proven records of 20 services, and a storage that has none; one hour");
    let known = templates(SERVICES);
    for nodes in NODES {
        let storage = Arc::new(Storage::new(NEVER..NEVER));
        let plan = recorded(Duration::ZERO, Duration::ZERO);
        let it = fleet(nodes, &storage, &known, plan, Duration::from_hours(1)).await;
        row(nodes, &it);
        assert_eq!((it.objects, it.puts - it.lost), (SERVICES, SERVICES as u64));
        assert!(it.lost <= nodes / 4, "{}", it.lost);
        assert!(
            it.converged.is_some_and(|at| at <= INTERVAL.mul_f64(1.5)),
            "{:?}",
            it.converged
        );
    }
}

#[tokio::test(start_paused = true)]
async fn new_nodes() {
    heading("New nodes that start together, and a storage that has 100 templates; one hour");
    let known = templates(100);
    let plan = |recorded| Plan {
        services: 100,
        recorded,
        proven: recorded,
    };
    for nodes in NODES {
        let storage = Arc::new(Storage::new(NEVER..NEVER));
        let mut first = node(&storage, &known, plan(Duration::ZERO), 0);
        while storage.size().await.0 < 100 {
            first.round(storage.now_s()).await.expect("a round");
        }
        storage.forget();
        let it = fleet(
            nodes,
            &storage,
            &known,
            plan(NEVER),
            Duration::from_hours(1),
        )
        .await;
        row(nodes, &it);
        assert_eq!(
            (it.gets, it.puts),
            (nodes * 100, 0),
            "each template once, and never again"
        );
        assert!(
            it.converged.is_some_and(|at| at <= Duration::from_secs(15)),
            "{:?}",
            it.converged
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_storage_that_is_down_for_half_an_hour() {
    heading(
        "The storage is down from the 5th to the 35th minute; 20 services are recorded in the 10th; two hours",
    );
    let known = templates(SERVICES);
    for nodes in NODES {
        let (from, to) = (Duration::from_mins(5), Duration::from_mins(35));
        let storage = Arc::new(Storage::new(from..to));
        let plan = recorded(Duration::from_mins(10), NEVER);
        let it = fleet(nodes, &storage, &known, plan, Duration::from_hours(2)).await;
        row(nodes, &it);
        let failed = storage.counts.failed.swap(0, Relaxed);
        assert!(failed <= nodes * 9, "{failed} requests while it was down");
        assert_eq!((it.objects, it.puts - it.lost), (SERVICES, SERVICES as u64));
        // The wait after the last failure, and a round more.
        let bound = to + Duration::from_mins(23) + INTERVAL.mul_f64(1.25);
        assert!(
            it.converged.is_some_and(|at| at <= bound),
            "{:?}",
            it.converged
        );
    }
}
