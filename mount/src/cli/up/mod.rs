//! `tidefs up`: a server and mounts on this machine with one command, all of it gone when the command ends, the
//! data kept.

mod family;

use super::{
    Context,
    args::UpArgs,
    background::{Speaking, USABLE_MAX, own_program},
    drive,
    error::CliError,
    grpc::Server,
    mount::left_unsent,
    output::{Output, remark},
    signals::Ends,
};
use crate::{
    config::ServerAddress,
    control::api::Left,
    exit::Exit,
    state::folder::{self, open_log},
};
use family::{Family, Member};
use serde_json::{Value, json};
use std::{
    ffi::OsStr,
    fs::{DirBuilder, File},
    io::{Read, Seek, SeekFrom},
    os::unix::{fs::DirBuilderExt, process::ExitStatusExt},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};
use tokio::{
    process::{Child, Command},
    time::timeout,
};

/// How long the server may take to be ready: it may have a journal to replay.
const SERVER_READY_MAX: Duration = Duration::from_secs(60);
/// How long a program of `--exec` may take to end when it is told to.
const EXEC_END_MAX: Duration = Duration::from_secs(5);
/// As much of a log's end as an error shows, in bytes.
const TAIL_BYTES: u64 = 2000;

/// What is started, checked.
struct Plan {
    drive: String,
    dirs: Vec<PathBuf>,
    base: PathBuf,
    data: PathBuf,
    server: PathBuf,
    exec: bool,
}

/// Runs the command; the status is the program's with `--exec`.
pub async fn run(context: &Context, args: UpArgs) -> Result<u8, CliError> {
    let plan = plan(context, &args)?;
    let json = context.out.json();
    let out = if plan.exec { Output::on_stderr(json) } else { context.out };
    let mut signals = Ends::listen()?;
    let mut family = Family::default();
    let started = tokio::select! {
        started = start(&plan, out, &mut family) => started,
        () = signals.next() => Err(CliError::new(Exit::Failed, "ended by a signal before it was ready")),
    };
    let ended = match (started, &args.exec) {
        (Err(error), _) => Err(error),
        (Ok(url), Some(command)) => exec(&plan, &url, command, &mut family, &mut signals).await,
        (Ok(_), None) => watch(&mut family, &mut signals, json).await.map(|()| 0),
    };
    let left = family.leave(&mut signals).await;
    if left.is_clean() {
        return ended;
    }
    let again =
        format!("tidefs up {} --drive {} --data {}", show_dirs(&plan.dirs), plan.drive, plan.data.display());
    let unsent = CliError::new(Exit::Unsent, left_unsent(left, &again));
    match ended {
        Ok(0) => Err(unsent),
        other => {
            super::output::tell(json, &unsent);
            other
        }
    }
}

fn plan(context: &Context, args: &UpArgs) -> Result<Plan, CliError> {
    drive::check_name(&args.drive)?;
    let mut dirs = Vec::new();
    for dir in &args.dirs {
        let dir = context.absolute(dir)?;
        if dirs.contains(&dir) {
            return Err(CliError::usage(format!("{} is named twice", dir.display())));
        }
        dirs.push(dir);
    }
    let base = context.base()?;
    let data = match &args.data {
        Some(data) => context.absolute(data)?,
        None => base.join("up-data"),
    };
    let server = own_program()?.with_file_name("tidefs-server");
    if !server.is_file() {
        return Err(CliError::new(
            Exit::Prerequisite,
            format!("{} is missing: `tidefs up` needs tidefs-server beside tidefs", server.display()),
        ));
    }
    Ok(Plan { drive: args.drive.clone(), dirs, base, data, server, exec: args.exec.is_some() })
}

async fn start(plan: &Plan, out: Output, family: &mut Family) -> Result<String, CliError> {
    make_folder(&plan.base, 0o700)?;
    make_folder(&plan.data, 0o700)?;
    let ready = start_server(plan, family).await?;
    let text = |name: &str| ready.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let url = format!("http://{}", text("listen"));
    let told = json!({"event": "server", "listen": text("listen"), "http": text("http"), "data": plan.data});
    let line = format!("server  {url} (status http://{}), data in {}", text("http"), plan.data.display());
    out.result(&told, &line)?;
    let server = Server::connect(ServerAddress { url: url.clone(), token: None }).await?;
    drive::create(&server, &plan.drive, true).await?;
    for dir in &plan.dirs {
        // What is mounted there may be a dead process's, which must not be touched; it is no missing folder either.
        if !crate::state::mountinfo::read()?.iter().any(|line| line.mount_point == *dir) {
            make_folder(dir, 0o755)?;
        }
    }
    let mounts = plan.dirs.iter().map(|dir| start_mount(plan, &url, dir));
    let mut failed = None;
    for mounted in futures::future::join_all(mounts).await {
        match mounted {
            Ok((member, told)) => {
                let text = |name: &str| told.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
                let line = format!(
                    "mount   {} shows drive {} (session {})",
                    text("mount_point"),
                    text("drive"),
                    text("session")
                );
                family.add_mount(member);
                let mut told = told;
                if let Value::Object(fields) = &mut told {
                    fields.insert("event".to_owned(), "mounted".into());
                }
                out.result(&told, &line)?;
            }
            Err(error) => failed = Some(error),
        }
    }
    if let Some(error) = failed {
        return Err(error);
    }
    let add = format!("tidefs mount {} DIR --server {url}", plan.drive);
    out.result(
        &json!({"event": "ready", "server": url, "drive": plan.drive, "add_mount": add}),
        &format!("ready   add a mount with `{add}`; Ctrl-C ships what is unsent and leaves"),
    )?;
    Ok(url)
}

