/// Starts a log and its server, for examples. Returns its directory, which must be kept, and its address.
pub async fn serve() -> Result<(tempfile::TempDir, String), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let host = chiplog_net::served::log_slot::LogSlot::new();
    host.open(chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20))?);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    let follow = chiplog_net::service::follow::Follow::new(host.clone()).into_service();
    let service = chiplog_net::service::log::LogService::new(host).into_service();
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    let server = tonic::transport::Server::builder().add_service(service).add_service(follow);
    tokio::spawn(server.serve_with_incoming(incoming));
    Ok((dir, address))
}
