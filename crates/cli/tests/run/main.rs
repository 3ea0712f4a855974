//! The program from the command line: `serve`, `get`, `frontend` and `backend` over UDP on loopback, and over
//! a TUN in a network namespace with curl and a kernel server.

mod cookie_keys;
mod gateway;
mod http;
mod operation;
mod private;
mod program;
mod tls;
mod tun;
