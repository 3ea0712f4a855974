//! The program as a user runs it: `serve`, `get`, `frontend` and `backend` over UDP on loopback, and over a
//! TUN in a network namespace against curl and a kernel server.

mod cookie_keys;
mod gateway;
mod http;
mod operation;
mod private;
mod program;
mod tls;
mod tun;