async fn start_server(plan: &Plan, family: &mut Family) -> Result<Value, CliError> {
    let log_path = plan.base.join("up-server.log");
    let log = open_log(&log_path)?;
    let from = log.metadata().map_or(0, |meta| meta.len());
    let mut command = tethered(&plan.server)?;
    command.args(["serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--json", "--data"]);
    command.arg(&plan.data).stderr(log).kill_on_drop(true);
    let mut server = Speaking::new(spawn(&mut command, &plan.server)?)?;
    let told = timeout(SERVER_READY_MAX, server.ready(&log_path)).await;
    match told {
        Ok(Ok(ready)) => {
            family.set_server(Member { name: "the server".to_owned(), child: server });
            Ok(ready)
        }
        Ok(Err(error)) => {
            let tail = tail(&log_path, from);
            let why = if tail.is_empty() { error.message } else { format!("{}\n{tail}", error.message) };
            Err(CliError::new(error.exit, format!("tidefs-server did not start: {why}")))
        }
        Err(_) => {
            server.kill().await;
            let why = format!("not ready within {SERVER_READY_MAX:?}: see {}", log_path.display());
            Err(CliError::new(Exit::Deadline, format!("tidefs-server: {why}")))
        }
    }
}

async fn start_mount(plan: &Plan, url: &str, dir: &Path) -> Result<(Member, Value), CliError> {
    let real = folder::real_mount_point(dir)?;
    let log = plan.base.join(folder::folder_name(&plan.drive, &real)).join("mount.log");
    let program = own_program()?;
    let mut command = tethered(&program)?;
    command.args(["mount", "--foreground", "--detached", "--server", url, "--state"]).arg(&plan.base);
    command.arg("--").arg(&plan.drive).arg(dir);
    let mut child = Speaking::new(spawn(&mut command, &program)?)?;
    let failed = |exit, why: String| CliError::new(exit, format!("{}: {why}", dir.display()));
    match timeout(USABLE_MAX, child.ready(&log)).await {
        Ok(Ok(told)) => Ok((Member { name: dir.display().to_string(), child }, told)),
        Ok(Err(error)) => Err(failed(error.exit, error.message)),
        Err(_) => {
            child.end();
            Err(failed(Exit::Deadline, format!("not usable within {USABLE_MAX:?}: see {}", log.display())))
        }
    }
}

/// A command that runs `program` tied to this process, in a group of its own: Ctrl-C is for this process alone.
fn tethered(program: &Path) -> Result<Command, CliError> {
    let mut command = Command::new(own_program()?);
    command.arg("tethered").arg(std::process::id().to_string()).arg("--").arg(program);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
    Ok(command)
}

fn spawn(command: &mut Command, program: &Path) -> Result<Child, CliError> {
    let started = command.spawn();
    started.map_err(|e| CliError::new(Exit::Failed, format!("cannot start {}: {e}", program.display())))
}

fn make_folder(path: &Path, mode: u32) -> Result<(), CliError> {
    let made = DirBuilder::new().recursive(true).mode(mode).create(path);
    made.map_err(|e| CliError::new(Exit::Failed, format!("cannot make {}: {e}", path.display())))
}

/// The end of what a log has gained since `from`.
fn tail(path: &Path, from: u64) -> String {
    let read = || -> std::io::Result<String> {
        let mut log = File::open(path)?;
        let end = log.metadata()?.len();
        log.seek(SeekFrom::Start(from.max(end.saturating_sub(TAIL_BYTES))))?;
        let mut bytes = Vec::new();
        log.take(TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    };
    read().unwrap_or_default()
}

/// Waits until it is told to end or nothing is left to serve.
async fn watch(family: &mut Family, signals: &mut Ends, json: bool) -> Result<(), CliError> {
    loop {
        tokio::select! {
            () = signals.next() => return Ok(()),
            ended = family.next_end() => {
                remark(json, &format!("{} has ended", ended.name));
                if ended.is_server {
                    let why = "the server has ended: see up-server.log in the state folder";
                    return Err(CliError::new(Exit::Failed, why));
                }
                if family.mounts_left() == 0 {
                    return Ok(());
                }
            }
        }
    }
}

async fn exec(
    plan: &Plan,
    url: &str,
    command: &OsStr,
    family: &mut Family,
    signals: &mut Ends,
) -> Result<u8, CliError> {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(command).env("TIDEFS_SERVER", url).env("TIDEFS_STATE", &plan.base);
    let mut child = spawn(shell.kill_on_drop(true), Path::new("sh"))?;
    loop {
        tokio::select! {
            status = child.wait() => return status
                .map(status_code)
                .map_err(|e| CliError::new(Exit::Failed, format!("cannot wait for the program: {e}"))),
            ended = family.next_end() => remark(false, &format!("{} has ended", ended.name)),
            () = signals.next() => {
                family::terminate(&child);
                return match timeout(EXEC_END_MAX, child.wait()).await {
                    Ok(Ok(status)) => Ok(status_code(status)),
                    _ => Err(CliError::new(Exit::Failed, "ended by a signal; the program had to be killed")),
                };
            }
        }
    }
}

/// A program's status as a shell shows it: 128 and the signal's number for one that a signal ended.
fn status_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

fn show_dirs(dirs: &[PathBuf]) -> String {
    dirs.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(" ")
}

/// The sum of what mounts left.
fn add(a: Left, b: Left) -> Left {
    Left {
        unsent_checkpoints: a.unsent_checkpoints.saturating_add(b.unsent_checkpoints),
        unsent_bytes: a.unsent_bytes.saturating_add(b.unsent_bytes),
    }
}
