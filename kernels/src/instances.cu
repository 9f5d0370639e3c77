// All kernels of one bit rate and codebook family: compiled once for each with
// -DSPARKLOOM_BITS=K -DSPARKLOOM_FAMILY=sum|bytes.
#include <algorithm>

#include "fat.cuh"
#include "launch.h"
#include "reconstruct.cuh"
#include "thin.cuh"

namespace sparkloom {
#ifdef SPARKLOOM_GATE
// Tells the compile gate by its name what launch_fat asks for.
template <int Bytes>
__global__ void fat_shared_bytes() {}
template __global__ void fat_shared_bytes<Stage<SPARKLOOM_BITS>::kShared>();
#endif
namespace {

constexpr int K = SPARKLOOM_BITS;
constexpr Family F = Family::SPARKLOOM_FAMILY;
static_assert(Stage<K>::kShared <= 98 * 1024, "a block has 99 KB, and some of it is static");

// Launches with programmatic dependent launch: the grid may be set up while the one before still runs.
template <class Args>
void launch(void (*kernel)(Args), const Args& args, int grid, int threads, int shared, bool overlap,
            cudaStream_t stream) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
#ifdef SPARKLOOM_NO_PDL
  overlap = false;
#endif
  config.numAttrs = overlap ? 1 : 0;
  cudaLaunchKernelEx(&config, kernel, args);
}

template <class Args>
void launch_thin(void (*kernel)(Args), const Args& a, int sms, cudaStream_t stream) {
  launch(kernel, a, sms * kMaxThinBlocks, kThinThreads, 0, true, stream);
}

template <class Args>
void launch_fat(void (*kernel)(Args), const Args& a, int grid, bool overlap, cudaStream_t stream) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Stage<K>::kShared);
  launch(kernel, a, grid, kFatThreads, Stage<K>::kShared, overlap, stream);
}

}  // namespace

template <>
void Rate<K, F>::reconstruct(const uint32_t* w, void* out, Dtype t, int matrices, int k, int n,
                             const Codebook& cb, cudaStream_t stream) {
  // gridDim.y is limited to 65535: stacked matrices go in pieces
  const int all = matrices * (k / 16);
  for (int at = 0; at < all; at += 65535) {
    const dim3 grid(n / 128, std::min(65535, all - at));
    const size_t first = static_cast<size_t>(at) * (n / 16) * 8 * K;
    char* dst = static_cast<char*>(out) + static_cast<size_t>(at) * 16 * n * (t == Dtype::f32 ? 4 : 2);
    reconstruct_kernel<K, F><<<grid, 256, 0, stream>>>(w + first, dst, t, k, n, cb);
  }
}

template <>
void Rate<K, F>::thin_gate_up(const ThinArgs& a, int sms, cudaStream_t stream) {
  const bool eight = thin_rows_per_item(a.r.tokens) == 8;
  launch_thin(eight ? sparkloom::thin_gate_up<K, F, 1> : sparkloom::thin_gate_up<K, F, 2>, a, sms, stream);
}

template <>
void Rate<K, F>::thin_down(const ThinArgs& a, int sms, cudaStream_t stream) {
  const bool eight = thin_rows_per_item(a.r.tokens) == 8;
  launch_thin(eight ? sparkloom::thin_down<K, F, 1> : sparkloom::thin_down<K, F, 2>, a, sms, stream);
}

template <>
void Rate<K, F>::thin_dense(const DenseArgs& a, int sms, cudaStream_t stream) {
  launch_thin(sparkloom::thin_dense<K, F>, a, sms, stream);
}

template <>
void Rate<K, F>::fat_moe(const FatArgs& a, int sms, cudaStream_t stream) {
  launch_fat(a.w.shared_suh ? sparkloom::fat_moe<K, F, true> : sparkloom::fat_moe<K, F, false>, a,
             kFatBlocks * sms, false, stream);
}

template <>
void Rate<K, F>::fat_dense(const DenseArgs& a, int sms, cudaStream_t stream) {
  const int tiles = (a.m + kFatRows - 1) / kFatRows * ((a.n + 255) / 256);
  launch_fat(sparkloom::fat_dense<K, F>, a, std::min(tiles, kFatBlocks * sms), true, stream);
}

}  // namespace sparkloom
