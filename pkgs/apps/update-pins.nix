# `nix run .#update-pins` in a checkout: moves every pin, one after the other, and says what is left to do by hand.
{
  writeShellApplication,
  nix,
  poetry,
  python312,
}:
writeShellApplication {
  name = "sparkloom-update-pins";
  runtimeInputs = [
    nix
    poetry
    (python312.withPackages (packages: [ packages.packaging ]))
  ];
  text = ''
    if [[ ! -f flake.nix || ! -f python/poetry.lock ]]; then
        echo "error: this is not the root of a checkout" >&2
        echo "  mend: cd to the folder with flake.nix" >&2
        exit 2
    fi
    nix flake update
    (cd python && poetry lock --regenerate)
    python3 pkgs/python-env/prune.py python/poetry.lock
    echo "moved: flake.lock, python/poetry.lock, pkgs/python-env/poetry.lock"
    echo "by hand: the versions in python/pyproject.toml, the revisions in flake.nix and the tag in pkgs/sources.nix"
    echo "  must be those that vLLM's CMake files name; then write each new hash and its origin into pkgs/pins.json."
    echo "proof: pytest tests/nix/test_nix_lock.py tests/nix/test_nix_poetry.py"
  '';
}
