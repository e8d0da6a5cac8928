//! The contents of the directory: files to load, links, and what the caller may not access.

use std::path::Path;

use super::{count, list, such_as, word};
use crate::doctor::facts::{Facts, Sample, common};
use crate::doctor::finding::{Finding, Group, Severity};
use cprt::control::config::Bytes;

pub(super) fn examine(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![amount(facts)];
    findings.extend(named_by_link(facts));
    findings.extend(sparse(facts));
    findings.extend(leaving(facts));
    findings.extend(broken(facts));
    findings.extend(absolute(facts));
    findings.extend(unreadable(facts));
    findings.extend(pointers(facts));
    findings.extend(parts(facts));
    findings.extend(mounts(facts));
    findings
}

fn finding(severity: Severity, code: &'static str, text: String) -> Finding {
    Finding::new(Group::Files, severity, code, text)
}

fn amount(facts: &Facts) -> Finding {
    let files = &facts.files;
    let directory = facts.directory.display();
    if files.model() == 0 {
        let text = format!("{directory} has no files to load");
        return finding(Severity::Problem, "files-none", text).remedy(format!(
            "Check the path, and with 'findmnt -T {}' whether the expected file system is mounted",
            word(&facts.directory)
        ));
    }
    let of = |bytes, files| format!("{} in {}", Bytes(bytes), count(files, "file", "files"));
    let mut text = of(files.bytes, files.count);
    if files.links.leaving_bytes > 0 {
        let linked = Bytes(files.links.leaving_bytes).to_string();
        text += &(", and ".to_owned() + &linked + " outside that links lead to");
    }
    if files.cut {
        text += ", and more: only a part of this large tree was examined";
        return finding(Severity::Warning, "files-many", text)
            .remedy("Name the directory of one model");
    }
    finding(Severity::Ok, "files", text)
}

fn named_by_link(facts: &Facts) -> Option<Finding> {
    let link = facts.link.as_ref()?;
    let text = format!(
        "{} is a link to {}, which PPC examines and uses instead",
        link.display(),
        facts.directory.display()
    );
    Some(finding(Severity::Note, "directory-link", text))
}

/// Indirect blocks and the like may make the allocation larger than the size, but never that much smaller.
fn sparse(facts: &Facts) -> Option<Finding> {
    let files = &facts.files;
    let kind = facts.place.as_ref().map_or("", |place| &place.kind);
    // Servers of FUSE and the like need not report allocated blocks.
    let told = files.allocated > 0 || !(kind.starts_with("fuse") || kind == "9p");
    // Small files may be stored in the inode.
    let is_sparse = told && files.bytes > 1 << 20 && files.allocated < files.bytes / 10 * 9;
    is_sparse.then(|| {
        let text = format!(
            "The files take {} of their {}: they have holes, or are compressed",
            Bytes(files.allocated),
            Bytes(files.bytes)
        );
        finding(Severity::Note, "files-sparse", text)
    })
}

fn leaving(facts: &Facts) -> Option<Finding> {
    let links = &facts.files.links;
    if links.leaving.count == 0 {
        return None;
    }
    let outside = links.outside.as_deref().unwrap_or(Path::new("/"));
    // A file or two besides the links make it no better.
    let severity = if links.leaving_bytes > facts.files.bytes {
        Severity::Problem
    } else {
        Severity::Warning
    };
    let text = format!(
        "{} out of {} to {}: reads there are not reported",
        lead(&links.leaving),
        facts.directory.display(),
        outside.display(),
    );
    let finding = finding(severity, "links-leave", text);
    Some(finding.remedy(parent(&facts.directory, outside)))
}

/// `2 links, such as /x, lead`
fn lead(links: &Sample) -> String {
    let verb = if links.count == 1 { "leads" } else { "lead" };
    let number = count(links.count, "link", "links");
    format!("{number}{}, {verb}", such_as(links))
}

