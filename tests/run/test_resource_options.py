"""What a run may ask for, and what is no such thing."""

from __future__ import annotations

import pytest

from dsv.errors import UsageError
from dsv.run.resources import (
    ALL_GPUS,
    Resources,
    check_resources,
    is_type,
    parse_cpus,
    parse_gpu_type,
    parse_gpus,
    parse_nodes,
    parse_retries,
    parse_topology,
    parse_tpu,
)


def test_what_is_typed_is_read() -> None:
    assert (parse_gpus("2"), parse_gpus("all")) == (2, ALL_GPUS)
    assert (parse_cpus("4"), parse_cpus("1.5")) == (4.0, 1.5)
    assert (parse_nodes("2"), parse_retries("0"), parse_retries("3")) == (2, 0, 3)
    assert (parse_gpu_type("A100"), parse_tpu("v5e-8"), parse_topology("2x4")) == ("A100", "v5e-8", "2x4")


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        *((parse_gpus, text) for text in ("0", "-1", "two", "")),
        *((parse_cpus, text) for text in ("0", "-1", "nan", "1e3", "0.0", "")),
        *((parse_nodes, text) for text in ("0", "-2", "1.5", "10001", "")),
        *((parse_retries, text) for text in ("-1", "1001", "x")),
        *((parse_gpu_type, text) for text in ("", "-A100", "A100\n", "a" * 64)),
        *((parse_tpu, text) for text in ("v5e", "8", "v5e-0", "tpu-8")),
        *((parse_topology, text) for text in ("2", "2x", "0x4", "2x2x2x2")),
    ],
)
def test_anything_else_is_refused(parse: object, text: str) -> None:
    with pytest.raises(UsageError):
        parse(text)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (Resources(gpu_type="A100"), "how many"),
        (Resources(tpu_topology="2x4"), "none is asked for"),
        (Resources(tpu="v5e-8", gpus=1), "GPUs and TPUs"),
        (Resources(tpu="v5e-8", tpu_topology="2x2"), "has 4 chips"),
    ],
)
def test_what_does_not_go_together_is_refused(wanted: Resources, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check_resources(wanted)


def test_what_goes_together_is_taken() -> None:
    check_resources(Resources(tpu="v5p-16", tpu_topology="2x2x4", nodes=4))
    check_resources(Resources(gpus=8, gpu_type="H100", nodes=2, cpus=96, memory_bytes=1 << 40, retries=3))


@pytest.mark.parametrize(
    ("model", "wanted", "fits"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100", True),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb", True),
        ("NVIDIA A100-SXM4-40GB", "A100-80GB", False),
        ("NVIDIA A100-SXM4-80GB", "A10", False),
        ("NVIDIA H100 80GB HBM3", "H100", True),
        ("Tesla T4", "t4", True),
        ("a100", "A100", True),
        ("", "A100", False),
    ],
)
def test_the_type_of_a_gpu_is_a_part_of_its_models_name(model: str, wanted: str, fits: bool) -> None:
    assert is_type(model, wanted) is fits
