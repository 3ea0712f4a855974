//! A response over smoltcp's loopback.
use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::phy::{Loopback, Medium};
use smoltcp::socket::tcp::{CongestionControl, Socket, SocketBuffer};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};

fn main() {
    let mut device = Loopback::new(Medium::Ip);
    let mut interface = Interface::new(Config::new(HardwareAddress::Ip), &mut device, Instant::ZERO);
    interface.update_ip_addrs(|addresses| {
        addresses.push(IpCidr::new(IpAddress::v4(127, 0, 0, 1), 8)).expect("room for one address");
    });
    let socket = || {
        let buffer = || SocketBuffer::new(vec![0; 8192]);
        let mut socket = Socket::new(buffer(), buffer());
        socket.set_congestion_control(CongestionControl::Cubic);
        socket
    };
    let mut sockets = SocketSet::new(Vec::new());
    let (client, server) = (sockets.add(socket()), sockets.add(socket()));
    sockets.get_mut::<Socket<'_>>(server).listen(80).expect("a port");
    let to = (IpAddress::v4(127, 0, 0, 1), 80);
    sockets.get_mut::<Socket<'_>>(client).connect(interface.context(), to, 50_000).expect("a connection");
    let (mut sent, mut received, mut now) = (0, 0, Instant::ZERO);
    while received < 5000 {
        interface.poll(now, &mut device, &mut sockets);
        let server = sockets.get_mut::<Socket<'_>>(server);
        if server.may_send() && sent < 5000 {
            sent += server.send_slice(&[1; 5000][sent..]).expect("an open connection");
        }
        received += sockets.get_mut::<Socket<'_>>(client).recv_slice(&mut [0; 5000]).unwrap_or(0);
        now += interface.poll_delay(now, &sockets).unwrap_or_default();
    }
}
