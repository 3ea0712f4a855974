//! Implements traits of hyper-util and axum for the types of this crate. No other crate could implement them.

/// Lets `hyper_util::client::legacy::Client` keep `TokioIo<TcpStream>` in its pool.
#[cfg(feature = "hyper")]
impl hyper_util::client::legacy::connect::Connection for crate::TcpStream {
    fn connected(&self) -> hyper_util::client::legacy::connect::Connected {
        hyper_util::client::legacy::connect::Connected::new()
    }
}

#[cfg(feature = "axum")]
impl axum::serve::Listener for crate::TcpListener {
    type Io = crate::TcpStream;
    type Addr = std::net::SocketAddr;

    /// Returns the next connection. Waits without end once the endpoint is closed or its device has failed;
    /// use `with_graceful_shutdown` to end the server.
    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match crate::TcpListener::accept(self).await {
            Ok(accepted) => accepted,
            Err(_) => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        Ok(crate::TcpListener::local_addr(self))
    }
}