/// What to name instead of a directory whose links lead to `outside`.
fn parent(directory: &Path, outside: &Path) -> String {
    let both = common(directory, outside);
    // Not a directory that holds half of the machine's files, such as / or /srv.
    if both.components().count() > 2 {
        return format!(
            "Name {}, which contains both; paths stay as they are. 'ppcctl run' does so automatically if that is at \
             most two directories up",
            both.display()
        );
    }
    format!(
        "Name {} instead, or copy the files into {} with 'cp -L'",
        outside.display(),
        directory.display()
    )
}

fn broken(facts: &Facts) -> Option<Finding> {
    let broken = &facts.files.links.broken;
    (broken.count > 0).then(|| {
        let text = lead(broken) + " to nothing that exists";
        finding(Severity::Problem, "links-broken", text).remedy(format!(
            "Download or copy the missing files again; 'find {} -xtype l' lists the links",
            word(&facts.directory)
        ))
    })
}

fn absolute(facts: &Facts) -> Option<Finding> {
    let absolute = &facts.files.links.absolute;
    (absolute.count > 0).then(|| {
        let text = lead(absolute)
            + " within the directory by an absolute path, bypassing any mirror that is mounted \
               elsewhere";
        finding(Severity::Note, "links-absolute", text).remedy(format!(
            "Mount over the directory itself, or make the links relative with 'symlinks -cr {}'",
            word(&facts.directory)
        ))
    })
}

fn unreadable(facts: &Facts) -> Option<Finding> {
    let (files, closed) = (&facts.files.unreadable, &facts.files.closed);
    if files.count + closed.count == 0 {
        return None;
    }
    let mut what = Vec::new();
    if files.count > 0 {
        let number = count(files.count, "file", "files");
        what.push(format!("{number}{}", such_as(files)));
    }
    if closed.count > 0 {
        let number = count(closed.count, "directory", "directories");
        what.push(format!("{number}{}", such_as(closed)));
    }
    let uid = facts.user.uid;
    let text = format!("User {uid} may not read {}", list(&what));
    let directory = word(&facts.directory);
    let remedy = if uid == 0 {
        // Only servers and other users' FUSE mounts deny root access.
        "Let the server trust root (no_root_squash); for FUSE, mount with allow_other".to_owned()
    } else {
        format!(
            "Run ppcctl as root or as their owner, or run 'chmod -R a+rX {directory}' as one of these"
        )
    };
    Some(finding(Severity::Problem, "files-unreadable", text).remedy(remedy))
}

fn pointers(facts: &Facts) -> Option<Finding> {
    let pointers = &facts.files.pointers;
    (pointers.count > 0).then(|| {
        let text = format!(
            "{} instead of the contents{}",
            count(
                pointers.count,
                "file is a Git LFS pointer",
                "files are Git LFS pointers"
            ),
            such_as(pointers)
        );
        let remedy = format!("'git -C {} lfs pull'", word(&facts.directory));
        finding(Severity::Problem, "files-pointers", text).remedy(format!("Fetch them: {remedy}"))
    })
}

fn parts(facts: &Facts) -> Option<Finding> {
    let parts = &facts.files.parts;
    (parts.count > 0).then(|| {
        let text = format!(
            "{} not been downloaded completely{}",
            count(parts.count, "file has", "files have"),
            such_as(parts)
        );
        finding(Severity::Warning, "files-incomplete", text)
            .remedy("Continue the download, or remove the remains of an abandoned one")
    })
}

fn mounts(facts: &Facts) -> Option<Finding> {
    let mounts = &facts.files.mounts;
    let first = mounts.first()?;
    let number = u64::try_from(mounts.len()).unwrap_or(u64::MAX);
    let more = match mounts.len() {
        1 => String::new(),
        more => format!(" and {} more", more - 1),
    };
    let text = format!(
        "{} mounted in the directory, at {}{more}: reads there are not reported",
        count(number, "other file system is", "other file systems are"),
        first.display(),
    );
    let remedy = format!("Treat {} as its own directory", first.display());
    Some(finding(Severity::Warning, "mounts-within", text).remedy(remedy))
}
