# Folder of each source that vLLM's CMake files would download, by the variable that they read.
{ runCommand, pins, inputs }:
{
  VLLM_CUTLASS_SRC_DIR = inputs.cutlass;
  DEEPGEMM_SRC_DIR = inputs.deepgemm;
  DEEPSELECT_SRC_DIR = inputs.deepselect;
  FLASH_KDA_SRC_DIR = inputs.flashkda;
  FLASH_MLA_SRC_DIR = inputs.flashmla;
  FMHA_SM100_SRC_DIR = inputs.msa;
  QUTLASS_SRC_DIR = inputs.qutlass;
  TML_FA4_SRC_DIR = inputs.tml-fa4;
  TRITON_KERNELS_SRC_DIR = runCommand "triton-kernels-source" { } ''
    mkdir -p $out
    tar -xzf ${pins.triton.src} -C $out --strip-components=4 triton-${pins.triton.version}/python/triton_kernels/triton_kernels
  '';
  VLLM_FLASH_ATTN_SRC_DIR = inputs.flash-attention;
}
