//! The program to start: a large installed one, or a generated application.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::loader;
use crate::error::{Failure, Result, file, system};

const SOURCE: &str = include_str!("application.c");
const PROGRAM: &str = "application";
const OBJECTS: usize = 60;
const MODULES: usize = 2000;
/// Packages that take long to import, the slowest first.
const LARGE: [&str; 4] = ["torch", "tensorflow", "jax", "pandas"];

/// A command that takes a while until it is ready, and then exits.
#[derive(Debug)]
pub(super) struct Application {
    pub(super) words: Vec<PathBuf>,
    /// The path that most of it is read from.
    pub(super) place: PathBuf,
    /// A description, in a sentence.
    pub(super) title: String,
}

impl Application {
    /// An installed application; if there is none, one that is generated in a folder.
    pub(super) fn find(folder: &Path) -> Result<Self> {
        LARGE
            .into_iter()
            .find_map(installed)
            .map_or_else(|| Self::made_up(folder, MODULES), Ok)
    }

    /// Generates an application with this many modules in a folder.
    pub(super) fn made_up(folder: &Path, modules: usize) -> Result<Self> {
        let make = |path: &Path| fs::create_dir_all(path).map_err(file("Making", path));
        let objects = folder.join("objects");
        make(&objects)?;
        let program = folder.join(PROGRAM);
        let source = folder.join("application.c");
        fs::write(&source, SOURCE).map_err(file("Writing", &source))?;
        compile(&source, &program, &["-rdynamic"])?;
        let first = objects.join("00.so");
        compile(&source, &first, &["-shared", "-fPIC", "-DOBJECT"])?;
        for number in 1..OBJECTS {
            let path = objects.join(format!("{number:02}.so"));
            fs::copy(&first, &path).map_err(file("Copying to", &path))?;
        }
        for number in 0..OBJECTS {
            make(&folder.join(format!("modules/{number:02}")))?;
        }
        for number in 0..modules {
            let (object, module) = (number % OBJECTS, number / OBJECTS);
            let path = folder.join(format!("modules/{object:02}/{module:02}"));
            fs::write(&path, module_text(number)).map_err(file("Writing", &path))?;
        }
        Ok(Self {
            words: vec![program, folder.to_owned()],
            place: folder.to_owned(),
            title: format!(
                "a generated application imports {modules} modules and {OBJECTS} shared objects, one by one"
            ),
        })
    }

    /// The same generated application, after its folder was copied to another one.
    pub(super) fn moved(self, folder: &Path) -> Self {
        Self {
            words: vec![folder.join(PROGRAM), folder.to_owned()],
            place: folder.to_owned(),
            ..self
        }
    }
}

/// The import of a package, if this machine's Python has it.
fn installed(package: &str) -> Option<Application> {
    let looks =
        format!("import importlib.util; print(importlib.util.find_spec('{package}').origin)");
    let mut python = Command::new("python3");
    let python = python.args(["-c", &looks]).stdin(Stdio::null());
    let found = python.output().ok().filter(|it| it.status.success())?;
    let place = String::from_utf8(found.stdout).ok()?;
    let import = format!("import {package}");
    Some(Application {
        title: format!("python3 -c '{import}'"),
        words: ["python3", "-c", &import].map(PathBuf::from).into(),
        place: place.trim_end().into(),
    })
}

/// The text of a module: one to ten thousand bytes, different for each module.
fn module_text(number: usize) -> String {
    let line = format!("value_{number} = {number}\n");
    line.repeat((1000 + number * 7919 % 9000) / line.len())
}

fn compile(source: &Path, to: &Path, how: &[&str]) -> Result<()> {
    let mut compiler = Command::new("cc");
    compiler
        .args(["-O1"])
        .args(how)
        .arg("-o")
        .arg(to)
        .arg(source);
    let output = compiler
        .output()
        .map_err(system("Starting the C compiler"))?;
    if output.status.success() {
        return Ok(());
    }
    let words = loader::last_words(&String::from_utf8_lossy(&output.stderr));
    Err(Failure::Said(format!(
        "The C compiler does not accept the generated application:{words}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tour::Folder;

    #[test]
    fn generated_application_reads_all_of_its_modules() {
        let base =
            std::env::temp_dir().join(format!("ppc-bench-{}-application", std::process::id()));
        let folder = Folder::make(&base).expect("a folder");
        let application = Application::made_up(&folder.0, MODULES).expect("an application");
        let run = || {
            let output = Command::new(&application.words[0])
                .arg(&application.words[1])
                .output();
            let output = output.expect("it runs");
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).expect("a sum")
        };
        let whole = run();
        assert!(whole.starts_with(loader::SUM), "{whole}");
        assert_eq!(run(), whole);
        let last = folder.0.join(format!(
            "modules/{:02}/{:02}",
            (MODULES - 1) % OBJECTS,
            (MODULES - 1) / OBJECTS
        ));
        fs::write(last, "another").expect("to write");
        assert_ne!(run(), whole, "the last one is read");
        drop(folder);
        let _ = fs::remove_dir_all(&base);
    }

    #[test]
    fn missing_python_package_yields_no_application() {
        assert!(installed("no_package_is_called_that").is_none());
    }
}
