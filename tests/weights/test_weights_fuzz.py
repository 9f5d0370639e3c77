"""Any bytes are a header, a manifest, an index or one clear error."""

from __future__ import annotations

import contextlib
import json
import struct
import tempfile
from pathlib import Path

from fixtures import tiny_checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkloom.errors import SparkloomError
from sparkloom.exl3.checkpoint import INDEX
from sparkloom.weights.checkpoint import check_checkpoint, shard_problem
from sparkloom.weights.manifest import parse_manifest, safe_path
from sparkloom.weights.receipt import RECEIPT, load_receipt

leaf = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=6))
keys = st.sampled_from(
    [
        "dtype",
        "shape",
        "data_offsets",
        "__metadata__",
        "a.trellis",
        "files",
        "path",
        "size",
        "weight_map",
        "sha256",
    ]
)
values = st.recursive(
    leaf,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=4)),
    max_leaves=10,
)
tensor = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["I16", "F16", "X"]),
        "shape": st.lists(st.integers(-1, 1 << 62), max_size=3),
        "data_offsets": st.lists(st.integers(-1, 1 << 62), max_size=3),
    }
)
headers = st.one_of(values, st.dictionaries(st.text(max_size=8), tensor, max_size=3))


@settings(max_examples=80, deadline=None)
@given(st.one_of(headers, st.binary(max_size=80)), st.integers(0, (1 << 64) - 1), st.booleans())
def test_any_file_is_whole_or_has_one_problem(value, length, framed):
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    with tempfile.NamedTemporaryFile() as file:
        file.write(struct.pack("<Q", len(data) if framed else length) + data)
        file.flush()
        problem = shard_problem(Path(file.name))
        assert problem is None or isinstance(problem, str)


@settings(max_examples=60, deadline=None)
@given(values)
def test_any_json_is_a_manifest_or_a_clear_error(value):
    with contextlib.suppress(SparkloomError):
        parse_manifest(value, "m")
    row = {"repo": "a/b", "revision": "1" * 40, "files": value if isinstance(value, list) else [value]}
    with contextlib.suppress(SparkloomError):
        for entry in parse_manifest(row, "m").files:
            assert safe_path(entry.path)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["config.json", INDEX, "model-00001-of-00002.safetensors"]),
    st.one_of(st.binary(max_size=60), values),
)
def test_any_checkpoint_gives_findings(name, data):
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    with tempfile.TemporaryDirectory() as folder:
        tiny_checkpoint.write(Path(folder), tiny_checkpoint.files() | {name: raw})
        assert check_checkpoint(Path(folder))


@settings(max_examples=40, deadline=None)
@given(st.one_of(st.binary(max_size=60), values))
def test_any_receipt_is_read_or_empty(data):
    with tempfile.TemporaryDirectory() as folder:
        raw = data if isinstance(data, bytes) else json.dumps(data).encode()
        tiny_checkpoint.write(Path(folder), {RECEIPT: raw})
        load_receipt(Path(folder))


@settings(max_examples=80, deadline=None)
@given(st.text(alphabet="a./\\\0\ud800 ", max_size=12))
def test_safe_paths_stay_inside(path):
    if safe_path(path):
        assert (Path("/base") / path).resolve().is_relative_to("/base")
