"""What OpenShift's security context constraint restricted-v2 does to pods, on the Kubernetes lab.

OpenShift itself can't be had here. Its rules are those that `oc get scc restricted-v2 -o yaml` shows, and admission
policies can say all of them but SELinux's: what a pod leaves open is set (a user and a group for volumes out of the
ranges of the namespace, no capability, no privilege escalation, the runtime's seccomp profile), and what it asks for
beyond that is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.labs.kubernetes import Kubernetes
from tests.labs.machine import LabError, wait_until
from tests.waiting import PATIENCE

USERS = "openshift.io/sa.scc.uid-range"
GROUPS = "openshift.io/sa.scc.supplemental-groups"
LABEL = "lab.dsv.run/constraint"
NAME = "restricted-v2"
SIZE = 10_000
VOLUMES = (
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
)

_POD = "object.spec.securityContext"
_INIT = "(has(object.spec.initContainers) ? object.spec.initContainers : [])"
_CONTAINERS = {"containers": "object.spec.containers", "initContainers": _INIT}
_EACH = f"(object.spec.containers + {_INIT})"


def _first(annotation: str) -> str:
    return f"int(namespaceObject.metadata.annotations['{annotation}'].split('/')[0])"


def _in_range(of: str) -> str:
    return f"{of}.runAsUser >= {_first(USERS)} && {of}.runAsUser < {_first(USERS)} + {SIZE}"


_REFUSED = {
    "hostNetwork, hostPID and hostIPC are not allowed to be used": " && ".join(
        f"!(has(object.spec.{each}) && object.spec.{each})" for each in ("hostNetwork", "hostPID", "hostIPC")
    ),
    f"volumes other than {', '.join(VOLUMES)} are not allowed to be used": "!has(object.spec.volumes)"
    f" || object.spec.volumes.all(v, {' || '.join(f'has(v.{kind})' for kind in VOLUMES)})",
    "runAsUser: must be in the ranges of the namespace": f"{_in_range(_POD)} && {_EACH}.all(c, "
    f"!has(c.securityContext.runAsUser) || ({_in_range('c.securityContext')}))",
    "fsGroup: not an allowed group": f"{_POD}.fsGroup == {_first(GROUPS)}",
    "seccomp: must be runtime/default": f"{_POD}.seccompProfile.type == 'RuntimeDefault' && {_EACH}.all(c, "
    "!has(c.securityContext.seccompProfile) || c.securityContext.seccompProfile.type == 'RuntimeDefault')",
    "privileged containers and privilege escalation are not allowed": f"{_EACH}.all(c, "
    "!c.securityContext.allowPrivilegeEscalation"
    " && !(has(c.securityContext.privileged) && c.securityContext.privileged))",
    "capabilities: ALL is required to be dropped, and only NET_BIND_SERVICE may be added": f"{_EACH}.all(c, "
    "has(c.securityContext.capabilities.drop) && 'ALL' in c.securityContext.capabilities.drop"
    " && (!has(c.securityContext.capabilities.add)"
    " || c.securityContext.capabilities.add.all(each, each == 'NET_BIND_SERVICE')))",
    "host ports are not allowed to be used": f"{_EACH}.all(c, "
    "!has(c.ports) || c.ports.all(port, !has(port.hostPort) || port.hostPort == 0))",
}
"""The message for a pod that is refused, and the rule that every other pod follows."""


@contextmanager
def restricted_v2(cluster: Kubernetes, namespace: str, first: int) -> Iterator[None]:
    """While it lasts, pods of the namespace are treated as on OpenShift. first: of the users that they may have."""
    cluster.kubectl("label", "--overwrite", "namespace", namespace, f"{LABEL}={NAME}")
    objects = json.dumps({"apiVersion": "v1", "kind": "List", "items": _policies()})
    try:
        cluster.kubectl("apply", "-f", "-", given=objects)
        give_range(cluster, namespace, first)
        yield
    finally:
        cluster.kubectl("delete", "--ignore-not-found", "-f", "-", given=objects)
        cluster.kubectl("label", "namespace", namespace, f"{LABEL}-")
        cluster.kubectl("annotate", "namespace", namespace, f"{USERS}-", f"{GROUPS}-")


def give_range(cluster: Kubernetes, namespace: str, first: int) -> None:
    """As if the namespace were another project: its pods get another user and another group for volumes."""
    ranges = (f"{each}={first}/{SIZE}" for each in (USERS, GROUPS))
    cluster.kubectl("annotate", "--overwrite", "namespace", namespace, *ranges)
    if not wait_until(lambda: _is_in_force(cluster, namespace, first), PATIENCE):
        raise LabError(f"the rules of {NAME} are not in force in the namespace {namespace}")


def _is_in_force(cluster: Kubernetes, namespace: str, first: int) -> bool:
    """Return whether a pod that asks for nothing gets the user, and one that asks for another is refused."""
    with suppress(LabError):
        if json.loads(_try(cluster, namespace, {}))["spec"]["securityContext"].get("runAsUser") == first:
            try:
                _try(cluster, namespace, {"runAsUser": first - 1})
            except LabError as error:
                return "must be in the ranges of the namespace" in str(error)
    return False


def _try(cluster: Kubernetes, namespace: str, context: dict[str, int]) -> str:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "probe", "namespace": namespace},
        "spec": {"securityContext": context, "containers": [{"name": "probe", "image": "probe"}]},
    }
    return cluster.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", given=json.dumps(pod))


def _policies() -> list[object]:
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    where = {"resourceRules": [pods], "namespaceSelector": {"matchLabels": {LABEL: NAME}}}
    common = {"failurePolicy": "Fail", "matchConstraints": where}
    validations = [
        {"expression": rule, "message": f"unable to validate against any security context constraint: {said}"}
        for said, rule in _REFUSED.items()
    ]
    change = {"patchType": "JSONPatch", "jsonPatch": {"expression": _changes()}}
    binding = {"policyName": NAME}
    return [
        _object("v1beta1", "MutatingAdmissionPolicy",
                {**common, "reinvocationPolicy": "Never", "mutations": [change]}),
        _object("v1beta1", "MutatingAdmissionPolicyBinding", binding),
        _object("v1", "ValidatingAdmissionPolicy", {**common, "validations": validations}),
        _object("v1", "ValidatingAdmissionPolicyBinding", {**binding, "validationActions": ["Deny"]}),
    ]  # fmt: skip


def _object(version: str, kind: str, spec: object) -> object:
    group = f"admissionregistration.k8s.io/{version}"
    return {"apiVersion": group, "kind": kind, "metadata": {"name": NAME}, "spec": spec}


def _changes() -> str:
    """Return the patches that set the fields which a pod leaves open."""
    profile = 'Object.spec.securityContext.seccompProfile{type: "RuntimeDefault"}'
    of_pod = {
        "runAsUser": _first(USERS),
        "runAsNonRoot": "true",
        "fsGroup": _first(GROUPS),
        "seccompProfile": profile,
    }
    found = []
    for key, value in of_pod.items():
        patch = _patch(f"'/spec/securityContext/{key}'", value)
        found.append(f"(has({_POD}.{key}) ? [] : [{patch}])")
    for kind, containers in _CONTAINERS.items():
        context = f"Object.spec.{kind}.securityContext"
        of_each = {
            "": f"{context}{{}}",
            "/allowPrivilegeEscalation": "false",
            "/capabilities": f'{context}.capabilities{{drop: ["ALL"]}}',
        }
        for below, value in of_each.items():
            fields = dict.fromkeys(("", below.replace("/", ".")))
            is_open = " || ".join(f"!has(c.securityContext{field})" for field in fields)
            path = f"'/spec/{kind}/' + string(i) + '/securityContext{below}'"
            found.append(f"{containers}.transformList(i, c, {is_open}, {_patch(path, value)})")
    return " + ".join(found)


def _patch(path: str, value: str) -> str:
    return f'JSONPatch{{op: "add", path: {path}, value: {value}}}'
