"""Every method that there is has a row in the table of roles, and what has none is refused."""

from __future__ import annotations

from google.protobuf.descriptor import MethodDescriptor

from halogen.v1 import control_pb2, engine_pb2, inference_pb2, loader_pb2, scheduler_pb2
from services.common.auth.permissions import allowed, is_open
from services.common.auth.role import Role

FILES = (control_pb2, engine_pb2, inference_pb2, loader_pb2, scheduler_pb2)
METHODS: list[MethodDescriptor] = [
    method
    for file in FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]


def path(method: MethodDescriptor) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


def test_every_method_has_its_roles() -> None:
    """None was forgotten, none is open; and none takes a stream of requests, which nothing would ask who they are.

    Fault injection: turns red when a row of the table is taken out.
    """
    assert len(METHODS) > 20
    assert [] == [path(method) for method in METHODS if not allowed(path(method))]
    assert [] == [path(method) for method in METHODS if is_open(path(method)) or method.client_streaming]


def test_each_role_reaches_its_own_services_only() -> None:
    """Who asks models says nothing of what is served, who publishes asks no models, and neither plays a process of ours."""
    reached = {
        role: {method.containing_service.name for method in METHODS if role in allowed(path(method))}
        for role in Role
    }
    assert {"InferenceService"} == reached[Role.INFER]
    assert {"ControlService"} == reached[Role.PUBLISH]
    assert {"SchedulerService", "EngineService", "LoaderService"} == reached[Role.SYSTEM]
    assert not {"EngineService"} & reached[Role.ADMIN]


def test_what_ends_a_models_service_is_for_admins() -> None:
    """Publishing is a deployment's daily work; to withdraw a model, or to vouch for one, is not."""
    of_admins = {method.name for method in METHODS if allowed(path(method)) == {Role.ADMIN}}
    assert {"UnpublishModel", "QualifyArtifact"} == of_admins


def test_a_method_in_no_row_is_for_nobody() -> None:
    """A new method is refused until somebody says who may call it."""
    for unknown in ("/halogen.v1.ControlService/DropAll", "/halogen.v2.InferenceService/Chat", "", "/"):
        assert frozenset() == allowed(unknown)
        assert not is_open(unknown)


def test_probes_and_reflection_are_open() -> None:
    """They tell health and protos, and balancers have no credential."""
    assert is_open("/grpc.health.v1.Health/Watch")
    assert is_open("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
