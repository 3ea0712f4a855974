//! The part of `run` that becomes the command: it creates the namespaces, passes the sockets to the frontend
//! and executes the command.

use std::ffi::OsString;
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use brisk_packet_io::interface::Interface;
use brisk_packet_io::netns::enter_private;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::failure::Failure;

/// Source address of the command's connections; it is not visible outside.
const OWN: Ipv4Addr = Ipv4Addr::new(10, 255, 255, 254);
/// Exit status for a command that cannot run, as in a shell.
const CANNOT_RUN: u8 = 127;

/// Becomes the command. Returns only if that fails.
pub(super) fn run(outside: &Path, command: &[OsString]) -> Result<(), Failure> {
    let mut outside = UnixStream::connect(outside)?;
    enter_private().map_err(|error| {
        Failure::failed(format!(
            "{error}; if the system forbids it, `brisk rules --user` prints rules for the host"
        ))
    })?;
    let (listener, names) = network()?;
    redirect(listener.local_addr()?.port(), names.local_addr()?.port())?;
    hand_out(&outside, &listener, &names)?;
    drop((listener, names));
    // Waits until the frontend outside is ready, or has failed and reported the reason.
    if outside.read_exact(&mut [0]).is_err() {
        return Err(Failure { message: "the command was not started".to_owned(), code: 1, about: None });
    }
    let (program, arguments) =
        command.split_first().ok_or_else(|| Failure::usage("run needs a command after --"))?;
    let error = Command::new(program).args(arguments).exec();
    Err(Failure { message: format!("{}: {error}", program.display()), code: CANNOT_RUN, about: None })
}

/// Creates routes into the firewall, and the sockets to which it redirects.
fn network() -> Result<(TcpListener, UdpSocket), Failure> {
    let lo = Interface::named("lo").map_err(Failure::failed)?;
    lo.add_address(OWN.into(), 32).map_err(Failure::failed)?;
    lo.add_route(IpAddr::from(Ipv4Addr::UNSPECIFIED), 0, None).map_err(Failure::failed)?;
    // A kernel without IPv6 needs no route for it.
    let _ = lo.add_route(IpAddr::from(Ipv6Addr::UNSPECIFIED), 0, None);
    let any = |port| (IpAddr::from(Ipv6Addr::UNSPECIFIED), port);
    let (listener, names) = match TcpListener::bind(any(0)) {
        Ok(listener) => (listener, UdpSocket::bind(any(0))?),
        Err(_) => (TcpListener::bind((OWN, 0))?, UdpSocket::bind((OWN, 0))?),
    };
    Ok((listener, names))
}

/// The rules: TCP and look-ups of names that leave the namespace go to the two sockets; other UDP is refused.
fn rules(tcp: u16, names: u16) -> String {
    format!(
        "table inet brisk {{\n  chain output {{\n    type nat hook output priority -100;\n    \
         udp dport 53 redirect to :{names}\n    fib daddr type local accept\n    \
         meta l4proto tcp redirect to :{tcp}\n  }}\n  chain filter {{\n    \
         type filter hook output priority filter;\n    fib daddr type local accept\n    \
         meta l4proto udp reject\n  }}\n}}\n"
    )
}

fn redirect(tcp: u16, names: u16) -> Result<(), Failure> {
    inherit(CapabilitySet::NET_ADMIN)?;
    let nft = |program: &str| {
        let mut command = Command::new(program);
        command.args(["-f", "-"]).stdin(Stdio::piped()).spawn()
    };
    let mut nft = nft("nft").or_else(|_| nft("/usr/sbin/nft")).map_err(|error| {
        Failure::failed(format!("nft: {error}; install nftables, which `brisk run` needs"))
    })?;
    if let Some(mut stdin) = nft.stdin.take() {
        stdin.write_all(rules(tcp, names).as_bytes())?;
    }
    let done = nft.wait()?;
    inherit(CapabilitySet::empty())?;
    match done.success() {
        true => Ok(()),
        false => Err(Failure::failed("nft cannot create the rules of the namespace; see above")),
    }
}

/// Sets the capabilities that an executed program inherits in the namespace. The command gets none.
fn inherit(capabilities: CapabilitySet) -> Result<(), Failure> {
    let failed = |error: rustix::io::Errno| Failure::failed(format!("capabilities: {error}"));
    rustix::thread::clear_ambient_capability_set().map_err(failed)?;
    let held = rustix::thread::capabilities(None).map_err(failed)?;
    let sets = CapabilitySets { inheritable: capabilities, ..held };
    rustix::thread::set_capabilities(None, sets).map_err(failed)?;
    for capability in capabilities.iter() {
        rustix::thread::configure_capability_in_ambient_set(capability, true).map_err(failed)?;
    }
    Ok(())
}

fn hand_out(outside: &UnixStream, listener: &TcpListener, names: &UdpSocket) -> Result<(), Failure> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let sockets = [listener.as_fd(), names.as_fd()];
    ancillary.push(SendAncillaryMessage::ScmRights(&sockets));
    sendmsg(outside, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::empty())
        .map_err(std::io::Error::from)?;
    Ok(())
}
