"""Driver, GPU, NCCL, runtime, plug-in, CDI, ports, consumers, disk, fabric."""

from __future__ import annotations

import json

import pytest
from fixtures.spark_tree import good_spark, gpu_csv, tcp

from sparkloom.findings import Level
from sparkloom.preflight.software import judge_nccl, judge_plugin

CLOSED = "NVRM version: NVIDIA UNIX aarch64 Kernel Module  580.126.09  Release Build"


def levels(findings):
    return [str(f.level) for f in findings]


def texts(findings):
    return "\n".join(f"{f.summary} {f.detail} {f.mend}" for f in findings)


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("2.29.3", "ok"), ("2.29.2", "fail"), ("2.28.9", "fail"), ("2.30.7+cuda13.0", "ok"), ("23102", "ok"),
        ("22809", "fail"), ("NCCL version 2.31.2", "ok"), ("2.29", "fail"), ("2.30", "ok"), ("3.0.0", "ok"),
        ("banana", "fail"), ("", "fail"),
    ],
)  # fmt: skip
def test_nccl_gate(text, level):
    assert str(judge_nccl(text).level) == level


def test_nccl_of_the_library_file_when_nothing_else_tells(check):
    tree = good_spark()
    del tree.files["commands/nccl-version.txt"]
    assert levels(check("nccl", tree)) == ["warn"]
    tree.files["usr/lib/aarch64-linux-gnu/libnccl.so.2.28.9"] = ""
    assert levels(check("nccl", tree)) == ["fail"]


def test_driver_must_be_open_and_loaded(check):
    tree = good_spark()
    assert levels(check("driver", tree)) == ["ok"]
    tree.files["proc/driver/nvidia/version"] = CLOSED
    assert levels(check("driver", tree)) == ["fail"]


def test_a_missing_driver_fails_where_the_tree_is_a_whole_machine(check):
    tree = good_spark()
    del tree.files["proc/driver/nvidia/version"]
    assert levels(check("driver", tree)) == ["fail"]
    assert levels(check("driver", tree, engine={"platform": "cpu", "dtype": "float32"})) == ["ok"]


@pytest.mark.parametrize(
    ("cells", "name"),
    [
        ({"clocks_event_reasons.active": "0x0000000000000040"}, "gpu.clock"),
        ({"temperature.gpu": "91"}, "gpu.heat"),
        ({"persistence_mode": "Disabled"}, "gpu.persistence"),
        ({"compute_cap": "9.0"}, "gpu.kind"),
    ],
)
def test_gpu_state(check, cells, name):
    tree = good_spark()
    tree.files["commands/nvidia-smi-gpu.csv"] = gpu_csv(**cells)
    found = check("gpu", tree)
    assert [(f.check, str(f.level)) for f in found] == [(name, "warn")]


def test_cells_that_unified_memory_does_not_support_are_no_fault(check):
    tree = good_spark()
    tree.files["commands/nvidia-smi-gpu.csv"] = gpu_csv(
        **{"power.draw [W]": "[N/A]", "temperature.gpu": "[N/A]"}
    )
    assert levels(check("gpu", tree)) == ["ok"]


def test_other_gpu_users(check):
    tree = good_spark()
    apps = "pid, process_name, used_gpu_memory [MiB]"
    assert levels(check("gpu.users", tree)) == ["ok"]
    tree.files["commands/nvidia-smi-apps.csv"] = f"{apps}\n77, /usr/bin/ollama, [N/A]"
    found = check("gpu.users", tree)
    assert levels(found) == ["fail"]
    assert "ollama (pid 77)" in found[0].summary
    tree.files["commands/nvidia-smi-apps.csv"] = f"{apps}\n78, /usr/lib/xorg/Xorg, 43 MiB"
    assert levels(check("gpu.users", tree)) == ["warn"]


def test_runtime_and_plugin(check):
    tree = good_spark()
    assert levels(check("runtime", tree)) == ["ok"]
    assert levels(check("plugin", tree)) == ["ok"]
    tree.files["commands/vllm-version.txt"] = ""
    assert levels(check("runtime", tree)) == ["fail"]


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ('noise\n{"ok": true, "vllm": "vllm 0.33.0"}', "ok"),
        ('{"ok": false, "problem": "the import failed", "mend": "x", "traceback": "ImportError"}', "fail"),
        ('{"ok": false, "problem": null, "mend": null, "traceback": 3}', "fail"),
        ("[1]", "fail"), ("Segmentation fault", "fail"), ("null", "fail"),
    ],
)  # fmt: skip
def test_a_plugin_that_only_logged_its_failure_is_found(text, level):
    assert str(judge_plugin(text).level) == level


OCI = {"engine": {"runtime": "oci", "image": f"registry.example/sparkloom@sha256:{'0' * 64}"}}
GPU_SPEC = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [{"name": "all"}]}
YAML_SPEC = "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: all\n  containerEdits:\n    deviceNodes:\n    - path: /dev/nvidia0"  # noqa: E501


