# The serving environment: interpreter, vLLM, this project, its kernels. `bin/sparkloom agent` is what a node runs.
{
  lib,
  callPackage,
  makeWrapper,
  symlinkJoin,
  pythonPackages,
  cudaPackages,
  sparkloom-kernels,
  rdma-core,
  stdenv,
  # Last change to this project's package, for package sets that need one.
  amend ? (project: project),
}:
let
  project = amend (
    callPackage ../sparkloom.nix {
      inherit pythonPackages;
      library = true;
    }
  );
  # Wheels of one vendor share folders and even files (nvidia/__init__.py).
  environment = (pythonPackages.python.withPackages (_: pythonPackages.poetryPackages ++ [ project ])).override {
    ignoreCollisions = true;
  };
  nvcc = lib.getBin cudaPackages.cuda_nvcc;
in
symlinkJoin {
  name = "sparkloom-env-${project.version}";
  paths = [ environment ];
  nativeBuildInputs = [ makeWrapper ];
  # vLLM, Triton, TileLang and DeepGEMM compile at run time and look for the toolkit by these names; NCCL opens
  # libibverbs by its bare name, and a missing one would mean a silent fall back to TCP.
  postBuild = ''
    wrap() {
      rm -f $out/bin/$2
      makeWrapper ${environment}/bin/$1 $out/bin/$2 "''${@:3}" \
        --set-default CUDA_HOME ${nvcc} \
        --set-default TRITON_PTXAS_PATH ${nvcc}/bin/ptxas \
        --set-default TRITON_LIBCUDA_PATH /run/opengl-driver/lib \
        --set-default SPARKLOOM_KERNELS ${sparkloom-kernels}/lib \
        --prefix PATH : ${lib.makeBinPath [ stdenv.cc nvcc ]} \
        --prefix LD_LIBRARY_PATH : /run/opengl-driver/lib:${lib.makeLibraryPath [ rdma-core stdenv.cc.cc ]}
    }
    wrap python3 sparkloom --add-flags "-m sparkloom"
    for program in python python3 vllm; do
      if [ -e $out/bin/$program ]; then wrap $program $program --inherit-argv0; fi
    done
  '';
  passthru = {
    inherit environment project;
    inherit (pythonPackages) python;
  };
  meta = {
    description = "Serving environment of Sparkloom";
    license = lib.licenses.mit;
    mainProgram = "sparkloom";
    platforms = lib.platforms.linux;
  };
}
