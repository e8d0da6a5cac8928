//! How long templates are kept: those unread for long are removed, as names of pods do not recur, and if there are
//! too many, the ones unread for longest.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use super::trust::TrustedFolder;
use super::{SUFFIX, Store, names, valid_name};

/// How long a template is kept after the last process has read or written it.
const UNREAD: Duration = Duration::from_hours(90 * 24);
/// Upper bound on the templates kept,
const MOST_FILES: usize = 1 << 14;
/// and on their bytes.
const MOST_BYTES: u64 = 1 << 30;
/// How often old templates are removed, by any node.
const EVERY: Duration = Duration::from_hours(24);
/// The file whose time shows when that was last done.
const MARK: &str = ".tidied";

/// A template's file, and when it was last used.
#[derive(Debug)]
struct Kept {
    used: SystemTime,
    bytes: u64,
    service: String,
    file: String,
}

impl Store {
    /// Removes templates that are no longer needed, once a day.
    pub(super) fn tidy_now_and_then(&self, now: SystemTime) {
        let mark = self.root.join(MARK);
        let last = mark.symlink_metadata().and_then(|it| it.modified());
        // A clock may have been wrong.
        let apart = |last| {
            now.duration_since(last)
                .unwrap_or_else(|error| error.duration())
        };
        if last.is_ok_and(|last| apart(last) < EVERY) {
            return;
        }
        let _ = fs::remove_file(&mark);
        if fs::File::create_new(&mark).is_ok() {
            self.tidy(now, MOST_FILES, MOST_BYTES);
        }
    }

    fn tidy(&self, now: SystemTime, most_files: usize, most_bytes: u64) -> usize {
        let mut kept = self.all_kept();
        kept.sort_by_key(|kept| std::cmp::Reverse(kept.used));
        let (mut files, mut bytes, mut removed) = (0, 0, 0);
        for kept in kept {
            let unread = now.duration_since(kept.used).unwrap_or_default();
            files += 1;
            bytes += kept.bytes;
            if unread <= UNREAD && files <= most_files && bytes <= most_bytes {
                continue;
            }
            if let Ok(Some(folder)) = TrustedFolder::open(&self.root, &kept.service)
                && fs::remove_file(folder.within().join(&kept.file)).is_ok()
            {
                removed += 1;
                // The folder stays if it is not empty.
                let _ = fs::remove_dir(self.root.join(&kept.service));
            }
        }
        removed
    }

    fn all_kept(&self) -> Vec<Kept> {
        let services = names(&self.root).into_iter().flatten();
        let mut all = Vec::new();
        for service in services.filter(|name| valid_name(name)) {
            let Ok(Some(folder)) = TrustedFolder::open(&self.root, &service) else {
                continue;
            };
            let within: PathBuf = folder.within();
            let files = names(&within).into_iter().flatten();
            for file in files.filter(|name| name.ends_with(SUFFIX)) {
                let Ok(found) = within.join(&file).symlink_metadata() else {
                    continue;
                };
                let times = [found.modified(), found.accessed()];
                let Some(used) = times.into_iter().filter_map(Result::ok).max() else {
                    continue;
                };
                all.push(Kept {
                    used,
                    bytes: found.len(),
                    service: service.clone(),
                    file,
                });
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, FileTimes};

    use super::*;
    use crate::template::Template;
    use crate::template::samples::small;

    #[test]
    fn store_removes_unread_and_excess_templates() {
        let root = std::env::temp_dir().join(format!("maio-life-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let store = Store::at(&root);
        let now = SystemTime::now();
        let day = |days: u64| now - Duration::from_hours(24 * days);
        let save = |service: &str, node: &str, days| {
            let template = Template {
                service: service.to_owned(),
                node: node.to_owned(),
                ..small()
            };
            store.save(&template).expect("to save");
            let path = root.join(service).join(format!("{node}.maio"));
            let file = File::options().write(true).open(path).expect("it is ours");
            let times = FileTimes::new()
                .set_accessed(day(days))
                .set_modified(day(days));
            file.set_times(times).expect("it is ours");
        };
        let left = || {
            let mut left: Vec<_> = store.all_kept().into_iter().map(|it| it.file).collect();
            left.sort();
            left
        };
        for (service, node, days) in [
            ("a", "pod-1", 100),
            ("b", "pod-2", 100),
            ("b", "pod-3", 50),
            ("b", "pod-4", 10),
        ] {
            save(service, node, days);
        }
        assert!(
            root.join(MARK).exists(),
            "it was seen to with the first one"
        );
        // A template that is read stays, though it is old.
        store
            .load("b", "pod-2")
            .expect("readable")
            .expect("a template");
        assert_eq!(store.tidy(now, 100, 1 << 30), 1);
        assert_eq!(left(), ["pod-2.maio", "pod-3.maio", "pod-4.maio"]);
        assert!(!root.join("a").exists());
        assert_eq!(
            store.tidy(now, 2, 1 << 30),
            1,
            "the one that is unread for longest"
        );
        assert_eq!(left(), ["pod-2.maio", "pod-4.maio"]);
        assert_eq!(store.tidy(now, 2, 1), 2);
        fs::remove_dir_all(&root).expect("it is ours");
    }
}
