# Derivations that are really built, on this machine's own tools, through the mock package set of the evaluation tree.
{ tree }:
let
  flake = import ./flake.eval.nix { inherit tree; };
  lib = import (tree + "/nixpkgs-mini/lib");
  pkgs = import (tree + "/nixpkgs-mini") {
    system = "x86_64-linux";
    config = import ../../pkgs/config.nix { inherit lib; };
    overlays = [ flake.overlays.default ];
  };
  own = pkgs.sparkloomPackages;
  # The mock's setuptools is the host's, which may be too old for pyproject.toml; the lock has one that is not.
  lock = builtins.fromTOML (builtins.readFile ../../pkgs/python-env/poetry.lock);
  locked = lib.findFirst (package: package.name == "setuptools") null lock.package;
  wheel = lib.findFirst (entry: lib.hasSuffix ".whl" entry.file) null locked.files;
  setuptools = own.cliPython.python.pkgs.buildPythonPackage {
    pname = "setuptools";
    inherit (locked) version;
    format = "wheel";
    src = pkgs.fetchurl {
      name = wheel.file;
      url = "https://example.org/${wheel.file}";
      sha256 = lib.removePrefix "sha256:" wheel.hash;
    };
  };
  recent =
    package:
    package.overridePythonAttrs (old: {
      nativeBuildInputs = (old.nativeBuildInputs or [ ]) ++ [ setuptools ];
    });
  # The environment of the command line in place of the one with CUDA: the same expressions, without the gigabytes.
  light = own.python-env.override {
    pythonPackages = own.cliPython;
    sparkloom-kernels = pkgs.emptyDirectory;
    amend = recent;
  };
  file = package: {
    inherit (package) pname version;
    file = package.src.name;
  };
in
{
  # What pip must bring before the environment can be built without a network.
  wheels = map file (builtins.filter (package: package ? src) own.cliPython.poetryPackages ++ [ setuptools ]);

  kernels = own.sparkloom-kernels.override {
    torch = null;
    bits = 4;
  };
  sparkloom = recent own.sparkloom;
  image = own.image.override {
    python-env = light;
    image-report = own.image-report.override { python-env = light; };
  };
  report = own.image-report.override { python-env = light; };

  # Names of everything in the serving environment.
  environment = map (package: package.pname) (
    builtins.filter (package: package != null) own.sourcePython.poetryPackages
  );
  cuda = pkgs.cudaPackages.cudaMajorMinorVersion;
  flashinfer = {
    inherit (own.flashinfer) version gpuTarget postInstall;
    inside = own.flashinfer == own.sourcePython.python.pkgs.flashinfer-python;
  };
  vllm = {
    inherit (own.vllm) version;
    source = own.vllm.src.name;
    arch = own.vllm.TORCH_CUDA_ARCH_LIST;
    folders = builtins.attrNames own.vllmSources;
    wheel = own.vllm-wheel.src.name;
  };
}