@pytest.mark.parametrize(
    ("files", "level"),
    [
        ({}, "fail"),
        ({"run/cdi/nvidia.json": json.dumps(GPU_SPEC), "dev/infiniband/uverbs0": ""}, "ok"),
        ({"var/run/cdi/n.json": json.dumps(GPU_SPEC), "dev/infiniband/uverbs0": ""}, "ok"),
        ({"etc/cdi/nvidia.yaml": YAML_SPEC, "dev/infiniband/uverbs0": ""}, "ok"),
        ({"run/cdi/nvidia.json": json.dumps(GPU_SPEC)}, "fail"),
        ({"run/cdi/nvidia.json": json.dumps({**GPU_SPEC, "devices": []})}, "fail"),
        ({"run/cdi/nvidia.json": json.dumps({**GPU_SPEC, "kind": "other.com/gpu"})}, "fail"),
        ({"run/cdi/nvidia.json": "{"}, "fail"),
    ],
)
def test_cdi(check, files, level):
    tree = good_spark()
    tree.files |= files
    assert levels(check("cdi", tree, **OCI)) == [level]


def test_cdi_is_not_needed_by_a_native_rank(check):
    assert levels(check("cdi", good_spark())) == ["ok"]


@pytest.mark.parametrize(
    ("listener", "node", "level"),
    [
        (("0.0.0.0", 8888), "head", "fail"),
        (("127.0.0.1", 8888), "head", "fail"),
        (("192.168.100.1", 8888), "head", "ok"),  # another address: both can be bound
        (("192.168.100.1", 29501), "head", "fail"),
        (("0.0.0.0", 8888), "worker", "ok"),  # the worker has no API
        (("0.0.0.0", 8770), "worker", "warn"),
    ],
)
def test_ports(check, listener, node, level):
    tree = good_spark()
    tree.files["proc/net/tcp"] = tcp(listener)
    found = check("ports", tree, node)
    assert levels(found) == [level]
    if level != "ok":
        assert str(listener[1]) in found[0].summary


def test_the_owner_of_a_port_is_named_and_the_agent_may_hold_its_own(check, tmp_path):
    tree = good_spark()
    tree.files["proc/net/tcp"] = tcp(("0.0.0.0", 8888), ("0.0.0.0", 8770))
    for pid, name, line in (
        (50, "ollama", "ollama\0serve"),
        (51, "python3", "python3\0-m\0sparkloom\0agent"),
    ):
        tree.files[f"proc/{pid}/comm"] = name
        tree.files[f"proc/{pid}/cmdline"] = line
        folder = tmp_path / f"tree/proc/{pid}/fd"
        folder.mkdir(parents=True)
        (folder / "3").symlink_to(f"socket:[{4242 + pid - 50}]")
    found = check("ports", tree)
    assert levels(found) == ["fail"]
    assert "ollama (pid 50)" in found[0].summary


def test_top_consumers_are_ranked_and_a_desktop_is_named(check):
    tree = good_spark()
    for pid, name, gib in ((7, "small", 0.1), (8, "gnome-shell", 1), (9, "ollama", 30)):
        tree.files[f"proc/{pid}/status"] = f"Name:\t{name}\nVmRSS:\t{int(gib * (1 << 20))} kB"
    tree.files["proc/10/status"] = "Name:\tkthreadd"
    found = check("consumers", tree)[0]
    assert found.level is Level.warn
    assert "gnome-shell" in found.summary
    assert [line.split()[2] for line in found.detail.splitlines()] == [
        "ollama",
        "gnome-shell",
        "small",
        "systemd",
    ]
    del tree.files["proc/8/status"]


def test_disk(check):
    tree = good_spark()
    assert levels(check("disk", tree)) == ["ok"]
    tree.files["commands/df.txt"] = (
        "Filesystem 1-blocks Used Available Capacity Mounted on\n"
        "/dev/a 9 9 3000000000000 1% /\n/dev/b 9 9 1000000 99% /var/lib"
    )
    found = check("disk", tree)
    assert "fail" in levels(found)
    assert "the weights need" in texts(found)
    tree.files["var/lib/sparkloom/models/glm-5.3-flash-exl3/config.json"] = "{}"
    assert levels(check("disk", tree)) == ["warn"]


def test_fabric_follows_the_cluster_file(check, pair):
    tree = good_spark()
    assert set(levels(check("fabric", tree))) == {"ok"}
    assert "fail" in levels(check("fabric", tree, "worker"))  # the worker's addresses are not on this tree
    pair["nodes"][0]["fabric"]["interfaces"] = ["enp1s0f1np1", "enP2p1s0f0np0"]
    found = check("fabric", tree)
    assert "the cluster file says enp1s0f1np1" in texts(found)
    assert levels(check("fabric", tree, fabric={"require_rdma": False})) == ["ok"]


def test_read_ahead(check):
    tree = good_spark()
    tree.files["sys/block/nvme0n1/queue/read_ahead_kb"] = "16384"
    assert levels(check("read_ahead", tree)) == ["warn"]
