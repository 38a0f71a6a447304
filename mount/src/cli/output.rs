//! What a command prints: lines for people, or with `--json` one object a line.

use super::error::CliError;
use serde::Serialize;
use std::io::{self, Write};

/// Where a command's results go.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    json: bool,
    to_stderr: bool,
}

impl Output {
    /// Results on standard output.
    pub fn new(json: bool) -> Self {
        Self { json, to_stderr: false }
    }

    /// Results on standard error, for a command whose standard output belongs to a program that it runs.
    pub fn on_stderr(json: bool) -> Self {
        Self { json, to_stderr: true }
    }

    /// Whether objects are wanted.
    pub fn json(self) -> bool {
        self.json
    }

    /// Prints one result in the wanted form, flushed.
    pub fn result<T: Serialize>(self, object: &T, text: &str) -> Result<(), CliError> {
        let line = if self.json {
            serde_json::to_string(object).map_err(|e| {
                CliError::new(crate::exit::Exit::Failed, format!("cannot print the result: {e}"))
            })?
        } else {
            text.to_owned()
        };
        let printed = if self.to_stderr {
            writeln!(io::stderr().lock(), "{line}")
        } else {
            let mut out = io::stdout().lock();
            writeln!(out, "{line}").and_then(|()| out.flush())
        };
        printed.map_err(|e| CliError::output(&e))
    }
}

/// `text` made fit for a terminal: control characters of a name cannot move the cursor or change colours.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Tells an error on standard error; an empty one is not told.
pub fn tell(json: bool, error: &CliError) {
    if error.message.is_empty() {
        return;
    }
    let line = if json {
        serde_json::json!({"error": error.message, "exit_code": error.exit.code()}).to_string()
    } else {
        format!("tidefs: {}", error.message)
    };
    // Nothing can be done about a standard error that is closed; the status still says it.
    let _told = writeln!(io::stderr().lock(), "{line}");
}

/// Tells something that is no error on standard error; nothing with `--json`.
pub fn remark(json: bool, text: &str) {
    if !json {
        let _told = writeln!(io::stderr().lock(), "tidefs: {text}");
    }
}
