{
  description = "Sparkloom: two DGX Sparks as one dependable OpenAI-compatible server of EXL3 models on vLLM";

  inputs = {
    nixpkgs.url = "github:NixOS/nixpkgs/nixos-26.05";

    # Read as plain trees: only the parts that are imported are used, and none of their own inputs is locked.
    poetry2nix = {
      url = "github:nix-community/poetry2nix";
      flake = false;
    };
    nixos-dgx-spark = {
      url = "github:graham33/nixos-dgx-spark";
      flake = false;
    };
    disko = {
      url = "github:nix-community/disko";
      flake = false;
    };

    # What vLLM's CMake files fetch while it builds, at the revisions they name. vLLM itself and ExLlamaV3 come from
    # the Python lock and pkgs/sources.nix.
    cutlass = {
      url = "github:NVIDIA/cutlass/v4.7.1";
      flake = false;
    };
    deepgemm = {
      type = "git";
      url = "https://github.com/vllm-project/DeepGEMM";
      rev = "0820030756945b2daec208e8e8255268360f337d";
      allRefs = true;
      submodules = true;
      flake = false;
    };
    deepselect = {
      type = "git";
      url = "https://github.com/vllm-project/DeepSelect";
      rev = "d96d33afe1fab0d6066da49cdc91e64c2bee65ea";
      allRefs = true;
      submodules = true;
      flake = false;
    };
    flash-attention = {
      type = "git";
      url = "https://github.com/vllm-project/flash-attention";
      rev = "b273a02621d3c94bc747df67204f591b67f38fae";
      allRefs = true;
      submodules = true;
      flake = false;
    };
    flashkda = {
      type = "git";
      url = "https://github.com/vllm-project/FlashKDA";
      rev = "17a037d98da546deb4591e967cf961a43c034d8b";
      allRefs = true;
      submodules = true;
      flake = false;
    };
    flashmla = {
      type = "git";
      url = "https://github.com/vllm-project/FlashMLA";
      rev = "e2afa5fd8c220fbd05fe03fc24c9d5e64c24641b";
      allRefs = true;
      submodules = true;
      flake = false;
    };
    msa = {
      type = "git";
      url = "https://github.com/vllm-project/MSA";
      rev = "968061ab16cb14991a5c7d4c0e8eabf531be0dcf";
      allRefs = true;
      submodules = true;
      flake = false;
    };
    qutlass = {
      url = "github:IST-DASLab/qutlass/e74319e3405ce6d71965732880f5dc1f52371f64";
      flake = false;
    };
    tml-fa4 = {
      type = "git";
      url = "https://github.com/vllm-project/tml-fa4";
      rev = "75765e76a9c2c012c1f6ecd64577eb646eb4d303";
      allRefs = true;
      submodules = true;
      flake = false;
    };
  };

  outputs = inputs: import ./pkgs/outputs.nix inputs;
}
