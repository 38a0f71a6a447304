//! The processes that `up` has started. Each has a task that owns it, so that a signal never goes to a process of
//! the same id that came after; whatever happens to this process, the kernel tells them to end (see `tether`).

use super::add;
use crate::{
    cli::{background::Speaking, signals::Ends},
    control::api::Left,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::time::Duration;
use tokio::{
    process::Child,
    sync::watch,
    task::JoinSet,
    time::{Instant, timeout, timeout_at},
};

/// How long mounts may take to end: the 30 s that SIGTERM gives them, and some to unmount.
const MOUNTS_END_MAX: Duration = Duration::from_secs(45);
/// How long the server may take to end.
const SERVER_END_MAX: Duration = Duration::from_secs(5);

/// A process and what to call it.
pub struct Member {
    /// What to call it.
    pub name: String,
    /// The process.
    pub child: Speaking,
}

/// The end of one.
#[derive(Debug)]
pub struct Ended {
    /// What to call it.
    pub name: String,
    /// Whether it was the server.
    pub is_server: bool,
    left: Left,
}

/// All of them.
pub struct Family {
    tasks: JoinSet<Ended>,
    mounts: usize,
    mounts_asked: watch::Sender<u32>,
    server_asked: watch::Sender<u32>,
    left: Left,
}

impl Default for Family {
    fn default() -> Self {
        Self {
            tasks: JoinSet::new(),
            mounts: 0,
            mounts_asked: watch::Sender::new(0),
            server_asked: watch::Sender::new(0),
            left: Left::default(),
        }
    }
}

impl Family {
    /// The server.
    pub fn set_server(&mut self, member: Member) {
        self.tasks.spawn(mind(member, true, self.server_asked.subscribe()));
    }

    /// One more mount.
    pub fn add_mount(&mut self, member: Member) {
        self.mounts += 1;
        self.tasks.spawn(mind(member, false, self.mounts_asked.subscribe()));
    }

    /// Mounts that have not ended.
    pub fn mounts_left(&self) -> usize {
        self.mounts
    }

    /// Waits for the next one that ends; for ever when there is none.
    pub async fn next_end(&mut self) -> Ended {
        loop {
            match self.tasks.join_next().await {
                Some(Ok(ended)) => {
                    if !ended.is_server {
                        self.mounts = self.mounts.saturating_sub(1);
                        self.left = add(self.left, ended.left);
                    }
                    return ended;
                }
                Some(Err(error)) => tracing::error!(%error, "lost sight of a process"),
                None => return std::future::pending().await,
            }
        }
    }

    /// Tells the mounts to ship and leave, then the server to end, and says what was left. A further signal makes
    /// the mounts leave at once.
    pub async fn leave(mut self, signals: &mut Ends) -> Left {
        self.mounts_asked.send_modify(|asked| *asked += 1);
        let deadline = Instant::now() + MOUNTS_END_MAX;
        while self.mounts > 0 {
            let asked = self.mounts_asked.clone();
            tokio::select! {
                ended = timeout_at(deadline, self.next_end()) => if ended.is_err() {
                    tracing::error!(mounts = self.mounts, "mounts are slow to end; they go on by themselves");
                    break;
                },
                () = signals.next() => asked.send_modify(|asked| *asked += 1),
            }
        }
        self.server_asked.send_modify(|asked| *asked += 1);
        let server = async { while !self.tasks.is_empty() && !self.next_end().await.is_server {} };
        // What is not over in time is killed when the tasks are dropped.
        let _ended = timeout(SERVER_END_MAX, server).await;
        self.left
    }
}

/// Asks a process to end.
pub fn terminate(child: &Child) {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // It may have ended by itself meanwhile; not waited for, its id is still its own.
        let _sent = kill_process(pid, Signal::TERM);
    }
}

async fn mind(mut member: Member, is_server: bool, mut asked: watch::Receiver<u32>) -> Ended {
    let mut left = Left::default();
    // Asked before this task began to look.
    if *asked.borrow_and_update() > 0 {
        member.child.end();
    }
    loop {
        tokio::select! {
            Ok(()) = asked.changed() => member.child.end(),
            said = member.child.says() => match said {
                Some(said) => left = left_of(&said).unwrap_or(left),
                None => break,
            },
        }
    }
    // Its standard output is closed; that is its end, or nearly.
    loop {
        tokio::select! {
            Ok(()) = asked.changed() => member.child.end(),
            _status = member.child.ended() => return Ended { name: member.name, is_server, left },
        }
    }
}

fn left_of(said: &Value) -> Option<Left> {
    (said.get("event")?.as_str()? == "left").then(|| serde_json::from_value(said.clone()).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;
    use tokio::process::Command;

    fn member(name: &str, script: &str) -> Member {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        Member { name: name.to_owned(), child: Speaking::new(command.spawn().unwrap()).unwrap() }
    }

    /// A mount's words as it ends are what `up` reports, and the server ends after the mounts.
    #[tokio::test]
    async fn mounts_leave_before_the_server_and_their_rest_is_summed() {
        let order = tempfile::tempdir().unwrap();
        let at = |name: &str| order.path().join(name);
        let mut family = Family::default();
        let (server, a) = (at("server"), at("a"));
        let mut one = member(
            "server",
            &format!(
                "trap 'test -e {} && echo yes > {}; exit 0' TERM; echo '{{\"event\":\"ready\"}}'; \
                 while :; do sleep 0.05; done",
                a.display(),
                server.display()
            ),
        );
        one.child.ready(order.path()).await.unwrap();
        family.set_server(one);
        let leaves = format!(
            "trap 'touch {}; echo \"{{\\\"event\\\":\\\"left\\\",\\\"unsent_checkpoints\\\":2,\\\"unsent_bytes\\\":7}}\"; \
             exit 6' TERM; echo '{{\"event\":\"ready\"}}'; while :; do sleep 0.05; done",
            a.display()
        );
        for name in ["a", "b"] {
            let mut mount = member(name, &leaves);
            mount.child.ready(order.path()).await.unwrap();
            family.add_mount(mount);
        }
        let mut signals = Ends::listen().unwrap();
        let left = family.leave(&mut signals).await;
        assert_eq!(left, Left { unsent_checkpoints: 4, unsent_bytes: 14 });
        assert_eq!(
            std::fs::read_to_string(server).unwrap(),
            "yes\n",
            "the mount had left when the server was told"
        );
    }

    /// A child that fails to start passes its own sentence and status on.
    #[tokio::test]
    async fn a_child_that_fails_says_why() {
        let script = "echo '{\"event\":\"failed\",\"error\":\"no such drive\",\"exit_code\":3}'; exit 3";
        let error = member("a", script).child.ready(std::path::Path::new("x.log")).await.unwrap_err();
        assert_eq!((error.exit, error.message.as_str()), (crate::exit::Exit::NotFound, "no such drive"));
        let error = member("b", "exit 7").child.ready(std::path::Path::new("x.log")).await.unwrap_err();
        assert_eq!(error.exit, crate::exit::Exit::Prerequisite);
        assert!(error.message.contains("x.log"), "{error}");
    }

    /// One that ends by itself is noticed.
    #[tokio::test]
    async fn an_end_is_noticed() {
        let mut family = Family::default();
        family.add_mount(member("a", "exit 0"));
        let ended = family.next_end().await;
        assert_eq!((ended.name.as_str(), ended.is_server, family.mounts_left()), ("a", false, 0));
    }
}
