//! nginx as an origin: one process, its own configuration, in a namespace.

use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;

use crate::namespace::Namespace;
use crate::pages::Pages;
use crate::process::{Process, eventually};

/// Serves `pages` on port 80 of every address of the namespace until it is dropped.
pub(crate) fn serve(namespace: &Namespace, pages: &Pages) -> Process {
    let scratch = pages.path("nginx");
    std::fs::create_dir_all(&scratch).expect("a directory for nginx");
    let (root, scratch) = (pages.directory(), scratch.display());
    let configuration = format!(
        "user root; daemon off; master_process off; worker_processes 1; pid {scratch}/pid; error_log stderr warn;
         events {{ worker_connections 4096; }}
         http {{
           access_log off; keepalive_requests 100000;
           client_body_temp_path {scratch}/body; proxy_temp_path {scratch}/proxy; fastcgi_temp_path {scratch}/fastcgi;
           uwsgi_temp_path {scratch}/uwsgi; scgi_temp_path {scratch}/scgi;
           server {{ listen 80 backlog=4096 fastopen=256; listen [::]:80 backlog=4096 fastopen=256; root {root}; }}
         }}"
    );
    let file = pages.path("nginx.conf");
    std::fs::write(&file, configuration).expect("the configuration can be written");
    let mut command = namespace.command("nginx");
    command.args(["-e", "stderr", "-c"]).arg(&file).stdout(Stdio::null());
    let nginx = Process::start("nginx", &mut command);
    let address = SocketAddr::from(([127, 0, 0, 1], 80));
    eventually("nginx listens", || namespace.inside(|| TcpStream::connect(address)).ok());
    nginx
}
