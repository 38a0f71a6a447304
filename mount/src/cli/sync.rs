//! `tidefs sync` and `tidefs wait`: how far work has come.

use super::{
    Context,
    args::{SyncArgs, WaitArgs},
    error::CliError,
    locate,
    output::tell,
    size::count,
};
use crate::{
    control::{
        api::{Level, Synced},
        client::ControlClient,
    },
    exit::Exit,
    state::Found,
};
use serde_json::json;
use std::time::Instant;
use tidefs_timeline::Position;

/// Brings what was written before to a level, at one mount or at all.
pub async fn sync(context: &Context, args: SyncArgs) -> Result<Exit, CliError> {
    let mounts = match &args.path {
        Some(path) => vec![locate::running(context, path)?.0],
        None => locate::all_running(context)?,
    };
    if mounts.is_empty() {
        return Err(CliError::new(Exit::NotFound, "nothing is mounted: see `tidefs status`"));
    }
    let mut worst = Exit::Done;
    let (level, deadline) = (args.level, args.timeout);
    let calls = mounts.iter().map(|found| async move {
        let client = ControlClient::new(&found.state_dir);
        (found, client.sync(level, deadline).await)
    });
    for (found, synced) in futures::future::join_all(calls).await {
        match synced {
            Ok(synced) => say(context, found, args.level, synced)?,
            Err(error) => {
                let error = CliError::from(error);
                let named = format!("sync of {}: {}", found.file.mount_point.display(), error.message);
                tell(context.out.json(), &CliError::new(error.exit, named));
                worst = error.exit;
            }
        }
    }
    Ok(worst)
}

fn say(context: &Context, found: &Found, level: Level, synced: Synced) -> Result<(), CliError> {
    let dir = &found.file.mount_point;
    let object = json!({"mount_point": dir, "drive": found.file.drive, "level": level,
        "position": synced.position, "counted": synced.counted, "not_counted": synced.not_counted});
    let text = match level {
        Level::Local => format!("{}: on local disk", dir.display()),
        Level::Server => format!("{}: at the server, position {}", dir.display(), synced.position),
        Level::Visible => {
            let silent = match synced.not_counted {
                0 => String::new(),
                n => format!("; {n} silent for 5 s were not waited for"),
            };
            let Synced { position, counted, .. } = synced;
            format!(
                "{}: visible at {}, position {position}{silent}",
                dir.display(),
                count(counted.into(), "other mount")
            )
        }
    };
    context.out.result(&object, &text)
}

/// Waits until a position is applied at a mount.
pub async fn wait(context: &Context, args: WaitArgs) -> Result<Exit, CliError> {
    let (found, _) = locate::running(context, &args.dir)?;
    let start = Instant::now();
    ControlClient::new(&found.state_dir).wait(Position(args.position), args.timeout).await?;
    let dir = &found.file.mount_point;
    let object = json!({"mount_point": dir, "position": args.position,
        "waited_ms": u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX)});
    context.out.result(&object, &format!("{}: position {} is here", dir.display(), args.position))?;
    Ok(Exit::Done)
}
