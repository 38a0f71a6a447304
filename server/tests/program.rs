//! The program from outside: what it says, and the statuses it exits with.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
    time::Instant,
};

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidefs-server"));
    command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Status and what was said on standard error.
fn fails(args: &[&str]) -> (Option<i32>, String) {
    let out = command(args).output().unwrap();
    (out.status.code(), String::from_utf8(out.stderr).unwrap())
}

struct Serving {
    child: Child,
    ready: serde_json::Value,
}

impl Serving {
    fn start(data: &Path) -> Self {
        let data = data.to_str().unwrap();
        let mut child = command(&["--data", data, "--listen", ":0", "--http", ":0", "--json"])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { child, ready: serde_json::from_str(&line).unwrap() }
    }

    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.ready["http"].as_str().unwrap()).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // Gone already when the test has waited for it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// It says where it listens, is healthy, counts, keeps a second one out, and leaves quickly when asked to.
#[test]
fn serves_until_asked_to_stop() {
    let dir = tempfile::tempdir().unwrap();
    let mut serving = Serving::start(dir.path());
    assert_eq!(serving.ready["event"], "ready");
    assert_eq!(serving.ready["data"], dir.path().to_str().unwrap());
    assert!(TcpStream::connect(serving.ready["listen"].as_str().unwrap()).is_ok());
    assert!(serving.get("/healthz").starts_with("HTTP/1.1 200"));
    assert!(serving.get("/metrics").starts_with("HTTP/1.1 200"));
    assert!(serving.get("/").contains("tidefs-server"));
    let data = dir.path().to_str().unwrap();
    let (status, said) = fails(&["serve", "--data", data, "--listen", ":0", "--http", ":0"]);
    assert_eq!(status, Some(8), "{said}");
    assert!(said.contains("another tidefs-server uses"), "{said}");

    let begun = Instant::now();
    let pid = rustix::process::Pid::from_child(&serving.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(serving.child.wait().unwrap().code(), Some(0));
    assert!(begun.elapsed().as_secs() < 2, "took {:?}", begun.elapsed());
}

/// What cannot be done is refused with what to do instead.
#[test]
fn refusals_have_their_statuses() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().to_str().unwrap();
    let (status, said) = fails(&["--data", data, "--listen", "0.0.0.0:0"]);
    assert_eq!(status, Some(2));
    assert!(said.contains("--insecure"), "{said}");
    assert_eq!(fails(&[]).0, Some(2));
    assert_eq!(fails(&["--data", data, "--listen", "nowhere"]).0, Some(2));
    for name in ["check", "repair", "export", "import"] {
        let (status, said) = fails(&[name, "--data", data]);
        assert_eq!(status, Some(2));
        assert!(said.contains("not built yet"), "{said}");
    }
}
