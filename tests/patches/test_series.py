"""The patches of vLLM: complete, applicable without fuzz, stock while their option is off."""

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from sparkloom.vllm.hooks.install import UNBUILT

FOLDER = Path(__file__).parents[2] / "patches/vllm"
SERIES = (FOLDER / "series").read_text().split()
MARKER = "vllm/_sparkloom_patches.py"
INDEXER = "vllm/models/glm5next/nvidia/sparse_indexer.py"


@pytest.fixture(scope="session")
def tree(patched_vllm: Path) -> Path:
    """The whole patched tree."""
    return patched_vllm


def marker(tree: Path) -> dict[str, object]:
    space: dict[str, object] = {}
    exec((tree / MARKER).read_text(), space)
    return space


def test_the_series_names_every_patch() -> None:
    assert sorted(SERIES) == sorted(path.name for path in FOLDER.glob("*.patch"))


@pytest.mark.parametrize("name", SERIES)
def test_a_patch_says_why_and_when_to_drop_it(name: str) -> None:
    head = (FOLDER / name).read_text().split("\n--- ")[0]
    for field in ("Why", "Upstream", "Default", "Drop", "Tested"):
        assert re.search(rf"^{field}: \S", head, re.M), field


def test_patched_files_compile(tree: Path) -> None:
    for name in SERIES:
        for path in re.findall(r"^\+\+\+ b/(\S+)", (FOLDER / name).read_text(), re.M):
            compile((tree / path).read_text(), path, "exec")


def test_the_marker_names_known_options_and_reads_switches(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = marker(tree)
    assert set(space["PATCHES"]) <= set(UNBUILT)  # type: ignore[call-overload]
    option = space["option"]
    for text, want in (("", False), ("{}", False), ('{"free_indexer_logits": true}', True)):
        monkeypatch.setenv("SPARKLOOM_PATCHES", text)
        assert option("free_indexer_logits") is want  # type: ignore[operator]
    for text in ("[]", "1", "{", "free_indexer_logits"):
        monkeypatch.setenv("SPARKLOOM_PATCHES", text)
        with pytest.raises(ValueError, match="SPARKLOOM_PATCHES is not a JSON object"):
            option("free_indexer_logits")  # type: ignore[operator]


def test_the_indexer_is_stock_but_for_the_switched_statement(tree: Path, vllm_source: Path) -> None:
    found: list[ast.If] = []

    class Strip(ast.NodeTransformer):
        def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
            return None if node.module == "vllm._sparkloom_patches" else node

        def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
            return None if ast.unparse(node).startswith("_FREE_INDEXER_LOGITS = ") else node

        def visit_If(self, node: ast.If) -> ast.AST | None:
            if ast.unparse(node.test) == "_FREE_INDEXER_LOGITS":
                found.append(node)
                return None
            return self.generic_visit(node)

        def visit_For(self, node: ast.For) -> ast.AST:
            if "prefill_metadata.chunks" in ast.unparse(node.iter):
                at = next(i for i, part in enumerate(node.body) if "_FREE_INDEXER" in ast.unparse(part))
                later = [n for part in node.body[at + 1 :] for n in ast.walk(part)]
                assert not any(isinstance(n, ast.Name) and n.id == "logits" for n in later)
            return self.generic_visit(node)

    patched = Strip().visit(ast.parse((tree / INDEXER).read_text()))
    assert ast.dump(patched) == ast.dump(ast.parse((vllm_source / INDEXER).read_text()))
    assert [ast.unparse(part) for node in found for part in node.body] == ["logits = None"]


@pytest.mark.heavy
def test_patched_modules_import(tree: Path, run_in: Callable[..., str]) -> None:
    """In the real tree of the pinned version, against the CPU's torch (compiled parts are absent)."""
    pytest.importorskip("vllm", reason="no vLLM is installed: its dependencies are missing")
    paths = {
        p for name in SERIES for p in re.findall(r"^\+\+\+ b/(\S+)\.py", (FOLDER / name).read_text(), re.M)
    }
    names = sorted(path.replace("/", ".") for path in paths)
    code = f"import importlib\nfor n in {names!r}: print(importlib.import_module(n).__file__)\n"
    files = run_in(tree, code).split()
    assert [f for f in files if f.startswith(str(tree))] == [str(tree / f"{p}.py") for p in sorted(paths)]
