// The prefill inner loop: up to 128 rows x (two strips of 128 columns), the trellis decoded on the fly.
//
// Eight warps; each owns 16 columns of both strips for all rows, so that a CTA decodes every weight once.
// Activations come through a ring of shared-memory stages, weights straight into registers.
#pragma once
#include "codec.cuh"

namespace sparkloom {

constexpr int kFatThreads = 256;
constexpr int kStageK = 64, kStages = 4;
constexpr int kStageBytes = kFatRows * kStageK * 2;
constexpr int kFatShared = kStages * kStageBytes;  // 64 KiB; the epilogue stages fp32 rows in it

// Rows [first, first + 16 RB) of a ring of `ring` rows of `pitch` halves.
struct RowSource {
  const half* base;
  size_t pitch;
  int first, ring;
};

// acc[strip][8-row block][4]; w[strip] = first tile of the warp's column block at k = 0.
// With P = 1 only strip 0 is computed.
template <int K, Family F, int RB, int P>
__device__ __forceinline__ void tile_mma(float (&acc)[2][2 * RB][4], const uint32_t* const (&w)[2],
                                         size_t stride, const RowSource& src, int slices, uint32_t smem,
                                         const Lane<K>& ln, const Codebook& cb) {
  constexpr int W = Lane<K>::kWords, kCopies = RB / 2;
  const int tid = threadIdx.x, lane = tid & 31;
  const int copy_row = tid >> 3, copy_chunk = tid & 7;
  const half* from[kCopies];
  uint32_t to[kCopies];
#pragma unroll
  for (int i = 0; i < kCopies; ++i) {
    const int r = copy_row + 32 * i;
    const int row = (src.first + r) % src.ring;
    from[i] = src.base + row * src.pitch + copy_chunk * 8;
    to[i] = smem + r * (kStageK * 2) + ((copy_chunk ^ (r & 7)) << 4);
  }
  const int steps = slices / (kStageK / 16);
  auto issue = [&](int step) {
    if (step < steps) {
#pragma unroll
      for (int i = 0; i < kCopies; ++i)
        copy16_async(to[i] + (step % kStages) * kStageBytes, from[i] + step * kStageK);
    }
    copy_commit();
  };
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) issue(s);

  uint32_t buf[4][P][W];
#pragma unroll
  for (int s = 0; s < 4; ++s)
#pragma unroll
    for (int p = 0; p < P; ++p) ln.load(buf[s][p], w[p] + s * stride);
  // ldmatrix: lane l addresses row l % 8 (+ 8 for the upper half of lanes) and k half (l / 8) % 2
  const int frag_row = (lane & 7) + ((lane >> 4) << 3), frag_half = (lane >> 3) & 1;
  const uint32_t frag = smem + frag_row * (kStageK * 2);
  const int swizzle = frag_row & 7;
  size_t ahead = 4 * stride;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    copy_wait<kStages - 2>();
    __syncthreads();
    issue(step + kStages - 1);
    const uint32_t stage = frag + (step % kStages) * kStageBytes;
    const bool more = step + 1 < steps;
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      uint32_t a[P][4];
#pragma unroll
      for (int p = 0; p < P; ++p) {
        decode_tile<K, F>(a[p], buf[s][p], ln, cb);
        if (more) ln.load(buf[s][p], w[p] + ahead);
      }
      ahead += stride;
#pragma unroll
      for (int r = 0; r < RB; ++r) {
        uint32_t b[4];
        ldmatrix4(b, stage + r * 16 * kStageK * 2 + (((2 * s + frag_half) ^ swizzle) << 4));
#pragma unroll
        for (int p = 0; p < P; ++p) {
          mma(acc[p][2 * r], a[p][0], a[p][1], a[p][2], a[p][3], b[0], b[1]);
          mma(acc[p][2 * r + 1], a[p][0], a[p][1], a[p][2], a[p][3], b[2], b[3]);
        }
      }
    }
  }
  copy_wait<0>();
  __syncthreads();
}

// Hands the accumulators out row by row: finish(row, strip0, strip1), 4 columns per lane, one warp per row.
template <int RB, class Finish>
__device__ __forceinline__ void tile_rows(const float (&acc)[2][2 * RB][4], float* stage, int rows,
                                          Finish finish) {
  constexpr int kPitch = 132, kStrip = 32 * kPitch;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
  for (int part = 0; part < RB / 2; ++part) {
    if (part * 32 >= rows) break;
    float* s = stage + 2 * (lane & 3) * kPitch + warp * 16 + (lane >> 2);
#pragma unroll
    for (int p = 0; p < 2; ++p)
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        float* d = s + p * kStrip + b * 8 * kPitch;
        const float(&c)[4] = acc[p][part * 4 + b];
        d[0] = c[0];
        d[kPitch] = c[1];
        d[8] = c[2];
        d[8 + kPitch] = c[3];
      }
    __syncthreads();
#pragma unroll 2
    for (int r = warp; r < 32; r += 8) {
      const int row = part * 32 + r;
      if (row < rows) {
        const float* d = stage + r * kPitch + 4 * lane;
        finish(row, *reinterpret_cast<const float4*>(d), *reinterpret_cast<const float4*>(d + kStrip));
      }
    }
    __syncthreads();
  }
}

}  // namespace sparkloom
