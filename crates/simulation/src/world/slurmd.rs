//! slurmd's port, where the agent asks a node to register.

use std::io;

use host::Connection;
use slurm::rpc::{Frame, MessageType};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::sleep,
};

use super::{World, machine::Simulated};
use crate::slurm::{
    HostId,
    settings::{FROZEN_POLL, SLURMD_PORT},
};

impl World {
    pub(super) fn listen_slurmd(&self, machine: &Simulated, host: HostId) {
        let listener = self.network.listen(&machine.address, SLURMD_PORT);
        let world = self.clone();
        tokio::spawn(async move {
            while let Ok(connection) = listener.accept().await {
                let world = world.clone();
                tokio::spawn(async move {
                    let _: io::Result<()> = world.answer_as_slurmd(connection, host).await;
                });
            }
        });
    }

    async fn answer_as_slurmd(&self, mut connection: Connection, host: HostId) -> io::Result<()> {
        let length = connection.read_u32().await?;
        let mut request = vec![0; length.try_into().unwrap()];
        connection.read_exact(&mut request).await?;
        let asked = Frame::unpack(&request).map_err(|_| io::ErrorKind::InvalidData)?;
        // A stopped process reads it when it goes on.
        while self.slurm().host(host).frozen.is_some() {
            sleep(FROZEN_POLL).await;
        }
        if asked.kind != MessageType::NODE_REGISTRATION_STATUS || !self.slurm().request_registration(host) {
            return Ok(());
        }
        let response = Frame {
            version: asked.version,
            kind: MessageType::RESPONSE_PING,
            body: vec![0; 4],
        };
        let packed = response.pack("").map_err(|_| io::ErrorKind::InvalidData)?;
        connection.write_all(&packed).await?;
        connection.shutdown().await
    }
}
