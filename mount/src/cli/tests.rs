//! Words, sizes, statuses: what needs neither a server nor a kernel.

use super::{
    args::{Cli, Command},
    drive::check_name,
    error::{CliError, exit_of},
    grpc::check_url,
    name_of,
    size::{parse_duration, parse_octal, parse_size, show_ms, show_size},
};
use crate::{
    config::{FsyncLevel, MountConfig, slug},
    control::api::Level,
    exit::Exit,
};
use clap::{CommandFactory, Parser};
use std::{path::Path, time::Duration};

fn parse(words: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(std::iter::once("tidefs").chain(words.split_whitespace()))
}

fn configure(words: &str) -> Result<MountConfig, CliError> {
    let cli = parse(words).unwrap();
    let Command::Mount(args) = cli.command else { panic!("not a mount: {words}") };
    super::mount::configure(&super::Context::new(cli.common), &args).map(|(config, _)| config)
}

/// The words are consistent in themselves.
#[test]
fn the_words_are_sound() {
    Cli::command().debug_assert();
}

/// Every name of the interface exists, and one that is not built says so with status 2.
#[test]
fn every_name_is_there() {
    for words in [
        "top",
        "cat a@3",
        "diff 1 2",
        "restore a@3 --to b",
        "undo s --after 4",
        "overlaps list",
        "watch /x",
        "snapshot create x",
        "policy set a b",
        "token --help",
        "wal list --to x",
    ] {
        let cli = parse(words).unwrap_or_else(|error| panic!("{words}: {error}"));
        let error = CliError::not_built(name_of(&cli.command));
        assert_eq!(error.exit, Exit::Usage);
        let first = words.split(' ').next().unwrap();
        assert_eq!(error.message, format!("{first}: not built yet"));
    }
    for words in [
        "up a b --data d --drive x --exec true",
        "mount main /m --foreground",
        "unmount /m --discard",
        "sync",
        "sync /m --level visible",
        "wait 12 /m",
        "status",
        "log main:/ -n 0 --json",
        "drive list --json",
        "drive create main --exist-ok",
        "drive show main",
        "drive delete main",
        "--json status",
        "status --state /s",
    ] {
        parse(words).unwrap_or_else(|error| panic!("{words}: {error}"));
    }
    for wrong in [
        "",
        "up",
        "mount main",
        "wait x /m",
        "sync --level far",
        "mount main /m --settle fast",
        "frob",
        "mount main /m --detached",
    ] {
        assert!(parse(wrong).is_err(), "{wrong}");
    }
}

/// What is not said has the promised default.
#[test]
fn a_mount_has_the_promised_defaults() {
    let dir = tempfile::tempdir().unwrap();
    let config =
        configure(&format!("mount main {0} --state {0} --server 127.0.0.1:9", dir.path().display())).unwrap();
    assert_eq!(config.server.url, "http://127.0.0.1:9");
    assert_eq!(config.settle.settle, Duration::from_secs(1));
    assert_eq!(config.settle.signal_settle, Duration::from_millis(100));
    assert_eq!(config.settle.max_delay, Duration::from_secs(5));
    assert_eq!(
        (config.fsync, config.limits.wal_bytes, config.limits.cache_bytes),
        (FsyncLevel::Local, 10 << 30, 10 << 30)
    );
    assert!(config.allow_other && !config.read_only && config.owner.uid.is_none());
    assert_eq!(config.state_dir.parent().unwrap(), dir.path());
    assert!(!config.session_name().is_empty() && config.session_name().len() <= 64);
    let again =
        configure(&format!("mount main {0} --state {0} --settle 10ms", dir.path().display())).unwrap();
    assert_eq!(again.state_dir, config.state_dir, "the same drive and mount point have the same state");
}

/// Options reach the configuration, and the token never reaches the disk.
#[test]
fn options_arrive() {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    std::fs::write(&token, "s3cret-w0rd\n").unwrap();
    let config = configure(&format!(
        "mount main {0} --state {0} --session bob --settle 10ms --signal-settle 1ms --max-delay 2s --fsync server \
         --wal-limit 5MiB --cache-limit 1GB --read-only --no-allow-other --token-file {1}",
        dir.path().display(),
        token.display()
    ))
    .unwrap();
    assert_eq!((config.session_name().as_str(), config.fsync), ("bob", FsyncLevel::Server));
    assert_eq!(config.settle.signal_settle, Duration::from_millis(1));
    assert_eq!((config.limits.wal_bytes, config.limits.cache_bytes), (5 << 20, 1_000_000_000));
    assert!(config.read_only && !config.allow_other);
    assert_eq!(config.server.token.as_deref(), Some("s3cret-w0rd"));
    assert!(!serde_json::to_string(&config).unwrap().contains("s3cret"));
}

