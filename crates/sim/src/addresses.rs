//! The addresses of the client and the server of a transaction.

use std::net::{IpAddr, Ipv4Addr};

pub(crate) const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
pub(crate) const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
pub(crate) const PORT: u16 = 80;
