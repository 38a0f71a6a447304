//! The command line.

use clap::{Args, Parser, Subcommand};
use std::{net::SocketAddr, path::PathBuf};

/// The arguments of `tidefs-server`.
#[derive(Debug, Parser)]
#[command(
    name = "tidefs-server",
    version,
    about = "Orders, stores and announces the checkpoints of tidefs drives"
)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// What to do; `serve` if nothing is said.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// For `serve` without its name.
    #[command(flatten)]
    pub serve: ServeArgs,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve drives (the default).
    Serve(ServeArgs),
    /// Check what is stored.
    Check(DataArgs),
    /// Repair what is stored.
    Repair(DataArgs),
    /// Write drives to a folder.
    Export(DataArgs),
    /// Read drives from a folder.
    Import(DataArgs),
}

/// The arguments of `serve`.
#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    /// The data folder; made if it is missing.
    #[arg(long, env = "TIDEFS_DATA")]
    pub data: Option<PathBuf>,
    /// Where mounts connect; port 0 takes a free one.
    #[arg(long, env = "TIDEFS_LISTEN", default_value = "127.0.0.1:7440", value_parser = address)]
    pub listen: SocketAddr,
    /// Where health and metrics are; port 0 takes a free one.
    #[arg(long, env = "TIDEFS_HTTP", default_value = "127.0.0.1:7441", value_parser = address)]
    pub http: SocketAddr,
    /// Allow to listen beyond this machine, in plain text and without checking who comes.
    #[arg(long)]
    pub insecure: bool,
    /// Say what happens as JSON, one object a line.
    #[arg(long)]
    pub json: bool,
}

/// The arguments of the other commands.
#[derive(Debug, Clone, Args)]
pub struct DataArgs {
    /// The data folder.
    #[arg(long, env = "TIDEFS_DATA")]
    pub data: Option<PathBuf>,
    /// More arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    pub rest: Vec<String>,
}

/// An address; one that begins with the port is on loopback.
fn address(text: &str) -> Result<SocketAddr, String> {
    let full = if text.starts_with(':') { format!("127.0.0.1{text}") } else { text.to_owned() };
    full.parse().map_err(|_| format!("{text:?} is not an address such as 127.0.0.1:7440 or :0"))
}

/// How to serve.
#[derive(Debug, Clone)]
pub struct Config {
    /// The data folder.
    pub data: PathBuf,
    /// Where mounts connect.
    pub listen: SocketAddr,
    /// Where health and metrics are.
    pub http: SocketAddr,
}

/// Why arguments cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// No data folder.
    #[error("--data DIR is missing: say where the drives are kept")]
    NoData,
    /// Beyond loopback.
    #[error(
        "{0} is reachable from other machines, and this version speaks plain text and checks nobody: listen on \
         127.0.0.1, or say --insecure if the network is yours alone"
    )]
    Insecure(SocketAddr),
}

impl ServeArgs {
    /// The configuration that the arguments say.
    ///
    /// # Errors
    /// When something is missing or must be said aloud.
    pub fn config(&self) -> Result<Config, ConfigError> {
        let data = self.data.clone().ok_or(ConfigError::NoData)?;
        let open = [self.listen, self.http].into_iter().find(|address| !address.ip().is_loopback());
        if let Some(address) = open.filter(|_| !self.insecure) {
            return Err(ConfigError::Insecure(address));
        }
        Ok(Config { data, listen: self.listen, http: self.http })
    }
}
