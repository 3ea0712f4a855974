//! The program as a user runs it: `serve`, `get`, `frontend` and `backend` over UDP on loopback, and over a TUN in a
//! network namespace against curl and a kernel server.

mod gateway;
mod http;
mod program;
mod tun;
