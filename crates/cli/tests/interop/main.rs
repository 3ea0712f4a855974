//! Our stack against the kernel's TCP, curl, nginx and tshark, in network namespaces of its own.
//!
//! | module | participants |
//! |---|---|
//! | `kernel` | curl to nginx, to prove that the test environment works |
//! | `bench` | `brisk bench`: both TCPs at both ends, in turns |
//! | `serve` | kernel clients to `brisk serve` over a TUN |
//! | `get` | `brisk get` and the library to nginx and to kernel sockets over a TUN |
//! | `wire` | both roles over a captured link, checked by tshark |
//! | `peers` | both roles and kernels with parts of TCP switched off |
//! | `unaware` | both roles with Corrective, to curl and nginx, which do not support it |
//! | `stalls` | both roles, with readers that stop reading and paths that stop carrying packets |
//! | `fast_open` | Fast Open in both roles, and cookies of the kernel and ours with one key |
//! | `farm` | a kernel client, and a kernel and `brisk serve` behind one address during a key rotation |
//! | `mtu` | `brisk serve` to curl, and `brisk doctor`, over a path with a smaller MTU than at both ends |
//! | `lossy` | both roles over a link that loses, reorders and delays |
//! | `gateway` | curl, frontend, lossy link, backend, nginx |
//! | `moves` | the gateway pair while addresses change |
//! | `readme` | the commands of the README for a gateway pair, as they are pasted |
//! | `packet` | both roles on the host's own addresses; the gateway pair where UDP is blocked |
//! | `edge` | kernel clients, `brisk edge` on the host's own address, nginx |
//! | `clients` | kernel clients, a frontend on the host's own address, lossy hop, backend, nginx |
//! | `xdp` | both roles on the host's own addresses through AF_XDP, next to the kernel's services |
//!
//! Needs root, or `unshare -Urnm sh -c 'mount -t tmpfs tmpfs /run && cargo test -p brisk --test interop'`. A
//! test without a necessary right or program prints `SKIPPED` and passes. `BRISK_INTEROP_SCALE=full` runs the
//! same tests with the sizes of an acceptance test (gigabytes and thousands of connections, best with
//! `--release`).

#[macro_use]
mod machine;

mod bench;
mod capture;
mod clients;
mod edge;
mod farm;
mod fast_open;
mod gateway;
mod get;
mod kernel;
mod link;
mod lossy;
mod moves;
mod mtu;
mod namespace;
mod nginx;
mod packet;
mod pages;
mod peers;
mod process;
mod readme;
mod scale;
mod serve;
mod stalls;
mod unaware;
mod wire;
mod xdp;
