//! `mount.rfs`, in mount namespaces of the tests' own: needs root, and tests the backends that this
//! machine has.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use test_support::{skip, skip_part};

const PROGRAM: &str = env!("CARGO_BIN_EXE_mount-rfs");

/// The outcome of a script.
#[derive(Debug)]
struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

/// A lower directory with a file, and a mount point.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let place = std::env::temp_dir().join(format!("mount-rfs-{}-{name}", std::process::id()));
        fs::create_dir_all(place.join("lower/dir")).expect("a free name");
        fs::create_dir(place.join("mnt")).expect("a free name");
        fs::write(place.join("lower/dir/weights"), "weights\n").expect("a scratch file");
        Self(place)
    }

    /// Runs a script in a mount namespace, where `$M` is the program, `$L` the lower directory and
    /// `$P` the mount point. `None`, with a line that says why, if that is not possible.
    fn run(&self, script: &str) -> Option<Ran> {
        if !nix::unistd::geteuid().is_root() {
            skip("mounting is for root");
            return None;
        }
        let policies = policies()?;
        let output = Command::new("timeout")
            .args([
                "--kill-after=5",
                "120",
                "unshare",
                "--mount",
                "sh",
                "-c",
                script,
            ])
            .current_dir(&self.0)
            .env("M", PROGRAM)
            .env("L", self.0.join("lower"))
            .env("P", self.0.join("mnt"))
            .env("PPC_POLICY_PATH", policies)
            .output()
            .expect("timeout, of coreutils, and unshare, of util-linux");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        Some(Ran {
            code: output.status.code(),
            out: text(output.stdout),
            err: text(output.stderr),
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A directory with a policy for the mirror, which only root can change.
fn policies() -> Option<&'static Path> {
    static MADE: std::sync::OnceLock<Result<PathBuf, String>> = std::sync::OnceLock::new();
    let made = MADE.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mount-policies");
        fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../policies");
        let library = folder.join("null.so");
        let done = Command::new("cc")
            .args(["-shared", "-fPIC", "-std=gnu11", "-I"])
            .arg(&source)
            .arg("-o")
            .args([&library, &source.join("shift/shift.c")])
            .status()
            .map_err(|error| format!("cc: {error}"))?;
        assert!(done.success(), "a compiler that does not compile");
        for path in [&folder, &library] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("it is ours");
        }
        cprt::daemon::trust::check(&library, 0).map_err(|error| error.to_string())?;
        Ok(folder)
    });
    match made {
        Ok(folder) => Some(folder),
        Err(why) => {
            skip(why);
            None
        }
    }
}

/// Whether this machine lacks a backend; if so, a line says why.
fn lacks(ran: &Ran) -> bool {
    let lacks = ran.code == Some(32) && ran.err.contains("no backend works here");
    if lacks {
        skip_part(ran.err.trim_end());
    }
    lacks
}

/// An application gets the same data and the same errors with each backend.
#[test]
fn every_backend_shows_the_same_files_and_the_same_errors() {
    let script = |options: &str, at: &str| {
        format!(
            "$M $L {at} -o rw,{options} || exit $?
            cat {at}/dir/weights
            for what in \"touch {at}/new\" \"rm {at}/dir/weights\" \"mkdir {at}/d\" \"mv {at}/dir {at}/e\" \
                \"truncate -s 0 {at}/dir/weights\" \"ln -s x {at}/l\" \"chmod 0 {at}/dir\"; do
                LC_ALL=C $what 2>&1 | grep -o 'Read-only file system' || echo \"$what: done\"
            done
            cd /; umount {at} && cat $L/dir/weights"
        )
    };
    let refused = "Read-only file system\n".repeat(7);
    for backend in ["auto", "observe", "fuse", "fuse,passthrough=no", "module"] {
        for at in ["$P", "$L"] {
            let place = Place::new("same");
            let Some(ran) = place.run(&script(&format!("backend={backend}"), at)) else {
                return;
            };
            if lacks(&ran) {
                continue;
            }
            let (first, rest) = ran.out.split_once('\n').unwrap_or_default();
            assert!(
                first.starts_with("mount.rfs: ") && first.contains(" by "),
                "{ran:?}"
            );
            assert_eq!(
                rest,
                format!("weights\n{refused}weights\n"),
                "{backend} {at}: {ran:?}"
            );
            assert_eq!(
                (ran.code, ran.err.as_str()),
                (Some(0), ""),
                "{backend} {at}"
            );
        }
    }
}

