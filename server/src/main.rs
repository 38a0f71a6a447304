//! The `tidefs-server` program.

use clap::Parser;
use std::{io::Write, process::ExitCode, time::Duration};
use tidefs_server::{
    config::{Cli, Command, ServeArgs},
    server::{Server, StartError},
    store::FolderError,
};
use tokio::signal::unix::{SignalKind, signal};

/// Exit statuses, as the documentation of the command line lists them.
mod exit {
    pub const FAILED: u8 = 1;
    pub const USAGE: u8 = 2;
    pub const REFUSED: u8 = 8;
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    log_to_stderr();
    abort_on_panic();
    match cli.command {
        None => serve(cli.serve),
        Some(Command::Serve(args)) => serve(args),
        Some(Command::Check(_)) => not_built("check"),
        Some(Command::Repair(_)) => not_built("repair"),
        Some(Command::Export(_)) => not_built("export"),
        Some(Command::Import(_)) => not_built("import"),
    }
}

fn not_built(name: &str) -> ExitCode {
    eprintln!("tidefs-server {name}: not built yet");
    ExitCode::from(exit::USAGE)
}

fn serve(args: ServeArgs) -> ExitCode {
    let config = match args.config() {
        Ok(config) => config,
        Err(error) => return failed(exit::USAGE, &error),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(exit::FAILED, &error),
    };
    let code = runtime.block_on(async {
        let stop = stop_signal();
        let server = match Server::start(&config).await {
            Ok(server) => server,
            Err(error @ StartError::Folder(FolderError::InUse { .. })) => {
                return failed(exit::REFUSED, &error);
            }
            Err(error) => return failed(exit::FAILED, &error),
        };
        if let Err(error) = say_ready(&server, args.json) {
            return failed(exit::FAILED, &error);
        }
        stop.await;
        tracing::info!("stopping");
        server.stop().await;
        ExitCode::SUCCESS
    });
    // A request that hangs must not keep the process.
    runtime.shutdown_timeout(Duration::from_millis(200));
    code
}

fn failed(code: u8, error: &dyn std::error::Error) -> ExitCode {
    eprintln!("tidefs-server: {error}");
    ExitCode::from(code)
}

/// Says on standard output that requests are taken, and where.
fn say_ready(server: &Server, json: bool) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    let data = server.data.display().to_string();
    if json {
        let ready = serde_json::json!({
            "event": "ready",
            "listen": server.listen.to_string(),
            "http": server.http.to_string(),
            "data": data,
        });
        writeln!(out, "{ready}")?;
    } else {
        writeln!(
            out,
            "tidefs-server ready: mounts http://{}, status http://{}, data {data}",
            server.listen, server.http
        )?;
    }
    out.flush()
}

/// Ends when the process is asked to stop. The handlers stand when this returns, not when it is first awaited.
fn stop_signal() -> impl Future<Output = ()> {
    let handlers = [SignalKind::terminate(), SignalKind::interrupt()]
        .map(|kind| signal(kind).inspect_err(|error| tracing::warn!(%error, "cannot handle a signal")).ok());
    async move {
        let [terminate, interrupt] = handlers;
        tokio::select! {
            () = received(terminate) => {}
            () = received(interrupt) => {}
        }
    }
}

async fn received(signal: Option<tokio::signal::unix::Signal>) {
    match signal {
        Some(mut signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

fn log_to_stderr() {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_env("TIDEFS_LOG")
        .or_else(|_| EnvFilter::try_from_default_env())
        .unwrap_or_else(|_| EnvFilter::new("info,sled=warn"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    log.with_ansi(false).init();
}

/// A panic means that a rule of the program broke: nothing may be decided after it. The journal holds all that was
/// acknowledged.
fn abort_on_panic() {
    let say = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        // sled panics on damaged files, and its guard turns that into an error and a new index.
        let guarded = panic.location().is_some_and(|at| at.file().contains("/sled-"));
        if guarded {
            tracing::error!("{panic}");
            return;
        }
        say(panic);
        std::process::abort();
    }));
}
