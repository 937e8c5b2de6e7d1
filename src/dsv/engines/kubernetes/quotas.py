"""What quotas of a namespace mean for a job: what they say before it is submitted, and why they refuse a part of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dsv.engines.kubernetes.options import KubernetesOptions
from dsv.model.resources import ALL_GPUS, Resources

_REFUSED: Final = re.compile(r"exceeded quota: .*?requested: (\S+), used: (\S+), limited: (\S+)")


def is_beyond_quota(message: str) -> bool | None:
    """Whether what was refused is more than the quota ever gives; False if there may be room for it later. None if no
    quota has refused it."""
    found = _REFUSED.search(message)
    return None if found is None else _beyond(found[1], found[3])


def quota_says(
    quotas: Sequence[Mapping[str, Any]], options: KubernetesOptions, wanted: Resources
) -> tuple[str | None, str | None]:
    """Why a job can't begin now, and why it never can."""
    asked = {}
    if wanted.gpus is not None and wanted.gpus != ALL_GPUS:
        asked[f"requests.{options.gpu}"] = float(wanted.gpus * wanted.nodes)
    if wanted.cpus is not None:
        asked["requests.cpu"] = asked["cpu"] = wanted.cpus * wanted.nodes
    if wanted.memory_bytes is not None:
        asked["requests.memory"] = asked["memory"] = float(wanted.memory_bytes * wanted.nodes)
    asked["pods"] = asked["count/pods"] = float(wanted.nodes)
    asked["count/jobs.batch"] = 1.0
    if wanted.nodes > 1:
        asked["services"] = asked["count/services"] = 1.0
    for each in quotas:
        spec = each.get("spec") or {}
        if spec.get("scopes") or spec.get("scopeSelector"):
            continue  # which may not be for pods of this kind: the cluster knows
        status = each.get("status") or {}
        for name, amount in asked.items():
            hard = (status.get("hard") or {}).get(name)
            if hard is None:
                continue
            taken = (status.get("used") or {}).get(name, "0")
            said = f"the quota {each['metadata']['name']} has {name}: {taken} of {hard} in use"
            if amount > quantity(hard):
                return None, said
            if amount > quantity(hard) - quantity(taken):
                return said, None
    return None, None


def _beyond(requested: str, limited: str) -> bool:
    """Whether what was requested is more than the quota ever gives: `requests.nvidia.com/gpu=8` beyond `…=4`."""
    limits = dict(each.partition("=")[::2] for each in limited.split(","))
    asked = dict(each.partition("=")[::2] for each in requested.split(","))
    return any(quantity(asked[name]) > quantity(limits[name]) for name in asked if name in limits)


_UNITS: Final = {
    "": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50,
}  # fmt: skip


def quantity(text: str) -> float:
    """A number as Kubernetes writes it, such as 500m or 2Gi; 0 for anything else."""
    found = re.fullmatch(r"([0-9.]+(?:e[0-9]+)?)([a-zA-Z]*)", text)
    if found is None or found[2] not in _UNITS:
        return 0.0
    return float(found[1]) * _UNITS[found[2]]
