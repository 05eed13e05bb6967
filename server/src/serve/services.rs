//! The services that clients can call. **Services are added here, and nowhere else.** The roles that their
//! methods need are in [`chiplog_net::listener::auth::roles::METHODS`].

use crate::common::failure::{Failure, Result};
use chiplog::ErrorKind;
use chiplog_net::listener::memory_budget::Budget;
use chiplog_net::served::log_slot::LogSlot;
use chiplog_net::service::admin::AdminService;
use chiplog_net::service::follow::Follow;
use chiplog_net::service::http_objects::HttpObjects;
use chiplog_net::service::log::{LogService, NativeOptions};
use chiplog_net::service::logspec::{Limits, LogspecService};
use chiplog_net::wire::proto::DESCRIPTORS;
use chiplog_net::wire::proto::v1::admin_server::AdminServer;
use std::sync::Arc;
use tonic::service::Routes;
use tonic_health::server::HealthReporter;

/// The names of the log's services in the health service; "" is the server as a whole.
pub(super) const HEALTH_NAMES: &[&str] = &["", "logspec.Log", "chiplog.v1.Log", "chiplog.v1.Follow"];
/// The names for a follower's copy.
pub(super) const COPY_HEALTH_NAMES: &[&str] = &["", "chiplog.v1.Log", "chiplog.v1.Follow"];

/// The services that reflection shows: exactly those of the listener. The descriptors contain others.
const NAMES: &[&str] = &[
    "chiplog.v1.Admin",
    "chiplog.v1.Follow",
    "chiplog.v1.Log",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
    "logspec.Log",
];
/// The services that reflection shows for a follower's copy.
const COPY_NAMES: &[&str] = &[
    "chiplog.v1.Follow",
    "chiplog.v1.Log",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
];

/// The largest request of the services that do not use the log.
const SMALL_BYTES: usize = 64 << 10;

/// The limits of the services.
pub(super) struct Room {
    pub(super) message_bytes_max: usize,
    pub(super) budget: Budget,
}

/// All services of the listener for clients.
pub(super) fn routes(
    host: &Arc<LogSlot>,
    admin: AdminServer<AdminService>,
    room: &Room,
) -> Result<(Routes, HealthReporter)> {
    let (routes, reporter) = common_routes(&room.budget, NAMES)?;
    let (message_bytes_max, budget) = (room.message_bytes_max, room.budget.clone());
    let limits = Limits::default().message_bytes_max(message_bytes_max).budget(budget.clone());
    let admin = budget.over(admin, message_bytes_max);
    let mut options = NativeOptions::default();
    (options.message_bytes_max, options.budget) = (message_bytes_max, budget);
    let logspec = LogspecService::new(host.clone(), limits).into_server();
    let routes = routes.add_service(admin).add_service(logspec);
    Ok((native_services(routes, host, options), reporter))
}

/// The services of a follower's copy: for readers and for other copies.
pub(super) fn copy_routes(host: &Arc<LogSlot>, budget: &Budget) -> Result<(Routes, HealthReporter)> {
    let (routes, reporter) = common_routes(budget, COPY_NAMES)?;
    let mut options = NativeOptions::default();
    options.budget = budget.clone();
    Ok((native_services(routes, host, options), reporter))
}

/// The services that do not use the log. They are within the budget as well, with small requests and a time
/// limit.
fn common_routes(budget: &Budget, names: &[&str]) -> Result<(Routes, HealthReporter)> {
    let (reporter, health) = tonic_health::server::health_reporter();
    let reflection = || {
        let builder = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET);
        names.iter().fold(builder, |builder, name| builder.with_service_name(*name))
    };
    let broken =
        |e: tonic_reflection::server::Error| Failure::new(ErrorKind::Corrupt, format!("reflection: {e}"));
    let routes = Routes::new(budget.over(health, SMALL_BYTES))
        .add_service(budget.over(reflection().build_v1().map_err(broken)?, SMALL_BYTES))
        .add_service(budget.over(reflection().build_v1alpha().map_err(broken)?, SMALL_BYTES));
    Ok((routes, reporter))
}

fn native_services(routes: Routes, host: &Arc<LogSlot>, options: NativeOptions) -> Routes {
    routes
        .add_service(LogService::with(host.clone(), options).into_service())
        .add_service(Follow::new(host.clone()).into_service())
        .add_service(HttpObjects::new(host.clone()))
}

#[cfg(test)]
mod tests {
    use chiplog_net::listener::auth::roles::METHODS;
    use prost::Message as _;
    use std::collections::BTreeSet;

    /// Every method in the reflection, and of the reflection itself, has a role, and no other method has one.
    #[test]
    fn every_served_method_has_a_role() {
        let mut served = BTreeSet::new();
        for bytes in [
            chiplog_net::wire::proto::DESCRIPTORS,
            tonic_health::pb::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
        ] {
            for file in prost_types::FileDescriptorSet::decode(bytes).unwrap().file {
                for service in &file.service {
                    let name = |method: &str| format!("/{}.{}/{method}", file.package(), service.name());
                    served.extend(service.method.iter().map(|m| name(m.name())));
                }
            }
        }
        for own in ["Messages", "Host", "View", "AllowSystemLog"] {
            assert!(served.remove(&format!("/chiplog.v1.Peer/{own}")), "{own} has a listener of its own");
        }
        let services: BTreeSet<&str> = served.iter().filter_map(|m| m[1..].split('/').next()).collect();
        assert_eq!(super::NAMES.iter().copied().collect::<BTreeSet<_>>(), services);
        assert!(super::COPY_NAMES.iter().all(|name| services.contains(name)));
        let named: BTreeSet<String> = METHODS.iter().map(|(method, _)| (*method).to_owned()).collect();
        assert_eq!(named, served);
    }
}
