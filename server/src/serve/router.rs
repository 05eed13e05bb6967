//! Router: what clients can call. **Services are added here, and nowhere else.**

use crate::failure::{Failure, Result};
use chiplog::{ErrorKind, Options};
use chiplog_net::admin::AdminService;
use chiplog_net::follow::Follow;
use chiplog_net::host::Host;
use chiplog_net::logspec::{Limits, LogspecService};
use chiplog_net::native::{Native, NativeOptions};
use chiplog_net::proto::DESCRIPTORS;
use chiplog_net::proto::v1::admin_server::AdminServer;
use std::sync::Arc;
use tonic::service::Routes;
use tonic_health::server::HealthReporter;

/// What a message takes besides what it carries, generously.
const FRAME_BYTES: usize = 1 << 20;

/// The names under which the health service knows the log's services; "" is the server as a whole.
pub(super) const HEALTH_NAMES: &[&str] = &["", "logspec.Log", "chiplog.v1.Log", "chiplog.v1.Follow"];
/// Those of a copy that follows.
pub(super) const COPY_HEALTH_NAMES: &[&str] = &["", "chiplog.v1.Log", "chiplog.v1.Follow"];

/// All services of the listener for clients. They take whatever the log's options allow.
pub(super) fn routes(
    host: &Arc<Host>,
    admin: AdminServer<AdminService>,
    options: &Options,
) -> Result<(Routes, HealthReporter)> {
    let (routes, reporter) = common_routes()?;
    let (mut limits, mut native) = (Limits::default(), NativeOptions::default());
    limits.message_bytes_max = limits.message_bytes_max.max(options.record_bytes_max as usize + FRAME_BYTES);
    native.message_bytes_max = options.batch_bytes_max as usize + FRAME_BYTES;
    let logspec = LogspecService::new(host.clone(), limits).into_server();
    let routes = routes.add_service(admin).add_service(logspec);
    Ok((native_services(routes, host, native), reporter))
}

/// The services of a copy that follows: it is read, and feeds others.
pub(super) fn copy_routes(host: &Arc<Host>) -> Result<(Routes, HealthReporter)> {
    let (routes, reporter) = common_routes()?;
    Ok((native_services(routes, host, NativeOptions::default()), reporter))
}

/// What has nothing to do with a log.
fn common_routes() -> Result<(Routes, HealthReporter)> {
    let (reporter, health) = tonic_health::server::health_reporter();
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let broken =
        |e: tonic_reflection::server::Error| Failure::new(ErrorKind::Corrupt, format!("reflection: {e}"));
    let routes = Routes::new(health)
        .add_service(reflection().build_v1().map_err(broken)?)
        .add_service(reflection().build_v1alpha().map_err(broken)?);
    Ok((routes, reporter))
}

fn native_services(routes: Routes, host: &Arc<Host>, options: NativeOptions) -> Routes {
    routes
        .add_service(Native::with(host.clone(), options).into_service())
        .add_service(Follow::new(host.clone()).into_service())
}
