# The fast tests of the Python package, in its locked environment.
{
  lib,
  runCommand,
  cliPython,
  git,
  iproute2,
}:
let
  interpreter =
    (cliPython.python.withPackages (
      packages:
      cliPython.poetryPackages
      ++ [
        packages.pytest
        packages.hypothesis
      ]
    )).override
      { ignoreCollisions = true; };
  root = ../..;
  source = lib.cleanSourceWith {
    name = "sparkloom-tests";
    src = root;
    filter =
      path: _:
      let
        inside = lib.removePrefix (toString root + "/") (toString path);
      in
      lib.any (folder: inside == folder || lib.hasPrefix (folder + "/") inside) [
        "python"
        "tests"
        "docs"
        "Makefile"
        "README.md"
      ];
  };
in
runCommand "sparkloom-check-python"
  {
    nativeBuildInputs = [
      interpreter
      git
      iproute2
    ];
  }
  ''
    cp -r --no-preserve=mode ${source} work && cd work
    export HOME=$TMPDIR PYTHONPATH=$PWD/python/src
    python -m pytest -c python/pyproject.toml --rootdir=. -p no:cacheprovider -m "not heavy and not root and not gpu" \
      tests/cluster tests/pair tests/plan tests/units
    touch $out
  ''
