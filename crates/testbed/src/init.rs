//! pid 1 of the namespaces: sets up mounts and network, then reaps processes until it is killed.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::mount::{MsFlags, mount};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use crate::command;
use crate::network;

/// pid 1 of the machine: the network of all nodes, the volumes that they share, and access from the host.
///
/// Standard input is a socket that listens on the *host's* loopback. It stays in the network namespace it was made in,
/// so that this process accepts connections there and forwards them to the API server in here; no packet crosses.
pub fn machine(volumes: &Path, ready: &Path) -> Result<()> {
    let listener = TcpListener::from(io::stdin().as_fd().try_clone_to_owned()?);
    fs::create_dir_all(volumes)?;
    // Shared: a volume that gets a filesystem of its own later appears in the nodes, which are slaves of this mount.
    bind(volumes, volumes)?;
    mount(None::<&str>, volumes, None::<&str>, MsFlags::MS_SHARED, None::<&str>)?;
    ip_batch(&network::machine_setup())?;
    fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
    fs::write(ready, "")?;
    thread::spawn(move || pass_on(&listener));
    reap_forever()
}

/// pid 1 of a node. The content of `folder` survives a restart of the node.
pub fn node(name: &str, index: u8, folder: &Path, ready: &Path) -> Result<()> {
    nix::unistd::sethostname(name)?;
    mount(Some("tmpfs"), "/run", Some("tmpfs"), MsFlags::empty(), Some("mode=755"))?;
    for own in ["lib", "log"] {
        let inside = folder.join(own);
        fs::create_dir_all(&inside)?;
        bind(&inside, &Path::new("/var").join(own))?;
    }
    hide_machine_wide_sysctls()?;
    // The kubelet passes mounts on to containers and takes them back.
    mount(
        None::<&str>,
        "/",
        None::<&str>,
        MsFlags::MS_REC | MsFlags::MS_SHARED,
        None::<&str>,
    )?;
    wait_for_cable()?;
    ip_batch(&format!("link set lo up\n{}", network::node_setup(index)))?;
    fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
    fs::write(ready, "")?;
    reap_forever()
}

/// pid 1 of a machine outside Kubernetes, whose root is a layer of an image (`lower`) under what it writes itself (`folder`).
pub fn outside(name: &str, index: u8, lower: &Path, folder: &Path) -> Result<()> {
    nix::unistd::sethostname(name)?;
    wait_for_cable()?;
    ip_batch(&format!("link set lo up\n{}", network::outside_setup(index)))?;
    let [upper, work, root] = ["upper", "work", "root"].map(|part| folder.join(part));
    for part in [&upper, &work, &root] {
        fs::create_dir_all(part)?;
    }
    let layers = format!(
        "lowerdir={},upperdir={},workdir={}",
        lower.display(),
        upper.display(),
        work.display()
    );
    mount(
        Some("overlay"),
        &root,
        Some("overlay"),
        MsFlags::empty(),
        Some(layers.as_str()),
    )
    .with_context(|| format!("cannot mount {layers}"))?;
    for shared in ["dev", "sys"] {
        let inside = root.join(shared);
        fs::create_dir_all(&inside)?;
        let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
        mount(
            Some(&Path::new("/").join(shared)),
            &inside,
            None::<&str>,
            flags,
            None::<&str>,
        )?;
    }
    mount(
        Some("proc"),
        &root.join("proc"),
        Some("proc"),
        MsFlags::empty(),
        None::<&str>,
    )?;
    let run = root.join("run");
    mount(Some("tmpfs"), &run, Some("tmpfs"), MsFlags::empty(), Some("mode=755"))?;
    // Processes that enter the namespaces see this root; the old one is not visible.
    nix::unistd::pivot_root(&root, &root.join("mnt"))?;
    nix::mount::umount2("/mnt", nix::mount::MntFlags::MNT_DETACH)?;
    std::env::set_current_dir("/")?;
    fs::write("/run/ready", "")?;
    reap_forever()
}

/// pid 1 of namespaces that only need their own /run.
pub fn scratch() -> Result<()> {
    mount(Some("tmpfs"), "/run", Some("tmpfs"), MsFlags::empty(), Some("mode=755"))?;
    fs::write("/run/ready", "")?;
    reap_forever()
}

/// The kubelet would set these for the whole host (and make it panic on an oops). It sees files that have its values
/// already, and writes nothing.
fn hide_machine_wide_sysctls() -> Result<()> {
    let wanted = [
        ("vm/overcommit_memory", "1"),
        ("vm/panic_on_oom", "0"),
        ("kernel/panic", "10"),
        ("kernel/panic_on_oops", "1"),
        ("kernel/keys/root_maxkeys", "1000000"),
        ("kernel/keys/root_maxbytes", "25000000"),
    ];
    for (name, value) in wanted {
        let stand_in = PathBuf::from("/run/sysctl").join(name.replace('/', "."));
        crate::paths::write(&stand_in, format!("{value}\n"))?;
        bind(&stand_in, &Path::new("/proc/sys").join(name))?;
    }
    Ok(())
}

fn bind(source: &Path, target: &Path) -> Result<()> {
    mount(Some(source), target, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .with_context(|| format!("cannot mount {} on {}", source.display(), target.display()))
}

fn ip_batch(lines: &str) -> Result<()> {
    command::output_with_input(Command::new("ip").args(["-batch", "-"]), lines).map(drop)
}

fn wait_for_cable() -> Result<()> {
    // /sys still shows the host's network here, so netlink is used.
    let deadline = Instant::now() + Duration::from_secs(10);
    while command::output(Command::new("ip").args(["link", "show", "eth0"])).is_err() {
        if Instant::now() > deadline {
            bail!("eth0 did not appear");
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn reap_forever() -> Result<()> {
    loop {
        // Orphaned processes become our children. Without a child there is nothing to wait for.
        if waitpid(Pid::from_raw(-1), None).is_err() {
            thread::sleep(Duration::from_secs(1));
        }
    }
}

fn pass_on(listener: &TcpListener) {
    for client in listener.incoming().flatten() {
        thread::spawn(move || {
            // While the API server is down, the connection of a client is closed, as without this proxy.
            if let Ok(server) = TcpStream::connect((network::CONTROL_PLANE, network::API_PORT)) {
                let _ = join(&client, &server);
            }
        });
    }
}

fn join(client: &TcpStream, server: &TcpStream) -> io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
    let upstream = thread::spawn(move || copy(&mut from_client, &mut to_server));
    copy(&mut server.try_clone()?, &mut client.try_clone()?);
    let _ = upstream.join();
    Ok(())
}

/// Copies until either side closes, then closes both: HTTP never half-closes.
fn copy(from: &mut TcpStream, to: &mut TcpStream) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count) = from.read(&mut buffer) {
        let Some(bytes) = buffer.get(..count).filter(|bytes| !bytes.is_empty()) else {
            break;
        };
        if to.write_all(bytes).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