/// What is not built and what is wrong is refused before anything is made.
#[test]
fn wrong_mounts_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let base = format!("{0} --state {0}", dir.path().display());
    for (words, exit) in [
        (format!("mount main {base} --at 5"), Exit::Usage),
        (format!("mount main {base} --at-least 5"), Exit::Usage),
        (format!("mount main {base} --uid 5"), Exit::Usage),
        (format!("mount main {base} --memory-limit 1GiB"), Exit::Usage),
        (format!("mount main {base} --session a/b"), Exit::Usage),
        (format!("mount .. {base}"), Exit::Usage),
        (format!("mount main {base} --server http://10.0.0.1:7440"), Exit::Usage),
        (format!("mount main {base} --token-file /nonexistent"), Exit::NotFound),
        (format!("mount main /nonexistent/m --state {}", dir.path().display()), Exit::NotFound),
    ] {
        let error = configure(&words).unwrap_err();
        assert_eq!(error.exit, exit, "{words}: {error}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// Sizes and durations, and what is none.
#[test]
fn sizes_and_durations() {
    for (text, bytes) in [
        ("0", 0),
        ("512", 512),
        ("10GiB", 10 << 30),
        ("1 k", 1024),
        ("3MB", 3_000_000),
        ("2T", 2 << 40),
        ("7b", 7),
    ] {
        assert_eq!(parse_size(text), Ok(bytes), "{text}");
    }
    for wrong in ["", "GiB", "-1", "1.5GiB", "10 parsecs", "99999999999999999999", "18446744073709551615K"] {
        assert!(parse_size(wrong).is_err(), "{wrong}");
    }
    assert_eq!(parse_duration("1m 30s"), Ok(Duration::from_secs(90)));
    assert!(
        parse_duration("5").is_err() && parse_duration("-1s").is_err() && parse_duration("9999y").is_err()
    );
    assert_eq!((parse_octal("022"), parse_octal("0o77")), (Ok(0o22), Ok(0o77)));
    assert!(parse_octal("8").is_err() && parse_octal("1000").is_err());
    assert_eq!(
        (show_size(1023), show_size(1536), show_size(u64::MAX)),
        ("1023 B".into(), "1.5 KiB".into(), "16777216.0 TiB".into())
    );
    assert_eq!(
        (show_ms(999), show_ms(1500), show_ms(90_000)),
        ("999 ms".into(), "1.5 s".into(), "1m 30s".into())
    );
}

/// Plain text stays on this machine unless it is allowed out.
#[test]
fn servers() {
    for (given, full) in [
        ("http://127.0.0.1:7440", "http://127.0.0.1:7440"),
        ("localhost:1", "http://localhost:1"),
        ("127.9.9.9", "http://127.9.9.9:7440"),
        ("http://[::1]:5/", "http://[::1]:5"),
    ] {
        assert_eq!(check_url(given, false).unwrap(), full);
    }
    for beyond in
        ["http://10.0.0.1:7440", "http://localhost.evil.example", "http://[2001:db8::1]:1", "0.0.0.0:7440"]
    {
        let error = check_url(beyond, false).unwrap_err();
        assert_eq!(error.exit, Exit::Usage);
        assert!(error.message.contains("--insecure"), "{error}");
        check_url(beyond, true).unwrap();
    }
    for wrong in ["", "http://", "ftp://127.0.0.1", "not a url", "https://127.0.0.1"] {
        assert_eq!(check_url(wrong, true).unwrap_err().exit, Exit::Usage, "{wrong}");
    }
}

/// The statuses are the interface.
#[test]
fn statuses() {
    use tonic::Code;
    for (code, exit) in [
        (Code::NotFound, 3),
        (Code::Unavailable, 4),
        (Code::DeadlineExceeded, 5),
        (Code::PermissionDenied, 8),
        (Code::FailedPrecondition, 8),
        (Code::Unauthenticated, 8),
        (Code::AlreadyExists, 8),
        (Code::InvalidArgument, 2),
        (Code::Internal, 1),
    ] {
        assert_eq!(exit_of(code).code(), exit, "{code:?}");
    }
    for exit in 0..=8u8 {
        assert_eq!(Exit::from_code(i64::from(exit)).code(), exit);
    }
    assert_eq!((Exit::from_code(101), Exit::from_code(-1)), (Exit::Failed, Exit::Failed));
    let error = CliError::from_status(&tonic::Status::unavailable("refused"), "http://127.0.0.1:1", "log");
    assert!(
        error.message.contains("http://127.0.0.1:1") && error.message.contains("tidefs-server --data"),
        "{error}"
    );
}

/// Names of drives and sessions are one plain word.
#[test]
fn names() {
    for good in ["main", "a", "0x", "team.drive_2-b", &"x".repeat(64)] {
        check_name(good).unwrap();
    }
    for bad in ["", ".", "-x", "a/b", "a:b", "a b", "é", "a\n", &"x".repeat(65)] {
        assert_eq!(check_name(bad).unwrap_err().exit, Exit::Usage, "{bad:?}");
    }
    assert_eq!(
        (slug("..a b/é", 9).as_str(), slug("", 9).as_str(), slug("abcdef", 3).as_str()),
        ("a-b--", "mount", "abc")
    );
}

/// A server that is not there is said to be unreachable, with what to do, within the deadline.
#[tokio::test]
async fn a_missing_server_is_unreachable() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let cli = parse(&format!("drive list --server 127.0.0.1:{port}")).unwrap();
    let Command::Drive(command) = cli.command else { panic!("not a drive command") };
    let error = super::drive::run(&super::Context::new(cli.common), command).await.unwrap_err();
    assert_eq!(error.exit, Exit::Unreachable);
    assert!(error.message.contains("is it running?"), "{error}");
}

/// A sync names its level as the socket does.
#[test]
fn levels() {
    let cli = parse("sync /m --level visible --timeout 5s").unwrap();
    let Command::Sync(args) = cli.command else { panic!("not a sync") };
    assert_eq!(
        (args.level, args.timeout, args.path.as_deref()),
        (Level::Visible, Duration::from_secs(5), Some(Path::new("/m")))
    );
}
