"""Options that need a patched vLLM: taken where the vLLM carries the patch, refused where it does not."""

from __future__ import annotations

import importlib
import sys
import types

import pytest

from sparkloom.vllm.hooks.shape import HookRefused

module = importlib.import_module("sparkloom.vllm.hooks.install")


def test_an_option_is_taken_only_where_its_patch_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_installed", {})
    marker = types.ModuleType("vllm._sparkloom_patches")
    marker.PATCHES = ("free_indexer_logits",)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", types.ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm._sparkloom_patches", marker)
    assert module.install({"free_indexer_logits": True}) == {"free_indexer_logits": True}
    monkeypatch.setitem(module.UNBUILT, "another", "nothing else does it")
    with pytest.raises(HookRefused, match="another"):
        module.install({"another": True})
    marker.PATCHES = ()  # type: ignore[attr-defined]
    with pytest.raises(HookRefused, match="free_indexer_logits"):
        module.install({"free_indexer_logits": True})


def test_a_stock_vllm_carries_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", types.ModuleType("vllm"))
    monkeypatch.delitem(sys.modules, "vllm._sparkloom_patches", raising=False)
    assert module.patched() == ()
