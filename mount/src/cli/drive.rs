//! `tidefs drive`: make, list, show and delete drives.

use super::{
    Context,
    args::DriveCommand,
    error::CliError,
    grpc::{CALL_MAX, Server},
    output::printable,
};
use crate::{exit::Exit, state::files::hex};
use serde_json::{Value, json};
use std::future::Future;
use tidefs_proto::{limits::DRIVE_NAME_BYTES_MAX, wire};
use tokio::time::timeout;
use tonic::{Response, Status};

/// Runs the command.
pub async fn run(context: &Context, command: DriveCommand) -> Result<Exit, CliError> {
    let out = context.out;
    match command {
        DriveCommand::Create { name, exist_ok } => {
            check_name(&name)?;
            let server = Server::connect(context.server()?).await?;
            let info = create(&server, &name, exist_ok).await?;
            out.result(&object(&info), &format!("drive {} is ready", printable(&info.name)))?;
        }
        DriveCommand::List => {
            let server = Server::connect(context.server()?).await?;
            let request = server.request(wire::ListDrivesRequest { token: server.token() });
            let mut drives = server.drives();
            let reply = call(&server, "list the drives", drives.list(request)).await?;
            if reply.drives.is_empty() && !out.json() {
                out.result(&(), "no drives; make one with `tidefs drive create NAME`")?;
            }
            for info in &reply.drives {
                out.result(&object(info), &line(info))?;
            }
        }
        DriveCommand::Show { name } => {
            check_name(&name)?;
            let server = Server::connect(context.server()?).await?;
            let request =
                server.request(wire::ShowDriveRequest { name: name.clone(), token: server.token() });
            let mut drives = server.drives();
            let info = call(&server, &format!("show drive {name}"), drives.show(request)).await?;
            out.result(&object(&info), &line(&info))?;
        }
        DriveCommand::Delete { name } => {
            check_name(&name)?;
            let server = Server::connect(context.server()?).await?;
            let request =
                server.request(wire::DeleteDriveRequest { name: name.clone(), token: server.token() });
            let mut drives = server.drives();
            call(&server, &format!("delete drive {name}"), drives.delete(request)).await?;
            out.result(&json!({"name": name, "deleted": true}), &format!("drive {name} is deleted"))?;
        }
    }
    Ok(Exit::Done)
}

/// Makes a drive.
pub async fn create(server: &Server, name: &str, exist_ok: bool) -> Result<wire::DriveInfo, CliError> {
    let message = wire::CreateDriveRequest { name: name.to_owned(), exist_ok, token: server.token() };
    let request = server.request(message);
    let mut drives = server.drives();
    call(server, &format!("create drive {name}"), drives.create(request)).await
}

/// Whether a name can be a drive's: 1 to 64 letters, digits, dots, dashes and underscores, the first a letter or
/// digit. So it is one word in a shell and one component in a path.
pub fn check_name(name: &str) -> Result<(), CliError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let good = name.len() <= DRIVE_NAME_BYTES_MAX
        && name.chars().next().is_some_and(|c| c.is_ascii_alphanumeric())
        && name.chars().all(plain);
    if good {
        return Ok(());
    }
    Err(CliError::usage(format!(
        "{name:?} cannot be a drive's name: use 1 to {DRIVE_NAME_BYTES_MAX} letters, digits, dots, dashes and \
         underscores, a letter or digit first"
    )))
}

async fn call<T>(
    server: &Server,
    what: &str,
    reply: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, CliError> {
    match timeout(CALL_MAX, reply).await {
        Ok(Ok(reply)) => Ok(reply.into_inner()),
        Ok(Err(status)) => Err(server.refused(&status, what)),
        Err(_) => Err(server.late(what)),
    }
}

fn object(info: &wire::DriveInfo) -> Value {
    json!({
        "name": info.name,
        "drive_id": hex(&info.drive_id),
        "history": hex(&info.history),
        "created_unix_ms": info.created_unix_us / 1000,
        "position": info.position,
        "sessions": info.sessions,
        "followers": info.followers,
    })
}

fn line(info: &wire::DriveInfo) -> String {
    format!(
        "{:<24} position {:<10} sessions {:<6} connected {}",
        printable(&info.name),
        info.position,
        info.sessions,
        info.followers
    )
}
