# ExLlamaV3 with its extension compiled ahead of time. Its wheel carries the extension's sources; its own loader
# compiles them here, with its own flags, instead of at the first start on the machine.
{
  cudaPackages,
  gpuTarget,
  cuda-home,
}:
final: prev: {
  exllamav3 = prev.exllamav3.overridePythonAttrs (old: {
    nativeBuildInputs = (old.nativeBuildInputs or [ ]) ++ [
      cudaPackages.cuda_nvcc
      final.ninja
    ];
    postInstall = (old.postInstall or "") + ''
      export HOME=$TMPDIR TORCH_EXTENSIONS_DIR=$TMPDIR/extension TORCH_CUDA_ARCH_LIST=${gpuTarget} \
        CUDA_HOME=${cuda-home} MAX_JOBS=$NIX_BUILD_CORES
      PYTHONPATH=$out/${final.python.sitePackages}:$PYTHONPATH python -c 'import exllamav3.ext'
      built=$(find $TORCH_EXTENSIONS_DIR -name 'exllamav3_ext*.so')
      test -n "$built"
      install -m 0755 $built $out/${final.python.sitePackages}/
    '';
  });
}
