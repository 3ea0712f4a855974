//! The gRPC service over HTTP/2.
//!
//! Calls run concurrently; each call that may block has its own thread. When a client cancels a call, or its
//! connection ends, the call ends too.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;

use brisk_sockets::live::Sockets;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::TcpListener;
use tonic::body::Body;
use tonic::server::{Grpc, UnaryService};
use tonic::{Code, Status};
use tonic_prost::ProstCodec;

use crate::answer;

const MAX_BYTES: usize = 64 << 20;

/// Serves `sockets` to every client, without end. An error of one connection ends only that connection.
pub async fn serve(listener: TcpListener, sockets: Sockets) -> std::io::Error {
    loop {
        let (stream, _) = match listener.accept().await {
            Ok(accepted) => accepted,
            // The client has closed the connection again, or no descriptor is free at the moment.
            Err(error) if is_passing(&error) => {
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
                continue;
            }
            Err(error) => return error,
        };
        let sockets = sockets.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let sockets = sockets.clone();
                async move { Ok::<_, Infallible>(route(&sockets, request).await) }
            });
            let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            // Errors of a client's connection need no handling.
            let _ = http.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

fn is_passing(error: &std::io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ECONNABORTED | libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM | libc::EINTR)
    )
}

/// Calls the function that the path names.
async fn route(sockets: &Sockets, request: Request<Incoming>) -> Response<Body> {
    let path = request.uri().path().to_owned();
    macro_rules! calls {
        ($($name:literal => $call:ident),* $(,)?) => {
            match path.as_str() {
                $(concat!("/posix_server.Posix/", $name) => unary(sockets, answer::$call, request).await,)*
                _ => Status::new(Code::Unimplemented, format!("there is no call {path}")).into_http(),
            }
        };
    }
    calls! {
        "Accept" => accept,
        "Bind" => bind,
        "Close" => close,
        "Connect" => connect,
        "GetSockName" => get_sock_name,
        "GetSockOpt" => get_sock_opt,
        "Listen" => listen,
        "Poll" => poll,
        "Recv" => recv,
        "Send" => send,
        "SendTo" => send_to,
        "SetNonblocking" => set_nonblocking,
        "SetSockOpt" => set_sock_opt,
        "Shutdown" => shutdown,
        "Socket" => socket,
    }
}

async fn unary<Q, R>(
    sockets: &Sockets,
    call: fn(&Sockets, Q) -> R,
    request: Request<Incoming>,
) -> Response<Body>
where
    Q: Message + Default + 'static,
    R: Message + Default + 'static,
{
    let codec = ProstCodec::<R, Q>::default();
    let mut grpc = Grpc::new(codec).max_decoding_message_size(MAX_BYTES);
    grpc.unary(Call { sockets: sockets.clone(), call }, request).await
}

/// One of the calls, in the form that tonic needs.
struct Call<Q, R> {
    sockets: Sockets,
    call: fn(&Sockets, Q) -> R,
}

impl<Q: Send + 'static, R: Send + 'static> UnaryService<Q> for Call<Q, R> {
    type Response = R;
    type Future = Pin<Box<dyn Future<Output = Result<tonic::Response<R>, Status>> + Send>>;

    fn call(&mut self, request: tonic::Request<Q>) -> Self::Future {
        let call = self.call;
        let (sockets, hang_up) = self.sockets.for_caller();
        Box::pin(async move {
            let answer = tokio::task::spawn_blocking(move || call(&sockets, request.into_inner())).await;
            drop(hang_up);
            answer.map(tonic::Response::new).map_err(|_| Status::internal("the call panicked"))
        })
    }
}
