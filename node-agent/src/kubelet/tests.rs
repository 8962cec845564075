use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use node_facts::{ClaimedDevice, ContainerAllocation, Device, HeldDevices, PodAllocation};
use tokio::net::UnixListener;
use tokio::task::JoinSet;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

use super::pod_resources::{MAX_MESSAGE_BYTES, v1};
use super::*;
use v1::pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer};

/// A kubelet's answers, to be changed while it serves.
#[derive(Clone, Default)]
struct Answers(Arc<Mutex<Told>>);

#[derive(Clone, Default)]
struct Told {
    pods: Vec<v1::PodResources>,
    devices: Vec<v1::ContainerDevices>,
    /// An old kubelet.
    no_allocatable: bool,
}

#[tonic::async_trait]
impl PodResourcesLister for Answers {
    async fn list(
        &self,
        _: Request<v1::ListPodResourcesRequest>,
    ) -> Result<Response<v1::ListPodResourcesResponse>, Status> {
        let pod_resources = self.0.lock().unwrap().pods.clone();
        Ok(Response::new(v1::ListPodResourcesResponse { pod_resources }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<v1::AllocatableResourcesRequest>,
    ) -> Result<Response<v1::AllocatableResourcesResponse>, Status> {
        let told = self.0.lock().unwrap().clone();
        match told.no_allocatable {
            true => Err(Status::unimplemented("unknown method GetAllocatableResources")),
            false => Ok(Response::new(v1::AllocatableResourcesResponse { devices: told.devices })),
        }
    }
}

/// Serves on the folder's socket until dropped; a socket file left by an earlier one is replaced, as kubelets do.
fn serve(folder: &Path, answers: &Answers) -> JoinSet<()> {
    let socket = folder.join("pod-resources/kubelet.sock");
    fs::create_dir_all(socket.parent().unwrap()).unwrap();
    let _ = fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).unwrap();
    let service = PodResourcesListerServer::new(answers.clone()).max_encoding_message_size(usize::MAX);
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let server = tonic::transport::Server::builder().add_service(service);
        server.serve_with_incoming(UnixListenerStream::new(listener)).await.unwrap();
    });
    tasks
}

fn kubelet(folder: &Path) -> Kubelet {
    Kubelet::new(folder.to_owned(), Tree::disk(folder))
}

async fn facts(kubelet: &mut Kubelet) -> KubeletFacts {
    kubelet.ask().await.facts.value().expect("facts of the kubelet").clone()
}

fn gpus(ids: &[&str], numa: &[i64]) -> v1::ContainerDevices {
    let nodes = numa.iter().map(|id| v1::NumaNode { id: *id }).collect();
    v1::ContainerDevices {
        resource_name: "nvidia.com/gpu".into(),
        device_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        topology: (!numa.is_empty()).then_some(v1::TopologyInfo { nodes }),
    }
}

fn pod(name: &str, container: v1::ContainerResources) -> v1::PodResources {
    v1::PodResources { name: name.into(), namespace: "models".into(), containers: vec![container] }
}

