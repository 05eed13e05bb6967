//! The reports of servers to grpcurl and similar programs, by reflection.

use crate::harness::{one, runtime};
use prost::Message as _;
use prost_types::FileDescriptorProto;
use tonic::transport::Endpoint;
use tonic::{Code, Status};
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

fn ask(server: &str, question: MessageRequest) -> Result<MessageResponse, Status> {
    runtime().block_on(async {
        let endpoint = Endpoint::from_shared(format!("http://{server}")).unwrap();
        let mut client = ServerReflectionClient::new(endpoint.connect().await.unwrap());
        let request = ServerReflectionRequest { host: String::new(), message_request: Some(question) };
        let mut answers = client.server_reflection_info(tokio_stream::iter([request])).await?.into_inner();
        Ok(answers.message().await?.unwrap().message_response.unwrap())
    })
}

/// The services that it lists.
pub(crate) fn services(server: &str) -> Vec<String> {
    let MessageResponse::ListServicesResponse(list) =
        ask(server, MessageRequest::ListServices(String::new())).unwrap()
    else {
        panic!("no list")
    };
    let mut names: Vec<String> = list.service.into_iter().map(|service| service.name).collect();
    names.sort();
    names
}

/// The file that defines a symbol.
fn described(server: &str, symbol: &str) -> Result<FileDescriptorProto, Status> {
    let answer = ask(server, MessageRequest::FileContainingSymbol(symbol.to_owned()))?;
    let MessageResponse::FileDescriptorResponse(files) = answer else { panic!("{answer:?}") };
    Ok(FileDescriptorProto::decode(files.file_descriptor_proto[0].as_slice()).unwrap())
}

#[test]
fn server_lists_and_describes_its_services() {
    let dir = tempfile::tempdir().unwrap();
    let server = one(dir.path());
    let listed = services(&server.client);
    let served = [
        "chiplog.v1.Admin",
        "chiplog.v1.Follow",
        "chiplog.v1.Log",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
        "logspec.Log",
    ];
    assert_eq!(listed, served, "the service between replicas has its own listener");
    for name in &listed {
        let file = described(&server.client, name).unwrap();
        let (package, service) = name.rsplit_once('.').unwrap();
        assert_eq!(file.package(), package);
        assert!(file.service.iter().any(|s| s.name() == service && !s.method.is_empty()), "{name}");
    }
    let log = described(&server.client, "chiplog.v1.Log").unwrap();
    let methods: Vec<&str> = log.service[0].method.iter().map(|method| method.name()).collect();
    assert_eq!(
        methods,
        [
            "Append",
            "AppendTogether",
            "Read",
            "Discard",
            "Info",
            "Watch",
            "OpenSession",
            "CloseSession",
            "ServerInfo"
        ]
    );
    let request = log.message_type.iter().find(|message| message.name() == "AppendRequest").unwrap();
    assert_eq!(
        request.field.iter().map(|field| field.name()).collect::<Vec<_>>(),
        ["log", "batch", "log_id"]
    );
    assert_eq!(described(&server.client, "chiplog.v1.Nothing").unwrap_err().code(), Code::NotFound);
}
