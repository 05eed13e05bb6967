//! Router: what clients can call. **Services are added here, and nowhere else.**

use crate::failure::{Failure, Result};
use chiplog::ErrorKind;
use chiplog_net::admin::AdminService;
use chiplog_net::follow::Follow;
use chiplog_net::host::Host;
use chiplog_net::logspec::{Limits, LogspecService};
use chiplog_net::native::Native;
use chiplog_net::proto::DESCRIPTORS;
use chiplog_net::proto::v1::admin_server::AdminServer;
use std::sync::Arc;
use tonic::service::Routes;
use tonic_health::server::HealthReporter;

/// The names under which the health service knows the log's services; "" is the server as a whole.
pub(super) const HEALTH_NAMES: &[&str] = &["", "logspec.Log", "chiplog.v1.Log", "chiplog.v1.Follow"];
/// Those of a copy that follows.
pub(super) const COPY_HEALTH_NAMES: &[&str] = &["", "chiplog.v1.Log", "chiplog.v1.Follow"];

/// All services of the listener for clients.
pub(super) fn routes(host: &Arc<Host>, admin: AdminServer<AdminService>) -> Result<(Routes, HealthReporter)> {
    let (routes, reporter) = common_routes()?;
    Ok((log_services(routes.add_service(admin), host), reporter))
}

/// The services of a copy that follows: it is read, and feeds others.
pub(super) fn copy_routes(host: &Arc<Host>) -> Result<(Routes, HealthReporter)> {
    let (routes, reporter) = common_routes()?;
    Ok((native_services(routes, host), reporter))
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

/// The services of the log itself.
fn log_services(routes: Routes, host: &Arc<Host>) -> Routes {
    let logspec = LogspecService::new(host.clone(), Limits::default()).into_server();
    native_services(routes.add_service(logspec), host)
}

fn native_services(routes: Routes, host: &Arc<Host>) -> Routes {
    routes
        .add_service(Native::new(host.clone()).into_service())
        .add_service(Follow::new(host.clone()).into_service())
}
