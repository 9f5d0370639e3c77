# `nix run .#demo` in a checkout: `make demo` with the tools that it needs. The demo model is served by vLLM's CPU build,
# which the Makefile installs into .venv from its own pinned list.
{
  writeShellApplication,
  bash,
  git,
  gnumake,
  iproute2,
  python312,
  stdenv,
}:
writeShellApplication {
  name = "sparkloom-demo";
  runtimeInputs = [
    bash
    git
    gnumake
    iproute2
    python312
    stdenv.cc
  ];
  text = ''
    if ! grep -q '^demo:' Makefile 2>/dev/null; then
        echo "error: no Makefile with a demo here" >&2
        echo "  mend: run this in a checkout of the repository" >&2
        exit 2
    fi
    exec make demo PYTHON=python3.12 "$@"
  '';
}
