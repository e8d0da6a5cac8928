//! One round: what other nodes have recorded comes here, and what the fleet lacks goes there.

use std::collections::{BTreeSet, HashSet};

use futures_util::StreamExt as _;
use maio::template::TemplateError;
use serde::Serialize;

use crate::decide::{Put, expired, incoming, outgoing};
use crate::error::Result;
use crate::known::{Content, Known, Listed, Own, Seen};
use crate::local::Local;
use crate::pace::Dice;
use crate::quality::{Quality, alike, checked};
use crate::remote::{Fetched, Remote, Written};
use crate::slot::Place;

/// How many objects are fetched at a time.
const AT_ONCE: usize = 4;
/// Upper bound on the writes of a round.
const MOST_PUTS: usize = 32;

/// What a round has done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The templates in the storage.
    pub listed: usize,
    /// Those of them that are in the fleet's folder now.
    pub held: usize,
    /// Those that were fetched, and their bytes.
    pub fetched: usize,
    /// See `fetched`.
    pub fetched_bytes: u64,
    /// Objects that are not templates, with the reason.
    pub refused: Vec<String>,
    /// Templates that were dropped from the fleet's folder.
    pub dropped: usize,
    /// Those that are beyond the budget.
    pub left: usize,
    /// Templates that were put into the storage, and their bytes.
    pub put: usize,
    /// See `put`.
    pub put_bytes: u64,
    /// Writes that came too late, as another node was faster.
    pub lost: usize,
    /// Old templates that were removed from the storage.
    pub deleted: usize,
    /// Why nothing can be put into the storage, if this round has found out.
    pub read_only: Option<String>,
}

/// A node: its directory, the storage, and what it knows of both.
#[derive(Debug)]
pub struct Node<L> {
    local: L,
    remote: Remote,
    known: Known,
    budget: u64,
    writes: bool,
    dice: Dice,
    /// Pairs that were found to be alike: the time of the own template, and the other's version.
    alike: HashSet<(Place, u64, String)>,
}

impl<L: Local> Node<L> {
    /// A node that holds up to `budget` bytes of the fleet's templates, and puts its own there if `writes`.
    #[must_use]
    pub fn new(
        local: L,
        remote: Remote,
        known: Known,
        budget: u64,
        writes: bool,
        dice: Dice,
    ) -> Self {
        Self {
            local,
            writes: writes && remote.is_writable(),
            remote,
            known,
            budget,
            dice,
            alike: HashSet::new(),
        }
    }

    /// What it draws its waits from.
    pub const fn dice(&mut self) -> &mut Dice {
        &mut self.dice
    }

    /// Its directory.
    pub const fn local(&self) -> &L {
        &self.local
    }

    /// One round, at this time in seconds since 1970.
    ///
    /// # Errors
    /// The storage cannot be reached, or the directory cannot be read or written. What was done until then stays.
    pub async fn round(&mut self, now_s: u64) -> Result<Report> {
        let mut report = Report::default();
        let done = self.exchange(now_s, &mut report).await;
        let kept = self.local.remember(&self.known);
        done.and(kept)?;
        Ok(report)
    }

    async fn exchange(&mut self, now_s: u64, report: &mut Report) -> Result<()> {
        let listing = self.remote.list().await?;
        let listed = listing.objects;
        report.listed = listed.len();
        let held: BTreeSet<_> = self.local.held()?.into_iter().collect();
        let mut plan = incoming(&listed, &self.known, &held, self.budget);
        report.left = plan.left;
        if listing.complete {
            self.known.retain(&listed);
        } else {
            // What was not listed may still be there.
            plan.drop.clear();
        }
        for place in &plan.drop {
            self.local.drop(place)?;
            report.dropped += 1;
        }
        self.fetch(&plan.fetch, report).await?;
        if self.writes && listing.complete {
            self.put(now_s, &listed, report).await?;
            for object in expired(now_s, &listed) {
                if self.remote.delete(&object.place).await? {
                    report.deleted += 1;
                }
            }
        }
        report.held = self.local.held()?.len();
        Ok(())
    }

