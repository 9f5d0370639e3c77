# Every package of this project; `self.callPackage` finds nixpkgs' packages and the ones here.
inputs: self:
let
  inherit (self) callPackage;
  # callPackage adds `override` and the like to an attribute set; here only the data is wanted.
  data = path: arguments: removeAttrs (callPackage path arguments) [ "override" "overrideDerivation" ];
in
{
  # The GB10. "a" code is for exactly this chip; sm_120 code without it would run, but without its matrix instructions.
  gpuTarget = "12.1a";

  cuda-home = callPackage ./cuda-home.nix { };
  pins = data ./sources.nix { };
  # Sources that vLLM's CMake files would otherwise download, by the environment variable that names each folder.
  vllmSources = data ./vllm/sources.nix { inherit inputs; };
  poetry2nix = callPackage ({ pkgs }: import inputs.poetry2nix { inherit pkgs; }) { };

  # Interpreter and packages of the lock: for the command line alone, with vLLM from source, with vLLM's own wheel.
  cliPython = callPackage ./python-env/packages.nix { groups = [ "main" ]; };
  sourcePython = callPackage ./python-env/packages.nix { };
  wheelPython = callPackage ./python-env/packages.nix { vllmFromSource = false; };

  sparkloom = callPackage ./sparkloom.nix { pythonPackages = self.cliPython; };
  sparkloom-kernels = callPackage ./kernels.nix { };
  vllm = self.sourcePython.python.pkgs.vllm;
  vllm-wheel = self.wheelPython.python.pkgs.vllm;
  exllamav3 = self.sourcePython.python.pkgs.exllamav3;
  flashinfer = self.sourcePython.python.pkgs.flashinfer-python;
  python-env = callPackage ./python-env { pythonPackages = self.sourcePython; };
  python-env-wheel = callPackage ./python-env { pythonPackages = self.wheelPython; };

  image = callPackage ./image { };
  image-report = callPackage ./image/report.nix { };

  preflight = callPackage ./apps/preflight.nix { };
  demo = callPackage ./apps/demo.nix { };
  update-pins = data ./apps/update-pins.nix { };
  devShell = callPackage ./dev-shell.nix { };
}
