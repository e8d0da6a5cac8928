//! `ppcctl top`: what is being loaded, who waits and what memory is used, as it changes, in a terminal.
//!
//! ```text
//! a thread asks cprtd ─▶ model: numbers of the screen ─▶ draw ─▶ terminal, until q or a signal
//! ```

use std::io::{self, IsTerminal as _, stdin, stdout};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use cprt::control::client::Client;
use cprt::control::protocol::{MountStats, Status};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};

use crate::failure::{Failure, Result};

mod draw;
mod model;

use model::Model;

/// How often to look for keys and signals.
const TICK: Duration = Duration::from_millis(100);

/// What cprtd answered, and when.
type Answer = (
    std::result::Result<(Status, Vec<MountStats>), String>,
    Instant,
);

/// Draws until the user or a signal ends it.
pub(crate) fn run(client: Client, json: bool, every: Duration) -> Result<()> {
    if json || !stdout().is_terminal() || !stdin().is_terminal() {
        let text = "top needs a terminal; 'ppcctl stats --watch' prints the counters repeatedly, also with --json";
        return Err(Failure::Usage(text.to_owned()));
    }
    // A daemon that is not there is reported where the user reads it.
    client.status(None)?;
    let signals = take_signals().map_err(failed("Taking over signals"))?;
    let (to, answers) = channel();
    // It is not joined: it may be waiting for the daemon.
    std::thread::spawn(move || ask(&client, every, &to));
    // A panic restores the terminal, too, before it is reported.
    let mut terminal = ratatui::try_init().map_err(failed("Setting up the terminal"))?;
    let done = show(&mut terminal, &signals, &answers);
    let restored = ratatui::try_restore();
    done.and(restored).map_err(failed("Using the terminal"))
}

fn failed(doing: &'static str) -> impl FnOnce(io::Error) -> Failure {
    move |source| Failure::System { doing, source }
}

/// Blocks the signals that would end the process with the terminal as it is then, in this thread and later ones.
fn take_signals() -> io::Result<SignalFd> {
    let set = SigSet::from_iter([Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM]);
    set.thread_block()?;
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    Ok(SignalFd::with_flags(&set, flags)?)
}

/// Asks again and again, until no receiver is left.
fn ask(client: &Client, every: Duration, to: &Sender<Answer>) {
    loop {
        let answer = client
            .status(None)
            .and_then(|status| Ok((status, client.stats(None)?)));
        let answer = answer.map_err(|error| cprt::error::chain(&error));
        if to.send((answer, Instant::now())).is_err() {
            return;
        }
        std::thread::sleep(every);
    }
}

fn show(
    terminal: &mut DefaultTerminal,
    signals: &SignalFd,
    answers: &Receiver<Answer>,
) -> io::Result<()> {
    let mut model = Model::default();
    loop {
        for (answer, at) in answers.try_iter() {
            match answer {
                Ok((status, counted)) => model.update(&status, &counted, at),
                Err(problem) => model.problem = Some(problem),
            }
        }
        terminal.draw(|frame| draw::draw(frame, &model))?;
        if event::poll(TICK)?
            && let Event::Key(key) = event::read()?
            && is_end(key)
        {
            return Ok(());
        }
        if signals.read_signal()?.is_some() {
            return Ok(());
        }
    }
}

fn is_end(key: KeyEvent) -> bool {
    let is_interrupt = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => true,
        KeyCode::Char('c') => is_interrupt,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