    async fn fetch(&mut self, wanted: &[Listed], report: &mut Report) -> Result<()> {
        let remote = &self.remote;
        let get = |object: &Listed| {
            let object = object.clone();
            async move {
                let fetched = remote.get(&object.place).await;
                (object, fetched)
            }
        };
        let mut fetched =
            futures_util::stream::iter(wanted.iter().map(get)).buffer_unordered(AT_ONCE);
        while let Some((object, fetched)) = fetched.next().await {
            match fetched? {
                Some(fetched) => take_in(&self.local, &mut self.known, &object, fetched, report)?,
                // The next listing shows what is there.
                None => self.known.forget(&object.place),
            }
        }
        Ok(())
    }

    async fn put(&mut self, now_s: u64, listed: &[Listed], report: &mut Report) -> Result<()> {
        for Put { own, instead } in self.wanted_puts(now_s, listed)? {
            let found = self.local.read_own(&own.place.service, &own.node);
            // It may have been replaced, or found wrong, since it was looked at.
            let Some(template) =
                found.filter(|it| it.loads > 0 && Place::of(&own.place.service, it) == own.place)
            else {
                continue;
            };
            let quality = Quality::of(&template);
            let bytes = template.to_bytes()?;
            let size = bytes.len() as u64;
            match self.remote.put(&own.place, bytes, instead).await? {
                Written::Done(tag, version) => {
                    let content = Content::Template(quality);
                    self.local.hold(&own.place, template, now_s)?;
                    self.known.see(
                        own.place,
                        Seen {
                            tag,
                            version,
                            content,
                        },
                    );
                    report.put += 1;
                    report.put_bytes += size;
                }
                // Another node is writing it. The next listing shows what is left to do.
                Written::Lost => {
                    report.lost += 1;
                    return Ok(());
                }
                Written::Refused(why) => {
                    self.writes = false;
                    report.read_only = Some(why);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// What this round puts, in any order, so that nodes which lack the same do not all begin with the same.
    fn wanted_puts(&mut self, now_s: u64, listed: &[Listed]) -> Result<Vec<Put>> {
        let (local, seen_alike) = (&self.local, &mut self.alike);
        let own = self.known.own(&local.own()?, |stamp| {
            let template = local.read_own(&stamp.service, &stamp.node)?;
            template.to_bytes().ok()?;
            Some(Own {
                place: Place::of(&stamp.service, &template),
                node: stamp.node.clone(),
                quality: Quality::of(&template),
            })
        });
        let same = |own: &Own, object: &Listed| {
            let key = (own.place.clone(), own.quality.made_s, object.tag.clone());
            if seen_alike.contains(&key) {
                return true;
            }
            let mine = local.read_own(&own.place.service, &own.node);
            let both = mine.zip(local.read_held(&own.place));
            // What cannot be compared is left as it is.
            let same = both.is_none_or(|(mine, theirs)| alike(&mine, &theirs).unwrap_or(true));
            if same {
                seen_alike.insert(key);
            }
            same
        };
        let mut puts = outgoing(now_s, listed, &self.known, &own, same);
        self.dice.shuffle(&mut puts);
        puts.truncate(MOST_PUTS);
        Ok(puts)
    }
}

/// Examines what came, and keeps it if it is a template.
fn take_in(
    local: &impl Local,
    known: &mut Known,
    object: &Listed,
    fetched: Fetched,
    report: &mut Report,
) -> Result<()> {
    let place = &object.place;
    let Fetched {
        bytes,
        tag,
        version,
    } = fetched;
    report.fetched += 1;
    report.fetched_bytes += bytes.len() as u64;
    let content = match checked(&bytes) {
        Ok(template) => {
            let quality = Quality::of(&template);
            local.hold(place, template, object.modified_s)?;
            Content::Template(quality)
        }
        Err(error) => {
            report.refused.push(format!("{place}: {error}"));
            match error {
                TemplateError::Future(_) => Content::Later,
                other => Content::Refused(other.to_string()),
            }
        }
    };
    known.see(
        place.clone(),
        Seen {
            tag,
            version,
            content,
        },
    );
    Ok(())
}
