//! Making, listing, showing and deleting drives.

use super::{Services, status};
use crate::store::DriveRecord;
use tidefs_proto::wire::{self, drives_server::Drives};
use tonic::{Request, Response, Status};

impl Services {
    /// What is said of a drive. One that cannot be opened is listed with what is known without opening it.
    async fn info(&self, record: DriveRecord) -> Result<wire::DriveInfo, Status> {
        let drive = self.drives.named(&record.name).await.map_err(status::drives)?;
        let position = drive.head.read().position();
        Ok(wire::DriveInfo {
            followers: drive.followers.count() as u32,
            sessions: drive.followers.sessions().len() as u32,
            position: position.0,
            ..known(record)
        })
    }
}

fn known(record: DriveRecord) -> wire::DriveInfo {
    wire::DriveInfo {
        name: record.name,
        drive_id: record.drive_id.to_vec().into(),
        history: record.history_id.to_vec().into(),
        created_unix_us: record.created_unix_ms.saturating_mul(1000),
        ..wire::DriveInfo::default()
    }
}

#[tonic::async_trait]
impl Drives for Services {
    async fn create(
        &self,
        request: Request<wire::CreateDriveRequest>,
    ) -> Result<Response<wire::DriveInfo>, Status> {
        let request = request.into_inner();
        let drives = self.drives.clone();
        let create = move || drives.create(&request.name, request.exist_ok);
        let made = tokio::task::spawn_blocking(create).await;
        let record = made.map_err(|_| Status::unavailable("the server is stopping"))?;
        let record = record.map_err(status::drives)?;
        tracing::info!(drive = record.name, "drive created");
        self.info(record).await.map(Response::new)
    }

    async fn list(
        &self,
        _request: Request<wire::ListDrivesRequest>,
    ) -> Result<Response<wire::ListDrivesReply>, Status> {
        let mut drives = Vec::new();
        for record in self.drives.list() {
            drives.push(self.info(record.clone()).await.unwrap_or_else(|_| known(record)));
        }
        Ok(Response::new(wire::ListDrivesReply { drives }))
    }

    async fn show(
        &self,
        request: Request<wire::ShowDriveRequest>,
    ) -> Result<Response<wire::DriveInfo>, Status> {
        let name = request.into_inner().name;
        self.drives.named(&name).await.map_err(status::drives)?;
        let record = self.drives.list().into_iter().find(|record| record.name == name);
        let record = record.ok_or_else(|| Status::not_found(format!("there is no drive {name}")))?;
        self.info(record).await.map(Response::new)
    }

    async fn delete(
        &self,
        request: Request<wire::DeleteDriveRequest>,
    ) -> Result<Response<wire::DeleteDriveReply>, Status> {
        let name = request.into_inner().name;
        self.drives.delete(&name).await.map_err(status::drives)?;
        tracing::info!(drive = name, "drive deleted");
        Ok(Response::new(wire::DeleteDriveReply {}))
    }
}
