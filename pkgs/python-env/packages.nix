# The packages of python/poetry.lock through poetry2nix: wheels preferred, no import from a derivation.
# poetry.lock here is python/poetry.lock after prune.py, which says why.
{
  lib,
  callPackage,
  poetry2nix,
  python312,
  groups ? [
    "main"
    "serve"
    "exllamav3"
  ],
  vllmFromSource ? true,
}:
let
  # poetry2nix takes functions only, and callPackage returns a set that can be called.
  overlay =
    path:
    let
      function = callPackage path { };
    in
    final: prev: function final prev;
in
poetry2nix.mkPoetryPackages {
  pyproject = ../../python/pyproject.toml;
  poetrylock = ./poetry.lock;
  pwd = ../../python;
  python = python312;
  preferWheels = true;
  checkGroups = [ ];
  inherit groups;
  overrides =
    # Before poetry2nix' own overrides, which look at whether the source is a wheel.
    lib.optional (lib.elem "serve" groups && vllmFromSource) (
      _: prev: { vllm = prev.vllm.override { preferWheel = false; }; }
    )
    ++ [
      poetry2nix.defaultPoetryOverrides
      (overlay ./cuda-wheels.nix)
    ]
    ++ lib.optional (lib.elem "serve" groups) (
      overlay (if vllmFromSource then ../vllm else ../vllm/wheel.nix)
    )
    ++ lib.optional (lib.elem "serve" groups) (overlay ../flashinfer)
    ++ lib.optional (lib.elem "exllamav3" groups) (overlay ../exllamav3.nix);
}
