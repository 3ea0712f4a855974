//! The commands of the README, pasted into a shell.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;

use crate::namespace::Namespace;
use crate::process::{run, text};

#[test]
fn the_block_of_the_gateway_pair_can_be_pasted() {
    require!("bash", "curl", "timeout");
    let readme = include_str!("../../../../README.md");
    let (_, pair) = readme.split_once("**The gateway pair**").expect("the paragraph");
    let (_, block) = pair.split_once("```sh\n").expect("its block");
    let (block, _) = block.split_once("```").expect("the end of the block");

    let namespace = Namespace::new();
    let origin = namespace.inside(|| TcpListener::bind("127.0.0.1:80")).expect("a port");
    std::thread::spawn(move || {
        for mut stream in origin.incoming().flatten() {
            std::thread::spawn(move || {
                let _ = stream.read(&mut [0; 1000]);
                let _ = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nfrom the origin\n");
            });
        }
    });
    let directory = std::env::temp_dir().join(namespace.name());
    std::fs::create_dir(&directory).expect("a directory");
    let programs = Path::new(env!("CARGO_BIN_EXE_brisk")).parent().expect("its directory").display();
    let path = format!("{programs}:{}", std::env::var("PATH").unwrap_or_default());
    let script = format!("set -eu\n{block}wait\n");
    let words = ["60", "bash", "-c", &script];
    let out = run(namespace.command("timeout").args(words).env("PATH", path).current_dir(&directory));
    std::fs::remove_dir_all(&directory).expect("it is there");
    let said = text(&out.stdout);
    for words in ["from the origin", "brisk frontend", "bytes of payload, tested in both directions"] {
        assert!(said.contains(words), "{words} is not in\n{said}\n{}", text(&out.stderr));
    }
}
