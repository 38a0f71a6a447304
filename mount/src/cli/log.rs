//! `tidefs log`: what was placed on a drive's timeline, newest first.

use super::{
    Context,
    args::LogArgs,
    drive::check_name,
    error::CliError,
    grpc::{self, CALL_MAX, Server},
    locate,
    output::printable,
    size::count,
};
use crate::{config::ServerAddress, exit::Exit, state};
use serde_json::{Value, json};
use std::{
    fmt::Write as _,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tidefs_proto::wire;
use tokio::time::timeout;

/// How long the next line may take: a path filter may have to read much history before it finds one.
const LINE_MAX: Duration = Duration::from_secs(60);
/// Changed paths that are shown to people for one checkpoint.
const SHOWN_MAX: usize = 10;

/// Runs the command.
pub async fn run(context: &Context, args: LogArgs) -> Result<Exit, CliError> {
    if args.follow {
        return Err(CliError::not_built("log --follow"));
    }
    let (address, drive, path) = target(context, args.path.as_deref())?;
    let server = Server::connect(address).await?;
    let what = format!("log of {drive}:{path}");
    let request = server.request(wire::LogRequest {
        drive,
        after: 0,
        limit: args.count,
        newest_first: true,
        path: if path == "/" { String::new() } else { path },
    });
    let mut tide = server.tide();
    let stream = match timeout(CALL_MAX, tide.log(request)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(status)) => return Err(server.refused(&status, &what)),
        Err(_) => return Err(server.late(&what)),
    };
    let mut stream = stream.into_inner();
    let mut shown = 0u32;
    loop {
        match timeout(LINE_MAX, stream.message()).await {
            Ok(Ok(Some(line))) => context.out.result(&object(&line), &text(&line))?,
            Ok(Ok(None)) => return Ok(Exit::Done),
            Ok(Err(status)) => return Err(server.refused(&status, &what)),
            Err(_) => return Err(server.late(&what)),
        }
        shown = shown.saturating_add(1);
        if args.count != 0 && shown >= args.count {
            return Ok(Exit::Done);
        }
    }
}

/// The server, the drive and the path in it that an argument means.
fn target(context: &Context, path: Option<&Path>) -> Result<(ServerAddress, String, String), CliError> {
    if let Some((drive, inner)) = path.and_then(Path::to_str).and_then(state::text::drive_path) {
        check_name(drive)?;
        let inner = state::text::absolute(Path::new(inner), Path::new("/"));
        return Ok((context.server()?, drive.to_owned(), inner.to_string_lossy().into_owned()));
    }
    let (found, inner) = match path {
        Some(path) => locate::by_path(context, path)?,
        None => match locate::by_path(context, Path::new(".")) {
            Ok((found, _)) => (found, "/".to_owned()),
            Err(_) => (only_mount(context)?, "/".to_owned()),
        },
    };
    // The mount was allowed to speak to its server, so the command is.
    let url = grpc::check_url(&found.file.server, true)?;
    let token = context.token()?;
    Ok((ServerAddress { url, token }, found.file.drive, inner))
}

fn only_mount(context: &Context) -> Result<state::Found, CliError> {
    let mut running = locate::all_running(context)?;
    match (running.pop(), running.len()) {
        (Some(only), 0) => Ok(only),
        (None, _) => Err(CliError::usage("nothing is mounted: name a drive, like `tidefs log main:/`")),
        (Some(_), _) => {
            Err(CliError::usage("several drives are mounted: name a path in one, or DRIVE:/path"))
        }
    }
}

fn object(line: &wire::LogLine) -> Value {
    let stages = line.stages.unwrap_or_default();
    let changes: Vec<Value> =
        line.changes.iter().map(|change| json!({"path": change.path, "what": change.what})).collect();
    json!({
        "position": line.position,
        "session": line.session,
        "session_name": line.session_name,
        "number": line.number,
        "placed_unix_ms": line.placed_unix_us / 1000,
        "settle_ms": ms(stages.settle_us),
        "seal_ms": ms(stages.seal_us),
        "upload_ms": ms(stages.upload_us),
        "changes": changes,
        "more_changes": line.more_changes,
        "notes": line.notes,
        "overlaps": line.overlaps,
    })
}

fn ms(us: u64) -> f64 {
    us as f64 / 1000.0
}

fn text(line: &wire::LogLine) -> String {
    let placed = UNIX_EPOCH.checked_add(Duration::from_micros(line.placed_unix_us)).unwrap_or(UNIX_EPOCH);
    let mut text = format!("{:>8}  {}  {}", line.position, when(placed), printable(&line.session_name));
    // Writing to a String cannot fail.
    let mut add = |part: std::fmt::Arguments<'_>| {
        let _written = text.write_fmt(part);
    };
    if line.overlaps > 0 {
        add(format_args!("  {}", count(line.overlaps.into(), "overlap")));
    }
    if line.notes > 0 {
        add(format_args!("  {}", count(line.notes.into(), "note")));
    }
    for change in line.changes.iter().take(SHOWN_MAX) {
        add(format_args!("\n          {:<9} {}", printable(&change.what), printable(&change.path)));
    }
    let hidden = line.changes.len().saturating_sub(SHOWN_MAX) as u64 + u64::from(line.more_changes);
    if hidden > 0 {
        add(format_args!("\n          and {hidden} more"));
    }
    text
}

fn when(time: SystemTime) -> String {
    // A server whose clock is out of its mind must not end the command.
    let year_9999 = UNIX_EPOCH + Duration::from_secs(253_402_300_799);
    if time > year_9999 {
        "(no time)".to_owned()
    } else {
        humantime::format_rfc3339_seconds(time).to_string()
    }
}
