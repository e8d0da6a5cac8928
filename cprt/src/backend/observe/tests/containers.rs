//! Runs the tests of this backend again in a PID namespace, as in a container: numbers of processes are not the
//! kernel's own, and there are containers within. Says so where this process lacks the rights.

use super::*;

/// The variable that is set in these containers.
const CONTAINED: &str = "CPRT_TEST_CONTAINED";

/// A command that runs its arguments in their own PID namespace.
pub(super) fn unshare() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
    command
}

/// Runs a script, and then those tests of this program that `words` choose, in a container.
fn contained(before: &str, words: &[&str]) {
    let allowed = unshare().arg("true").stderr(Stdio::null()).status();
    if !allowed.is_ok_and(|status| status.success()) {
        return skip("namespaces are for root");
    }
    let script = format!("set -e\n{before}\nexec \"$0\" \"$@\"");
    let mut command = unshare();
    command
        .args(["sh", "-c", &script])
        .arg(std::env::current_exe().expect("this"));
    let ran = command.args(words).env(CONTAINED, "1").output();
    let ran = ran.expect("to run it");
    let [out, err] = [&ran.stdout, &ran.stderr].map(|text| String::from_utf8_lossy(text));
    // Reports what was skipped there as skipped here.
    eprint!("{err}");
    assert!(ran.status.success(), "{out}\n{err}");
    let none = out.lines().any(|line| line.contains(" 0 passed"));
    assert!(!none, "no test ran: {out}");
}

#[test]
fn observe_tests_pass_inside_a_container() {
    let all = [
        "backend::observe::",
        "--skip",
        "containers",
        "--test-threads=1",
    ];
    contained("", &all);
}

/// The root directory of most containers is an overlayfs.
#[test]
fn starts_are_heard_on_overlayfs_in_a_container() {
    let folder = Folder::new("container");
    let at = folder.0.display();
    let before = format!(
        "cd {at}; mkdir lower upper work merged
         mount -t overlay none -o lowerdir=lower,upperdir=upper,workdir=work merged
         export TMPDIR={at}/merged"
    );
    contained(
        &before,
        &["backend::observe::start::tests", "--test-threads=1"],
    );
}

#[test]
fn readers_in_containers_within_ours_have_numbers_of_ours() {
    let name = "backend::observe::tests::containers::hears_its_own_readers_and_those_within";
    contained("", &["--exact", name, "--ignored", "--nocapture"]);
}

/// The same, seen from outside the container.
#[test]
fn readers_in_containers_are_reported_with_outer_pids() {
    let allowed = unshare().arg("true").stderr(Stdio::null()).status();
    if !allowed.is_ok_and(|status| status.success()) {
        return skip("namespaces are for root");
    }
    readers_are_told("from-outside");
}

#[test]
#[ignore = "only as a helper of readers_in_containers_within_ours_have_numbers_of_ours"]
fn hears_its_own_readers_and_those_within() {
    if std::env::var_os(CONTAINED).is_some() {
        assert!(std::process::id() < 10, "a container's first process");
        readers_are_told("from-within");
    }
}

/// Checks that reads of a process beside this one and of one in a container are reported, and this process's
/// own loads are not.
fn readers_are_told(name: &str) {
    const LENGTH: u64 = 4 * MIB;

    each_source(name, |folder, open| {
        let path = folder.file("model", LENGTH);
        let observe = open(folder);
        want(&observe, &[Kind::Miss, Kind::Touch]);
        let file = observe.open(Path::new("model")).expect("its id");
        for mut reader in [Reader::new(), Reader::contained()] {
            drop_cached(&path);
            observe.interrupt();
            observe.events(&mut Vec::new()).expect("events");
            reader.does(&format!("read {} 0 {LENGTH} 65536", path.display()));
            let events = heard(&observe);
            for kind in [Kind::Miss, Kind::Touch] {
                let told = union(&events, kind, file, reader.id());
                assert_eq!(told, [(0, LENGTH)], "{kind:?} of {events:?}");
            }
            let others: Vec<_> = events
                .iter()
                .filter(|it| it.process != reader.id())
                .collect();
            assert!(others.is_empty(), "{others:?}");
            reader.does(&format!("map {}", path.display()));
            reader.does(&format!("touch 0 {LENGTH}"));
            let told = union(&heard(&observe), Kind::Touch, file, reader.id());
            assert_eq!(told, [(0, LENGTH)], "by a mapping");
        }
        drop_cached(&path);
        heard(&observe);
        let span = Span {
            file,
            offset: 0,
            length: LENGTH,
        };
        let loaded = observe.load(span, How::default()).expect("to load");
        assert_eq!(loaded.done, LENGTH);
        assert_eq!(
            heard(&observe),
            [],
            "the worker's own loads are not reported"
        );
    });
}

/// The directory is a layer of a container's root.
#[test]
fn reads_through_overlayfs_are_reported_for_the_layer() {
    const LENGTH: u64 = 8 * MIB;

    each_source("layer", |folder, open| {
        let name = folder.0.file_name().and_then(|name| name.to_str());
        stacked(name.expect("a name"), |above| {
            let text = above.0.display().to_string();
            let below = text.strip_suffix("-above").expect("its name").to_owned();
            // Another value removes the directory.
            let below = std::mem::ManuallyDrop::new(Folder(format!("{below}-below/lower").into()));
            let observe = open(&below);
            want(&observe, &[Kind::Miss, Kind::Touch]);
            let file = observe.open(Path::new("sub/model")).expect("its id");
            let path = above.0.join("sub/model");
            let mut reader = Reader::new();
            reader.does(&format!("read {} 0 {LENGTH} 65536", path.display()));
            let events = heard(&observe);
            for kind in [Kind::Miss, Kind::Touch] {
                let told = union(&events, kind, file, reader.id());
                assert_eq!(told, [(0, LENGTH)], "{kind:?}");
            }
            // Faults that huge pages answer make no records.
            reader.does(&format!("map {}", path.display()));
            reader.does(&format!("touch 0 {LENGTH}"));
            let told = union(&heard(&observe), Kind::Touch, file, reader.id());
            assert_eq!(told, [(0, LENGTH)], "by a mapping");
            let known = observe.table().get(file.0).cloned().expect("it is there");
            let found = crate::machine::mappings::of(reader.id(), known.identity, None);
            assert_eq!(found.len(), 1, "its mapping is found");
        });
    });
}
