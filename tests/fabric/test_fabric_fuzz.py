"""Any tree gives rails and findings or one clear error, never a traceback."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from sparkloom.errors import SparkloomError
from sparkloom.fabric import choose_rails, gid_table, nccl_environment, parse_addresses, read_fabric
from sparkloom.fabric.addresses import parse_fib, parse_ip_addr
from sparkloom.fabric.reader import parse_ibv_devinfo
from sparkloom.sysroot import SysRoot

names = st.sampled_from(["rocep1s0f0", "mlx5_0", "x y", "é"])
gids = st.one_of(
    st.binary(max_size=50),
    st.sampled_from([b"", b"0000:0000:0000:0000:0000:ffff:0a00:0001", b"fe80::1", b"::ffff:10.0.0.1"]),
)
kinds = st.one_of(st.binary(max_size=12), st.sampled_from([b"RoCE v2\n", b"IB/RoCE v1\n"]))
leaves = st.fixed_dictionaries(
    {},
    optional={
        "state": st.binary(max_size=12),
        "rate": st.binary(max_size=12),
        "active_mtu": st.binary(max_size=12),
        **{f"gids/{i}": gids for i in ("0", "3", "x", "99999999999999999999", "³")},
        **{f"gid_attrs/types/{i}": kinds for i in ("0", "3")},
        **{f"gid_attrs/ndevs/{i}": st.sampled_from([b"eth0", b"../../..", b"\0", b"a" * 300]) for i in "03"},
    },
)
interfaces = st.dictionaries(
    st.sampled_from(["eth0", "enp1s0f0np0", "bonding_masters"]),
    st.fixed_dictionaries({}, optional={k: st.binary(max_size=9) for k in ("carrier", "mtu", "operstate")}),
)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(names, leaves, max_size=3), interfaces, st.binary(max_size=200), st.booleans())
def test_any_tree_gives_an_answer(devices, nets, fib, detect):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for device, files in devices.items():
            for name, data in files.items():
                put(root / f"sys/class/infiniband/{device}/ports/1/{name}", data)
        for name, files in nets.items():
            for leaf, data in files.items():
                put(root / f"sys/class/net/{name}/{leaf}", data)
        put(root / "proc/net/fib_trie", fib)
        rails, findings = choose_rails(
            read_fabric(SysRoot(root)), [] if detect else parse_addresses(["10.0.0.1"])
        )
        assert findings
        nccl_environment(rails)
        gid_table(read_fabric(SysRoot(root)).ports)
        for rail in rails:
            assert rail.gid_index is None or rail.gid_type.strip().casefold() == "roce v2"


def put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_an_address_list_or_a_clear_error(text):
    parse_ibv_devinfo(text)
    parse_fib(text, text)
    with contextlib.suppress(SparkloomError):
        parse_addresses([text])


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["ifname", "addr_info", "local", "prefixlen"]), inner, max_size=4),
    ),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(json_values)
def test_any_json_is_an_address_table(value):
    for held in parse_ip_addr(value).values():
        assert held
