//! Object storage in memory, at a distance: each request takes a while, is counted, and fails while the storage is
//! down.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use ppc_store::pace::Dice;
use tokio::time::Instant;

/// The clock begins here, in seconds since 1970.
pub(crate) const BEGIN_S: u64 = 1_800_000_000;
/// How long a request takes: the least, and up to so much more.
const LEAST: Duration = Duration::from_millis(20);
const MORE: Duration = Duration::from_millis(60);
/// How many objects a storage lists in one request.
const PAGE: usize = 1000;

/// Requests by kind.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) lists: AtomicU64,
    pub(crate) gets: AtomicU64,
    pub(crate) puts: AtomicU64,
    /// How many puts came too late.
    pub(crate) lost: AtomicU64,
    pub(crate) failed: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct Storage {
    inner: InMemory,
    pub(crate) counts: Counts,
    began: Instant,
    down: Range<Duration>,
    dice: Mutex<Dice>,
    put_at: Mutex<HashMap<Path, Duration>>,
}

impl Storage {
    /// Down in that span of time from the beginning.
    pub(crate) fn new(down: Range<Duration>) -> Self {
        Self {
            inner: InMemory::new(),
            counts: Counts::default(),
            began: Instant::now(),
            down,
            dice: Mutex::new(Dice::seeded(42)),
            put_at: Mutex::default(),
        }
    }

    /// The time, in seconds since 1970.
    pub(crate) fn now_s(&self) -> u64 {
        BEGIN_S + self.began.elapsed().as_secs()
    }

    /// When the last object was put that was not there before, from the beginning.
    pub(crate) fn complete_at(&self) -> Duration {
        let put_at = self.put_at.lock().expect("no test has panicked");
        put_at.values().max().copied().unwrap_or_default()
    }

    /// Counts from here on.
    pub(crate) fn forget(&self) {
        for count in [
            &self.counts.lists,
            &self.counts.gets,
            &self.counts.puts,
            &self.counts.lost,
        ] {
            count.store(0, Relaxed);
        }
    }

    /// The objects and their bytes.
    pub(crate) async fn size(&self) -> (usize, u64) {
        let all: Vec<_> = self.inner.list(None).try_collect().await.expect("objects");
        (
            all.len(),
            all.iter().map(|object: &ObjectMeta| object.size).sum(),
        )
    }

    async fn request(&self, count: &AtomicU64) -> Result<()> {
        count.fetch_add(1, Relaxed);
        let more = self.dice.lock().expect("no test has panicked").below(MORE);
        tokio::time::sleep(LEAST + more).await;
        if self.down.contains(&self.began.elapsed()) {
            self.counts.failed.fetch_add(1, Relaxed);
            let source = "it is down".into();
            return Err(Error::Generic {
                store: "memory",
                source,
            });
        }
        Ok(())
    }

    fn dated(&self, mut meta: ObjectMeta) -> ObjectMeta {
        let put_at = self.put_at.lock().expect("no test has panicked");
        let since = put_at.get(&meta.location).copied().unwrap_or_default();
        let real_s = u64::try_from(meta.last_modified.timestamp()).expect("it is after 1970");
        meta.last_modified -= Duration::from_secs(real_s);
        meta.last_modified += Duration::from_secs(BEGIN_S) + since;
        meta
    }
}

impl fmt::Display for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("memory at a distance")
    }
}

#[async_trait]
impl ObjectStore for Storage {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.request(&self.counts.puts).await?;
        let done = self.inner.put_opts(location, payload, options).await;
        if done.is_err() {
            self.counts.lost.fetch_add(1, Relaxed);
        } else {
            let mut put_at = self.put_at.lock().expect("no test has panicked");
            put_at
                .entry(location.clone())
                .or_insert_with(|| self.began.elapsed());
        }
        done
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.request(&self.counts.gets).await?;
        self.inner.get_opts(location, options).await
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        // The stream outlives this borrow: what it shows is what is there when it is made.
        let objects: Vec<_> = self
            .inner
            .list(prefix)
            .map_ok(|it| self.dated(it))
            .collect::<Vec<_>>()
            .now();
        let pages = objects.len().div_ceil(PAGE).max(1);
        self.counts.lists.fetch_add(pages as u64, Relaxed);
        let more = self.dice.lock().expect("no test has panicked").below(MORE);
        let is_down = self.down.contains(&self.began.elapsed());
        if is_down {
            self.counts.failed.fetch_add(1, Relaxed);
        }
        stream::once(async move {
            tokio::time::sleep(LEAST + more).await;
            let source = "it is down".into();
            if is_down {
                Err(Error::Generic {
                    store: "memory",
                    source,
                })
            } else {
                Ok(stream::iter(objects))
            }
        })
        .try_flatten()
        .boxed()
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(at, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

/// A future that is ready.
trait Now: Future {
    fn now(self) -> Self::Output;
}

impl<F: Future> Now for F {
    fn now(self) -> F::Output {
        use futures_util::FutureExt as _;
        self.now_or_never().expect("what is in memory is there")
    }
}
