"""What a job gets without its being in a manifest: values of variables, and credentials for the store."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Final

from dsv.engines.base import Job, Plan
from dsv.engines.kubernetes.names import LABEL, MANAGED, RUN_KEY, Manifest, credentials_name, object_name
from dsv.engines.kubernetes.options import KubernetesOptions
from dsv.errors import UsageError

_CREDENTIALS: Final = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AZURE_STORAGE_ACCOUNT_NAME",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_CLIENT_ID",
    "AZURE_CLIENT_SECRET",
    "AZURE_TENANT_ID",
)
"""What a job gets of the caller's environment if the caller says so, for the containers of dsv alone."""


def credentials_in(environ: Mapping[str, str]) -> dict[str, str]:
    return {each: environ[each] for each in _CREDENTIALS if each in environ}


def check_credentials(job: Job, options: KubernetesOptions, forwarded: Mapping[str, str]) -> None:
    """Raises `UsageError` if the store's credentials are those of a profile, and the cluster has none in its place."""
    setting = job.access.profile
    if setting is None or options.secret is not None or options.service_account is not None or forwarded:
        return
    raise UsageError(
        f"{setting} names a profile of this machine, and the cluster has no credentials in its place",
        subject=setting,
        hint="dsv config pools.NAME.kubernetes.secret SECRET, or service_account; or "
        "aws configure export-credentials --format env, and --forward-credentials",
    )


def secrets_of(plan: Plan, name: str) -> list[Manifest]:
    wanted = {name: {key: value.encode("utf-8", "surrogateescape") for key, value in plan.env.items()}}
    for file in plan.files:
        wanted[credentials_name(name)] = {
            key: value.encode("utf-8", "surrogateescape") for key, value in json.loads(file.content).items()
        }
    return [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": each,
                "labels": {LABEL: name, MANAGED[0]: MANAGED[1]},
                "annotations": {RUN_KEY: plan.run},
            },
            "data": {key: base64.b64encode(value).decode("ascii") for key, value in values.items()},
        }
        for each, values in wanted.items()
        if values
    ]


def said_first(
    job: Job, secret: Mapping[str, str], credentials: Mapping[str, str], namespace: str | None
) -> str:
    """Comments that tell what is not in the manifest, as nobody but the job may read it."""
    name = object_name(job.run)
    kubectl = "kubectl" if namespace is None else f"kubectl -n {namespace}"
    lines = [f"# Run {job.run}. To submit it: kubectl create -f THIS-FILE"]
    for each, keys in ((name, secret), (credentials_name(name), credentials)):
        if keys:
            given = " ".join(f"--from-literal={key}={_shown_value(key)}" for key in sorted(keys))
            lines.append(f"# It needs a Secret: {kubectl} create secret generic {each} {given}")
    return "\n".join(lines) + "\n"


def _shown_value(key: str) -> str:
    """Parameters are one JSON object."""
    return """'{"NAME": VALUE}'""" if key == "DSV_PARAMS" else "VALUE"
