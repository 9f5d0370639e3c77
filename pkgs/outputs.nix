# The flake's outputs. Everything is a function of the inputs; nothing asks which machine evaluates it.
inputs@{ self, nixpkgs, ... }:
let
  inherit (nixpkgs) lib;
  systems = [
    "aarch64-linux"
    "x86_64-linux"
  ];
  forSystems = lib.genAttrs systems;
  pkgsFor = forSystems (
    system:
    import nixpkgs {
      inherit system;
      config = import ./config.nix { inherit lib; };
      overlays = [ self.overlays.default ];
    }
  );

  # The modules with the packages of this flake as defaults. The packages keep their own nixpkgs settings (CUDA 13.0,
  # 12.1a), whatever the host's nixpkgs says, so that NixOS, DGX OS and the image run one and the same closure.
  withPackages =
    path:
    { pkgs, ... }:
    {
      imports = [ path ];
      services.sparkloom = {
        package = lib.mkDefault self.packages.${pkgs.stdenv.hostPlatform.system}.python-env;
        validator = lib.mkDefault self.packages.${pkgs.stdenv.buildPlatform.system}.sparkloom;
      };
    };
  host = path: lib.nixosSystem { modules = [ path ]; };
in
{
  overlays.default = import ./overlay.nix inputs;

  packages = forSystems (
    system:
    let
      own = pkgsFor.${system}.sparkloomPackages;
    in
    {
      inherit (own)
        exllamav3
        flashinfer
        image
        image-report
        python-env
        python-env-wheel
        sparkloom
        sparkloom-kernels
        vllm
        vllm-wheel
        ;
      kernels = own.sparkloom-kernels;
      default = own.sparkloom;
    }
  );

  nixosModules = {
    default = withPackages ../modules;
    fabric = withPackages ../modules/fabric.nix;
    host = withPackages ../modules/host.nix;
    gateway = withPackages ../modules/gateway;
    monitoring = withPackages ../modules/monitoring;
    # The hardware module of nixos-dgx-spark, imported as it is.
    dgx-spark = {
      imports = [ (inputs.nixos-dgx-spark + "/modules/dgx-spark.nix") ];
    };
    disko = {
      imports = [ (inputs.disko + "/module.nix") ];
    };
  };

  nixosConfigurations =
    let
      parts = {
        imports = [
          self.nixosModules.default
          self.nixosModules.dgx-spark
          self.nixosModules.disko
        ];
      };
      named = path: host { imports = [ parts path ]; };
    in
    {
      spark-head = named ../hosts/spark-head.nix;
      spark-worker = named ../hosts/spark-worker.nix;
    };

  checks = forSystems (
    system:
    import ./checks {
      inherit self lib system;
      pkgs = pkgsFor.${system};
    }
  );

  apps = forSystems (
    system:
    let
      own = pkgsFor.${system}.sparkloomPackages;
      app = description: package: {
        type = "app";
        program = lib.getExe package;
        meta = { inherit description; };
      };
    in
    {
      default = app "The sparkloom command" own.sparkloom;
      sparkloom = app "The sparkloom command" own.sparkloom;
      preflight = app "Check this machine against a cluster file" own.preflight;
      demo = app "Serve a small model on a pair of two nodes on this machine" own.demo;
      update-pins = app "Move every pin of the flake" own.update-pins;
    }
  );

  devShells = forSystems (system: {
    default = pkgsFor.${system}.sparkloomPackages.devShell;
  });

  formatter = forSystems (system: pkgsFor.${system}.nixfmt);

  templates = rec {
    pair = {
      path = ../hosts/template;
      description = "A pair of DGX Sparks of your own: one cluster file, two hosts";
    };
    default = pair;
  };
}
