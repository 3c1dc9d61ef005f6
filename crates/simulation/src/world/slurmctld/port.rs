//! slurmctld's port.

use std::{io, time::Duration};

use slurm::{
    answer::ServedConf,
    rpc::{Frame, MessageType, pack_live_conf, pack_served_files},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::{Instant, sleep},
};

use super::{ControllerPod, container::LOOK};
use crate::{
    slurm::{ControllerId, Failure, is_order, settings::MESSAGE_TIMEOUT},
    world::time::unix,
};

const PORT: u16 = 6817;
const CONNECT_AGAIN: Duration = Duration::from_secs(1);

impl ControllerPod {
    pub(super) async fn listen_port(self) {
        let listener = self.machine.network.listen(&self.machine.address, PORT);
        while let Ok(mut connection) = listener.accept().await {
            let pod = self.clone();
            self.spawn(async move {
                let answer = async {
                    let length = connection.read_u32().await?;
                    let mut request = vec![0; length.try_into().unwrap()];
                    connection.read_exact(&mut request).await?;
                    let Some(answer) = pod.answer_when_running(&request).await else {
                        return Ok(());
                    };
                    connection.write_all(&answer).await?;
                    connection.shutdown().await
                };
                let _: io::Result<()> = answer.await;
            });
        }
    }

    /// Returns `None` if no process listens. The model carries out by itself what was ordered while slurmctld was stopped, and does not
    /// answer.
    async fn answer_when_running(&self, request: &[u8]) -> Option<Vec<u8>> {
        if Frame::unpack(request).is_ok_and(|asked| is_order(&asked)) {
            let answer = self.answer(request);
            if answer.is_none() {
                self.wait_while_frozen().await;
            }
            return answer;
        }
        self.wait_while_frozen().await;
        self.answer(request)
    }

    /// A stopped slurmctld reads its socket when it goes on. Returns how long that took; clients give up at last.
    pub(super) async fn wait_while_frozen(&self) -> Duration {
        self.wait_while(Failure::NoAnswer, LOOK).await
    }

    /// A command connects every second until slurmctld listens, and gives up at last (`_open_controller` in Slurm). Returns how long
    /// that took.
    pub(super) async fn wait_while_away(&self) -> Duration {
        self.wait_while(Failure::Unreachable, CONNECT_AGAIN).await
    }

    async fn wait_while(&self, failure: Failure, interval: Duration) -> Duration {
        let begin = Instant::now();
        while self.failure() == Some(failure) && begin.elapsed() < MESSAGE_TIMEOUT {
            sleep(interval).await;
        }
        begin.elapsed()
    }

    /// Returns why slurmctld does not respond.
    fn failure(&self) -> Option<Failure> {
        let Some(id) = self.daemon() else {
            return Some(Failure::Unreachable);
        };
        self.world.slurm().state(id).err()
    }

    fn answer(&self, request: &[u8]) -> Option<Vec<u8>> {
        let container = self.container()?;
        let id = container.daemon()?;
        let asked = Frame::unpack(request).ok()?;
        let served = container.served();
        let is_up = || self.world.slurm().state(id).ok().map(|_| ());
        let (kind, body) = match asked.kind {
            MessageType::CONFIG => {
                is_up()?;
                (MessageType::RESPONSE_CONFIG, pack_served_files(&served.files).ok()?)
            }
            MessageType::BUILD_INFO => {
                is_up()?;
                let slurm = self.world.slurm();
                let conf = ServedConf {
                    boot_time: unix(slurm.booted(id)?),
                    now: unix(slurm.now()),
                    hash: served.hash.into(),
                };
                (MessageType::RESPONSE_BUILD_INFO, pack_live_conf(&conf).ok()?)
            }
            _ => match self.answer_command(id, &asked) {
                Ok(Some(response)) => response,
                Ok(None) => return Some(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()),
                Err(_) => return None,
            },
        };
        let version = asked.version;
        Frame { version, kind, body }.pack("").ok()
    }

    /// Returns the model's response, and tells what was ordered.
    fn answer_command(&self, id: ControllerId, asked: &Frame) -> Result<Option<(MessageType, Vec<u8>)>, Failure> {
        let mut slurm = self.world.slurm();
        let before = slurm.ledger.orders.len();
        let answered = slurm.rpc(id, "agent", asked);
        let order = slurm.ledger.orders.get(before).cloned();
        drop(slurm);
        if let Some(order) = order {
            self.world.tell(format!("{:?} -> {:?}", order.request, order.failure));
        }
        answered
    }
}
