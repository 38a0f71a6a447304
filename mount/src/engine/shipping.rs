//! From the outbox to the server: what the shipper takes, and what its answers mean.

use super::Engine;
use crate::{
    cache::PackKind,
    link::{CommitEvent, PackBytes, ShipItem, ShipSource},
    volume::Waiting,
};
use prost::Message;
use std::sync::{Arc, atomic::Ordering};
use tidefs_proto::{refusal::Refusal, wire};
use tidefs_timeline::{CheckpointNo, Hash};
use tokio::sync::mpsc;

/// The outbox as the shipper sees it.
pub(crate) struct OutboxSource(pub(crate) Arc<Engine>);

impl ShipSource for OutboxSource {
    fn next(&self, after: CheckpointNo) -> Option<ShipItem> {
        let sealed = self.0.progress.borrow().sealed;
        let after = after.max(self.0.progress.borrow().acknowledged);
        let number = self.0.local.outbox.list().ok()?.into_iter().find(|n| *n > after.0 && *n <= sealed.0)?;
        match self.0.ship_item(number) {
            Ok(item) => Some(item),
            Err(error) => {
                tracing::error!(%error, checkpoint = number, "a sealed checkpoint cannot be read; it stays in the outbox");
                self.0.troubled(format_args!("checkpoint {number} cannot be read from the outbox: {error}"));
                None
            }
        }
    }

    fn changed(&self) -> Waiting<()> {
        let mut progress = self.0.progress.subscribe();
        let sealed = progress.borrow_and_update().sealed;
        Box::pin(async move {
            let _ = progress.wait_for(|progress| progress.sealed > sealed).await;
        })
    }
}

impl Engine {
    fn ship_item(&self, number: u64) -> Result<ShipItem, String> {
        let sealed = self.local.outbox.load(number).map_err(|error| error.to_string())?;
        let entry = wire::OutboxEntry::decode(&sealed.checkpoint[..]).map_err(|error| error.to_string())?;
        let digest = entry.digest[..].try_into().map_err(|_| "its digest is damaged".to_owned())?;
        let pack = match self.local.outbox.open_pack(number).map_err(|error| error.to_string())? {
            None => None,
            Some(file) => {
                let id = sealed.pack.map(|pack| Hash(pack.0)).ok_or("its pack has no name")?;
                let length = file.length();
                let read = Arc::new(move |offset: u64, len: usize| file.read(offset, len).map(Into::into));
                Some(PackBytes { id, length, read })
            }
        };
        Ok(ShipItem { number: CheckpointNo(number), shipment: entry.shipment, digest, pack })
    }

    /// Takes in the server's answers.
    pub(crate) async fn answers(self: Arc<Self>, mut events: mpsc::Receiver<CommitEvent>) {
        while let Some(event) = events.recv().await {
            match event {
                CommitEvent::Connected => {}
                CommitEvent::Acked { number, position, upload_us } => {
                    self.seen.latency.lock().ship.add(upload_us);
                    self.progress.send_modify(|progress| {
                        progress.acknowledged = progress.acknowledged.max(number);
                        progress.own_position = progress.own_position.max(position);
                    });
                    self.drop_answered();
                    self.kick.notify_one();
                }
                CommitEvent::Refused { number, reason, text } => self.refused(number, reason, &text).await,
                CommitEvent::Lost(error) => tracing::debug!(%error, "the commit stream broke"),
            }
        }
    }

    /// A refusal for good sets the checkpoint aside; any other is tried again by the shipper.
    async fn refused(&self, number: CheckpointNo, reason: u32, text: &str) {
        tracing::error!(checkpoint = number.0, reason, %text, "the server refused a checkpoint");
        self.troubled(format_args!("the server refused checkpoint {}: {text}", number.0));
        if !Refusal::from_code(reason).is_some_and(Refusal::uses_number) {
            return;
        }
        match self.local.outbox.set_aside(number.0) {
            Ok(aside) => tracing::error!(folder = %aside.display(), "what was refused is kept there"),
            Err(error) => {
                tracing::error!(%error, "what was refused stays in the outbox");
                return;
            }
        }
        let told = self.core.lock().session.refused(number);
        self.progress.send_modify(|progress| progress.acknowledged = progress.acknowledged.max(number));
        self.drop_answered();
        if let Ok(told) = told {
            self.tell(told.tells).await;
        }
    }

    /// Checkpoints that are answered leave the outbox, all but the newest: it says where the log begins.
    pub(crate) fn drop_answered(&self) {
        let _retiring = self.local.retiring.lock();
        let answered = self.progress.borrow().acknowledged.0;
        let Ok(list) = self.local.outbox.list() else { return };
        let Some(newest) = list.last().copied() else { return };
        for number in list.into_iter().filter(|n| *n <= answered && *n < newest) {
            let unsent = self.local.outbox.open_pack(number).ok().flatten();
            match self.local.outbox.retire(number, &self.fixed.cache_dir) {
                Ok(kept) => {
                    if let Some(kept) = kept
                        && let Err(error) = self.local.cache.add_pack(&kept, PackKind::Kept)
                    {
                        tracing::warn!(%error, "own blocks are no longer cached");
                    }
                    if let Some(unsent) = unsent {
                        self.local.cache.drop_pack(unsent.path());
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, checkpoint = number, "an answered checkpoint stays in the outbox")
                }
            }
        }
        self.count_unsent();
    }

    /// Counts the bytes that the server does not have.
    pub(crate) fn count_unsent(&self) {
        let answered = self.progress.borrow().acknowledged.0;
        let list = self.local.outbox.list().unwrap_or_default();
        let bytes = list.into_iter().filter(|n| *n > answered).map(|n| {
            let pack = self.local.outbox.open_pack(n).ok().flatten().map_or(0, |pack| pack.length());
            pack + 512
        });
        self.seen.unsent_bytes.store(bytes.sum(), Ordering::Relaxed);
    }
}
