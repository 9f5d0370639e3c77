# FlashInfer with the modules that are called on a GB10 compiled ahead of time: otherwise the first start compiles them
# for minutes, which counts against the time limits of a start and of the first request.
{
  cudaPackages,
  gpuTarget,
  cuda-home,
}:
final: prev: {
  flashinfer-python = prev.flashinfer-python.overridePythonAttrs (old: {
    nativeBuildInputs = (old.nativeBuildInputs or [ ]) ++ [
      cudaPackages.cuda_nvcc
      final.ninja
    ];
    # The script also refuses a module without code for this chip: it would load and fail at the first request.
    postInstall = (old.postInstall or "") + ''
      export HOME=$TMPDIR FLASHINFER_WORKSPACE_BASE=$TMPDIR FLASHINFER_CUDA_ARCH_LIST=${gpuTarget} \
        CUDA_HOME=${cuda-home} MAX_JOBS=$NIX_BUILD_CORES
      PYTHONPATH=$out/${final.python.sitePackages}:$PYTHONPATH python ${./compile.py}
    '';
    passthru = (old.passthru or { }) // {
      inherit gpuTarget;
    };
  });
}
