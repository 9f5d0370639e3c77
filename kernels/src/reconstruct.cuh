// Trellis -> fp16 / bf16 / fp32 weights in the rotated basis, bit-exact to the format.
#pragma once
#include "codec.cuh"

namespace sparkloom {

// One CTA per 16 x 128 block: each warp decodes one tile, the CTA writes whole rows.
template <int K, Family F>
__global__ void __launch_bounds__(256)
    reconstruct_kernel(const uint32_t* w, void* out, Dtype t, int k, int n, Codebook cb) {
  __shared__ __align__(16) half tile[16][136];
  const Lane<K> ln(threadIdx.x & 31);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, q = lane & 3;
  const size_t row_block = blockIdx.y;  // over all matrices: they are stacked along k
  uint32_t words[Lane<K>::kWords], a[4];
  ln.load(words, w + (row_block * (n / 16) + blockIdx.x * 8 + warp) * 8 * K);
  decode_tile<K, F>(a, words, ln, cb);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const half2 h = *reinterpret_cast<half2*>(&a[i]);
    const int row = 2 * q + 8 * (i >> 1), col = warp * 16 + g + 8 * (i & 1);
    tile[row][col] = __low2half(h);
    tile[row + 1][col] = __high2half(h);
  }
  __syncthreads();
#pragma unroll
  for (int i = threadIdx.x; i < 16 * 32; i += 256) {
    const int row = i >> 5, col = (i & 31) * 4;
    store4(out, t, (row_block * 16 + row) * n + blockIdx.x * 128 + col, load4h(&tile[row][col]));
  }
}

}  // namespace sparkloom
