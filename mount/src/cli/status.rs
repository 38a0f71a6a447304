//! `tidefs status`: how mounts are. What was left cleanly is not shown; what was killed or left with unsent work is.

use super::{
    Context,
    args::StatusArgs,
    error::CliError,
    locate,
    output::printable,
    size::{count, show_ms, show_size},
};
use crate::{
    control::{api::Status, client::ControlClient},
    exit::Exit,
    state::{Found, find_all},
};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Runs the command.
pub async fn run(context: &Context, args: StatusArgs) -> Result<Exit, CliError> {
    let mounts = match &args.path {
        Some(path) => vec![locate::by_path(context, path)?.0],
        None => find_all(&context.base()?)?.into_iter().filter(worth_showing).collect(),
    };
    if mounts.is_empty() && !context.out.json() {
        context.out.result(&(), "nothing is mounted; mount a drive with `tidefs mount DRIVE DIR`")?;
    }
    let asked = mounts.iter().map(|found| async move { (found, ask(found).await) });
    for (found, report) in futures::future::join_all(asked).await {
        context.out.result(&report.object(found), &report.text(found))?;
    }
    match (&args.path, mounts.first()) {
        (Some(_), Some(found)) if found.running.is_none() => Err(locate::not_running(found)),
        _ => Ok(Exit::Done),
    }
}

fn worth_showing(found: &Found) -> bool {
    found.running.is_some() || found.mounted || found.file.left.is_none_or(|left| !left.is_clean())
}

enum Report {
    Running(Box<Status>),
    Silent(String),
    Stopped,
}

async fn ask(found: &Found) -> Report {
    if found.running.is_none() {
        return Report::Stopped;
    }
    match ControlClient::new(&found.state_dir).status().await {
        Ok(status) => Report::Running(Box::new(status)),
        Err(error) => Report::Silent(error.to_string()),
    }
}

impl Report {
    fn state(&self) -> &'static str {
        match self {
            Self::Running(_) => "running",
            Self::Silent(_) => "not answering",
            Self::Stopped => "stopped",
        }
    }

    fn object(&self, found: &Found) -> Value {
        let mut object = match self {
            Self::Running(status) => serde_json::to_value(status).unwrap_or_default(),
            Self::Silent(_) | Self::Stopped => json!({
                "drive": found.file.drive, "session": found.file.session, "mount_point": found.file.mount_point,
                "server": found.file.server, "pid": found.running, "state_dir": found.state_dir,
                "connected": false,
                "unsent_checkpoints": found.file.left.map(|left| left.unsent_checkpoints),
                "unsent_bytes": found.file.left.map(|left| left.unsent_bytes),
            }),
        };
        if let Value::Object(fields) = &mut object {
            fields.insert("state".to_owned(), self.state().into());
            fields.insert("mounted".to_owned(), found.mounted.into());
            if let Self::Silent(why) = self {
                fields.insert("last_error".to_owned(), why.as_str().into());
            }
        }
        object
    }

    fn text(&self, found: &Found) -> String {
        let file = &found.file;
        let mut text =
            format!("{}  drive {}  session {}", file.mount_point.display(), file.drive, file.session);
        // Writing to a String cannot fail.
        let _written = match self {
            Self::Running(status) => running(&mut text, status),
            Self::Silent(why) => write!(text, "\n  not answering  {why}"),
            Self::Stopped => match file.left {
                Some(left) if left.is_clean() => write!(text, "\n  stopped        nothing unsent"),
                Some(left) => write!(
                    text,
                    "\n  stopped        {} unsent; ship with `{}`",
                    show_size(left.unsent_bytes),
                    locate::mount_again(found)
                ),
                None => write!(
                    text,
                    "\n  killed         unsent work may be in the log; ship with `{}`",
                    locate::mount_again(found)
                ),
            },
        };
        text
    }
}

fn running(text: &mut String, status: &Status) -> std::fmt::Result {
    let link = &status.link;
    let state = if link.connected { "connected" } else { "away" };
    write!(text, "\n  server         {} ({state})", printable(&status.mount.server))?;
    write!(text, "\n  position       {} of {}", link.position, link.head)?;
    let unsent = &status.unsent;
    match unsent.unsent_checkpoints {
        0 => write!(text, "\n  unsent         nothing")?,
        checkpoints => write!(
            text,
            "\n  unsent         {} in {}, oldest {}",
            show_size(unsent.unsent_bytes),
            count(checkpoints, "checkpoint"),
            show_ms(unsent.oldest_unsent_ms.unwrap_or(0))
        )?,
    }
    if let (Some(p50), Some(p99)) =
        (status.latency.write_to_visible_p50_ms, status.latency.write_to_visible_p99_ms)
    {
        write!(text, "\n  others' writes visible after {p50:.0} ms (half), {p99:.0} ms (99 of 100)")?;
    }
    if !matches!(status.kernel.self_test.as_str(), "" | "passed") {
        write!(text, "\n  self-test      {}", printable(&status.kernel.self_test))?;
    }
    if let Some(error) = &link.last_error {
        write!(text, "\n  last error     {}", printable(error))?;
    }
    status.warnings.iter().try_for_each(|warning| write!(text, "\n  warning        {}", printable(warning)))
}
