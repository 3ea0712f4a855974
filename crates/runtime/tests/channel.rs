//! Endpoints on channels of packets: a tunnel between two endpoints, a channel that is not read, and one that
//! breaks.

use std::io;
use std::time::Duration;

use brisk_device::{Device, TxMeta};
use brisk_runtime::channel::{ChannelDevice, ChannelOptions};
use brisk_runtime::{Endpoint, TcpListener};
use brisk_wire::{ChecksumCheck, ChecksumFill, Flags, IpMeta, Packet, TcpHeader};
use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc::{Receiver, Sender};
use tokio::time::timeout;

const LIMIT: Duration = Duration::from_secs(30);
const MTU: usize = 1300;

fn endpoint(queue: usize, address: &str) -> (Endpoint, Sender<Bytes>, Receiver<Bytes>) {
    let (device, to_stack, from_stack) = ChannelDevice::new(ChannelOptions { mtu: MTU, queue });
    let address = address.parse().unwrap();
    (Endpoint::builder(Box::new(device)).address(address).seed(1).build().unwrap(), to_stack, from_stack)
}

/// Carries packets in one direction, as a tunnel would.
fn carry(mut from: Receiver<Bytes>, to: Sender<Bytes>) {
    tokio::spawn(async move {
        while let Some(packet) = from.recv().await {
            assert!(packet.len() <= MTU, "a packet of {} bytes", packet.len());
            assert!(matches!(brisk_wire::parse(&packet, ChecksumCheck::Verify), Ok(Packet::Tcp(_))));
            if to.send(packet).await.is_err() {
                return;
            }
        }
    });
}

#[tokio::test]
async fn a_tunnel_of_short_queues_carries_data_both_ways_without_loss() {
    let (client, to_client, from_client) = endpoint(4, "10.0.0.1");
    let (server, to_server, from_server) = endpoint(4, "10.0.0.2");
    carry(from_client, to_server);
    carry(from_server, to_client);
    let listener = TcpListener::bind(&server, "10.0.0.2:80".parse().unwrap()).unwrap();
    let echo = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let (mut read, mut write) = stream.into_split();
        tokio::io::copy(&mut read, &mut write).await.unwrap()
    });
    let sent: Vec<u8> = (0..2_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let stream = client.connect("10.0.0.2:80".parse().unwrap()).await.unwrap();
    let handle = stream.handle();
    let (mut read, mut write) = stream.into_split();
    let mut received = Vec::new();
    let writing = async {
        write.write_all(&sent).await.unwrap();
        write.shutdown().await.unwrap();
    };
    let both = async { tokio::join!(writing, read.read_to_end(&mut received)).1 };
    timeout(LIMIT, both).await.unwrap().unwrap();
    assert!(received == sent);
    assert_eq!(echo.await.unwrap(), 2_000_000);
    let counters = handle.stats().unwrap().counters;
    assert_eq!(counters.retransmitted_bytes, 0, "{counters:?}");
}

#[tokio::test]
async fn unread_packets_block_the_writer() {
    let (client, to_client, mut from_client) = endpoint(8, "10.0.0.1");
    let (server, to_server, from_server) = endpoint(8, "10.0.0.2");
    carry(from_server, to_client);
    let listener = TcpListener::bind(&server, "10.0.0.2:80".parse().unwrap()).unwrap();
    let reader = tokio::spawn(async move {
        let mut received = Vec::new();
        listener.accept().await.unwrap().0.read_to_end(&mut received).await.unwrap();
        received.len()
    });
    let connecting = tokio::spawn(async move { client.connect("10.0.0.2:80".parse().unwrap()).await });
    to_server.send(from_client.recv().await.unwrap()).await.unwrap();
    let mut stream = timeout(LIMIT, connecting).await.unwrap().unwrap().unwrap();
    let writer = tokio::spawn(async move {
        stream.write_all(&vec![7; 8 << 20]).await.unwrap();
        stream.shutdown().await.unwrap();
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(from_client.len() <= 8 && !writer.is_finished(), "{} packets wait", from_client.len());
    carry(from_client, to_server);
    assert_eq!(timeout(LIMIT, reader).await.unwrap().unwrap(), 8 << 20);
    writer.await.unwrap();
}

#[tokio::test]
async fn streams_fail_when_the_program_drops_an_end_of_the_channel() {
    for drops_sender in [true, false] {
        let (client, to_client, mut from_client) = endpoint(8, "10.0.0.1");
        let connecting = tokio::spawn(async move { client.connect("10.0.0.2:80".parse().unwrap()).await });
        from_client.recv().await.unwrap();
        let _kept: Box<dyn Send> = if drops_sender {
            drop(to_client);
            Box::new(from_client)
        } else {
            drop(from_client);
            Box::new(to_client)
        };
        let error = timeout(LIMIT, connecting).await.unwrap().unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe, "{error}");
    }
}

#[tokio::test]
async fn segments_of_a_long_packet_leave_in_order_as_space_appears() {
    let (mut device, _to_stack, mut from_stack) = ChannelDevice::new(ChannelOptions { mtu: MTU, queue: 2 });
    let ends = IpMeta::new("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
    let header = TcpHeader { src_port: 1, dst_port: 2, flags: Flags::ACK, ..TcpHeader::default() };
    let mut packet = Vec::new();
    brisk_wire::emit(&ends, &header, &[&[1; 3000]], ChecksumFill::Partial, &mut packet).unwrap();
    let tx = TxMeta { segment_size: Some(1000), partial_checksum: true, ..TxMeta::default() };
    device.send(&packet, tx).unwrap();
    assert_eq!(device.send(&packet, tx).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    assert_eq!(device.flush().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    let mut sizes = Vec::new();
    while sizes.len() < 3 {
        let segment = from_stack.recv().await.unwrap();
        assert!(brisk_wire::parse(&segment, ChecksumCheck::Verify).is_ok());
        sizes.push(segment.len());
        std::future::poll_fn(|cx| device.poll_writable(cx)).await.unwrap();
        device.flush().unwrap();
    }
    assert_eq!(sizes, [1040; 3]);
    assert!(from_stack.try_recv().is_err());
    device.send(&packet, tx).unwrap();
    assert_eq!(from_stack.len(), 2, "the third one waits");
}