#[tokio::test]
async fn what_pods_hold_alone_is_told_and_the_rest_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let claim = v1::DynamicResource {
        claim_name: "c".into(),
        claim_namespace: "models".into(),
        claim_resources: vec![v1::ClaimResource {
            driver_name: "gpu.nvidia.com".into(),
            pool_name: "n1".into(),
            device_name: "gpu-4".into(),
        }],
    };
    let engine = v1::ContainerResources {
        name: "engine".into(),
        devices: vec![gpus(&["GPU-b", "GPU-a"], &[0])],
        cpu_ids: vec![9, 8],
        dynamic_resources: vec![claim],
    };
    let shares = v1::ContainerResources { name: "web".into(), ..Default::default() };
    let answers = Answers::default();
    answers.0.lock().unwrap().pods = vec![pod("web", shares), pod("flash", engine)];
    let _server = serve(folder.path(), &answers);

    let facts = facts(&mut kubelet(folder.path())).await;
    let claimed = ClaimedDevice {
        namespace: "models".into(),
        claim: "c".into(),
        driver: "gpu.nvidia.com".into(),
        pool: "n1".into(),
        device: "gpu-4".into(),
    };
    let held = HeldDevices {
        resource: "nvidia.com/gpu".into(),
        ids: vec!["GPU-a".into(), "GPU-b".into()],
        numa: vec![0],
    };
    let container = ContainerAllocation {
        name: "engine".into(),
        cpus: vec![8, 9],
        devices: vec![held],
        claims: vec![claimed],
    };
    let expected =
        PodAllocation { namespace: "models".into(), name: "flash".into(), containers: vec![container] };
    assert_eq!(facts.pods, Reading::Value(vec![expected.clone()]));
    assert_eq!(facts.allocation("models", "flash"), Some(&expected));
}

#[tokio::test]
async fn devices_of_gpus_are_told_with_their_nodes_and_no_node_is_not_node_0() {
    let folder = tempfile::tempdir().unwrap();
    let nic = v1::ContainerDevices { resource_name: "rdma/hca".into(), ..gpus(&["x"], &[0]) };
    let answers = Answers::default();
    answers.0.lock().unwrap().devices = vec![gpus(&["GPU-b"], &[1]), nic, gpus(&["GPU-a"], &[])];
    let _server = serve(folder.path(), &answers);
    let device = |id: &str, numa| Device { resource: "nvidia.com/gpu".into(), id: id.into(), numa };
    let expected = vec![device("GPU-a", vec![]), device("GPU-b", vec![1])];
    assert_eq!(facts(&mut kubelet(folder.path())).await.devices, Reading::Value(expected));
}

#[tokio::test]
async fn a_kubelet_that_knows_less_is_absent_where_it_knows_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let answers = Answers::default();
    answers.0.lock().unwrap().no_allocatable = true;
    let _server = serve(folder.path(), &answers);
    let facts = facts(&mut kubelet(folder.path())).await;
    assert_eq!(facts.pods, Reading::Value(vec![]));
    let expected = "this kubelet does not know GetAllocatableResources";
    assert_eq!(facts.devices, Reading::Absent(expected.into()));
}

#[tokio::test]
async fn a_change_is_in_the_next_answer_and_so_is_a_new_socket() {
    let folder = tempfile::tempdir().unwrap();
    let with_gpus = |name: &str, ids: &[&str]| {
        pod(name, v1::ContainerResources { devices: vec![gpus(ids, &[0])], ..Default::default() })
    };
    let before = Answers::default();
    let server = serve(folder.path(), &before);
    let mut kubelet = kubelet(folder.path());
    assert_eq!(facts(&mut kubelet).await.pods, Reading::Value(vec![]));
    before.0.lock().unwrap().pods = vec![with_gpus("stranger", &["GPU-0", "GPU-1", "GPU-2", "GPU-3"])];
    assert_eq!(facts(&mut kubelet).await.pods.value().unwrap()[0].name, "stranger");

    // The new kubelet serves while the connection to the old one is still open.
    let after = Answers::default();
    after.0.lock().unwrap().pods = vec![with_gpus("other", &["GPU-4"])];
    let _new = serve(folder.path(), &after);
    assert_eq!(facts(&mut kubelet).await.pods.value().unwrap()[0].name, "other");
    drop(server);
    assert_eq!(facts(&mut kubelet).await.pods.value().unwrap()[0].name, "other");
}