#[test]
fn worker_and_holder_exit_when_the_mount_is_unmounted() {
    for options in [
        "backend=fuse",
        "backend=observe,policy=null,set.length=4096",
    ] {
        let place = Place::new("holds");
        let script = format!(
            "$M $L $P -o {options} || exit $?
            held() {{ grep -lsz -- \"^$1$\" /proc/[0-9]*/cmdline | xargs -r grep -lsz -- \"^$P$\\|^$L$\"; }}
            test -n \"$(held worker)\" || echo no worker
            umount $P
            for i in $(seq 100); do
                test -z \"$(held worker)$(held hold)\" && exit 0
                sleep 0.1
            done
            echo a process is left; exit 1"
        );
        let Some(ran) = place.run(&script) else {
            return;
        };
        if lacks(&ran) {
            continue;
        }
        assert_eq!(ran.code, Some(0), "{options}: {ran:?}");
        assert!(!ran.out.contains("no worker"), "{options}: {ran:?}");
    }
}

/// Readers get an error at once, another worker mounts the mirror again, and it can be unmounted as before.
///
/// The other worker may be running before anything is read by name again. Files that were open before belong to the
/// first worker, and fail for good.
#[test]
fn a_mirror_whose_worker_is_killed_is_mounted_again() {
    let place = Place::new("killed");
    let script = "$M $L $P -o backend=fuse,passthrough=no > /dev/null || exit $?
        exec 3< $P/dir/weights
        for cmdline in /proc/[0-9]*/cmdline; do
            if tr '\\0' ' ' < $cmdline 2> /dev/null | grep -q \"worker $P \"; then
                pid=${cmdline#/proc/}; kill -9 ${pid%/cmdline}
            fi
        done
        for i in $(seq 100); do
            heard=$(LC_ALL=C timeout 5 cat <&3 2>&1) || break
            sleep 0.1
        done
        echo \"$heard\" | grep -oE 'not connected|connection abort' | sed 's/connection abort/not connected/'
        exec 3<&-
        for i in $(seq 100); do
            LC_ALL=C timeout 5 cat $P/dir/weights 2> /dev/null && break
            sleep 0.1
        done
        umount $P && cat $P/dir/weights 2>&1 | grep -o 'No such file'";
    let Some(ran) = place.run(script) else {
        return;
    };
    if !lacks(&ran) {
        assert_eq!(
            (ran.code, ran.out.as_str()),
            (Some(0), "not connected\nweights\nNo such file\n"),
            "{ran:?}"
        );
    }
}

/// Mounts by mount(8) and a line of fstab, with options meant for others.
#[test]
fn fstab_mount_accepts_options_for_other_tools() {
    let place = Place::new("fstab");
    let script = "sbin=$(dirname $P)/sbin
        mkdir -p $sbin && mount -t tmpfs none $sbin && mkdir $sbin/u $sbin/w &&
        mount -t overlay none -o lowerdir=/usr/sbin,upperdir=$sbin/u,workdir=$sbin/w /usr/sbin &&
        cp $M /usr/sbin/mount.rfs || exit 77
        echo $L $P rfs backend=observe,defaults,noauto,nofail,_netdev,x-systemd.automount,noexec 0 0 > $sbin/fstab
        mount -T $sbin/fstab $P > /dev/null || exit $?
        cat $P/dir/weights
        grep \" $P \" /proc/self/mounts | cut -d' ' -f4
        umount $P";
    let Some(ran) = place.run(script) else {
        return;
    };
    if ran.code == Some(77) {
        skip(&format!("no overlay over /usr/sbin: {}", ran.err));
        return;
    }
    if lacks(&ran) {
        return;
    }
    let (file, flags) = ran.out.split_once('\n').unwrap_or_default();
    assert_eq!((ran.code, file), (Some(0), "weights"), "{ran:?}");
    for flag in ["ro", "noexec"] {
        assert!(
            flags.trim_end().split(',').any(|found| found == flag),
            "{flag}: {ran:?}"
        );
    }
}

#[test]
fn errors_are_reported_with_the_exit_codes_of_mount() {
    let place = Place::new("wrong");
    for (words, code, part) in [
        ("$L", 1, "LOWER MNT"),
        ("$L $P -o fast", 1, "there is no option fast"),
        ("$L/none $P", 32, "none: No such file"),
        ("$L $L/dir/weights", 32, "not a directory"),
        (
            "$L $P -o backend=observe,odirect=deny",
            32,
            "requires the module",
        ),
        (
            "$L $P -o backend=observe,splice=copy",
            32,
            "splice=copy requires the module",
        ),
        (
            "$L $P -o backend=observe,policy=none",
            32,
            "There is no none.so",
        ),
    ] {
        let Some(ran) = place.run(&format!("$M {words}")) else {
            return;
        };
        if words.contains("observe,policy") && lacks(&ran) {
            continue;
        }
        assert_eq!(
            (ran.code, ran.out.as_str()),
            (Some(code), ""),
            "{words}: {ran:?}"
        );
        assert!(ran.err.contains(part), "{words}: {ran:?}");
    }
    if let Some(ran) = place.run("$M -f $L $P -o backend=auto; ls $P") {
        assert_eq!(ran.out, "", "only as if: {ran:?}");
    }
}
