"""Any content of any file gives findings, never a traceback."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from fixtures.spark_tree import good_spark
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkloom.cluster import parse
from sparkloom.errors import SparkloomError
from sparkloom.meminfo import parse_meminfo
from sparkloom.preflight import context, run_checks
from sparkloom.preflight.gpu import judge_gpu, number, parse_csv
from sparkloom.preflight.processes import parse_status, parse_tcp
from sparkloom.preflight.storage import parse_df
from sparkloom.preflight.system import parse_limit
from sparkloom.redact import Redactor
from sparkloom.sysroot import SysRoot

NODES = [
    {"name": "head", "role": "head", "fabric": {"addresses": ["192.168.100.1"]}},
    {"name": "worker", "role": "worker", "fabric": {"addresses": ["192.168.100.2"]}},
]
CLUSTERS = [
    parse({"nodes": NODES}),
    parse({"nodes": NODES, "engine": {"runtime": "oci", "image": f"a/b@sha256:{'0' * 64}"}}),
]
GOOD = good_spark().files
VICTIMS = sorted([*GOOD, "run/cdi/x.json", "etc/cdi/x.yaml", "var/lib/sparkloom/rank-boot.json"])
content = st.one_of(
    st.binary(max_size=60),
    st.sampled_from([b"", b"null", b"[]", b"{}", b"-1", b"9" * 400, b"\xff\xfe", b"pid, a\n1", b'"x"']),
    st.sampled_from(sorted(text.encode() for text in GOOD.values())),
)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.sampled_from(VICTIMS), content, max_size=6), st.sampled_from(CLUSTERS))
def test_any_file_content_gives_findings(changes, cluster):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, data in ({k: v.encode() for k, v in GOOD.items()} | changes).items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        findings = run_checks(context(cluster, "head", SysRoot(root)))
    assert not [f for f in findings if "check itself failed" in f.summary], findings
    assert len(findings) >= 18


@settings(max_examples=80, deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_parsed_or_passed_over(text):
    for row in parse_csv(text):
        judge_gpu(row)
    number(text)
    parse_tcp(text)
    parse_tcp(f"head\n{text}")
    parse_status(1, text)
    parse_df(text)
    parse_limit(text)
    Redactor(("host",)).text(text)
    for info in (text, f"MemTotal: 1 kB\nMemFree: 1 kB\nMemAvailable: 1 kB\n{text}"):
        with contextlib.suppress(SparkloomError):
            assert parse_meminfo(info)["MemTotal"] >= 0