#[tokio::test]
async fn while_a_kubelet_restarts_its_allocations_stay_with_a_remark() {
    let folder = tempfile::tempdir().unwrap();
    let answers = Answers::default();
    let holds = v1::ContainerResources { cpu_ids: vec![1], ..Default::default() };
    answers.0.lock().unwrap().pods = vec![pod("flash", holds)];
    let server = serve(folder.path(), &answers);
    let mut kubelet = kubelet(folder.path());
    assert_eq!(kubelet.ask().await.notes, Vec::<String>::new());
    drop(server);
    fs::remove_file(folder.path().join("pod-resources/kubelet.sock")).unwrap();
    let heard = kubelet.ask().await;
    assert_eq!(heard.facts.value().unwrap().pods.value().unwrap().len(), 1);
    assert!(heard.notes[0].contains("its last allocations are shown: no socket"), "{:?}", heard.notes);
}

#[tokio::test]
async fn a_node_without_a_kubelet_has_no_allocations_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let facts = facts(&mut kubelet(folder.path())).await;
    assert!(matches!(facts.pods, Reading::Absent(reason) if reason.starts_with("no socket ")));
    assert!(matches!(facts.cpu_manager, Reading::Absent(_)));
    assert!(matches!(facts.cgroups, Reading::Absent(_)));
}

#[tokio::test]
async fn the_answer_of_a_dense_node_is_taken_and_one_beyond_the_limit_is_refused_with_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let ids: Vec<String> = (0..600).map(|id| format!("GPU-{id:060}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let dense = |name: usize| {
        let cpu_ids = (0..200).collect();
        let devices = vec![gpus(&ids[..200], &[0])];
        pod(&format!("p{name}"), v1::ContainerResources { cpu_ids, devices, ..Default::default() })
    };
    let answers = Answers::default();
    let pods: Vec<_> = (0..500).map(dense).collect();
    answers.0.lock().unwrap().pods = pods.clone();
    let _server = serve(folder.path(), &answers);
    let mut kubelet = kubelet(folder.path());
    let size = prost::Message::encoded_len(&v1::ListPodResourcesResponse { pod_resources: pods.clone() });
    assert!(size > 6 << 20 && size < MAX_MESSAGE_BYTES, "{size}");
    assert_eq!(facts(&mut kubelet).await.pods.value().map(Vec::len), Some(500));

    kubelet.answered = None;
    answers.0.lock().unwrap().pods = [&pods[..], &pods[..], &pods[..]].concat();
    let refused = facts(&mut kubelet).await.pods;
    assert!(matches!(&refused, Reading::Failed(reason) if reason.contains("limit")), "{refused:?}");
}

#[tokio::test]
async fn more_pods_than_any_node_runs_are_cut_with_a_remark() {
    let folder = tempfile::tempdir().unwrap();
    let holds = || v1::ContainerResources { cpu_ids: vec![1], ..Default::default() };
    let answers = Answers::default();
    answers.0.lock().unwrap().pods = (0..1_100).map(|name| pod(&format!("p{name:04}"), holds())).collect();
    let _server = serve(folder.path(), &answers);
    let heard = kubelet(folder.path()).ask().await;
    assert_eq!(heard.facts.value().unwrap().pods.value().unwrap().len(), 1_024);
    assert_eq!(heard.notes, ["1100 pods hold resources of their own, 1024 are shown"]);
}

#[tokio::test]
async fn cpus_of_guaranteed_pods_are_read_from_their_groups() {
    let folder = tempfile::tempdir().unwrap();
    let uid = "0b1e7a9c-1111-4222-8333-444455556666";
    let id = "ab".repeat(32);
    let group = folder.path().join(format!("sys/fs/cgroup/cpuset/kubepods/pod{uid}/{id}"));
    fs::create_dir_all(&group).unwrap();
    fs::write(group.join("cpuset.cpus"), "2-3\n").unwrap();
    fs::write(group.join("cpuset.mems"), "1\n").unwrap();
    let facts = facts(&mut kubelet(folder.path())).await;
    let container = facts.cgroup(uid, &format!("containerd://{id}")).unwrap();
    assert_eq!((&container.cpus, &container.mems), (&Reading::Value(vec![2, 3]), &Reading::Value(vec![1])));
}
