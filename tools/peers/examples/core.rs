//! A response between two stacks of brisk's core.
use brisk_tcp::stack::Rx;
use brisk_tcp::time::{Duration, Instant};
use brisk_tcp::{ConnectConfig, ListenConfig, Stack, StackConfig};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let at = |address: &str| -> Result<_, std::net::AddrParseError> {
        Ok(StackConfig { addresses: vec![address.parse()?], ..StackConfig::default() })
    };
    let mut client = Stack::new(at("10.0.0.1")?, 1)?;
    let mut server = Stack::new(at("10.0.0.2")?, 2)?;
    let listener = server.listen("10.0.0.2:80".parse()?, ListenConfig::default())?;
    let connection = client.connect("10.0.0.2:80".parse()?, &ConnectConfig::default(), Instant::ZERO)?;
    let (mut now, mut packet, mut received) = (Instant::ZERO, Vec::new(), 0);
    while received < 5000 {
        while client.poll_transmit(now, &mut packet).is_some() {
            server.on_packet(&packet, Rx::default(), now);
        }
        if let Some((accepted, _)) = server.accept(listener) {
            server.write(accepted, &[1; 5000], now)?;
        }
        while server.poll_transmit(now, &mut packet).is_some() {
            client.on_packet(&packet, Rx::default(), now);
        }
        received += client.read(connection, &mut [0; 5000], now).unwrap_or(0);
        now += Duration::from_millis(10);
    }
    Ok(())
}
