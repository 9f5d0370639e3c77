// The prefill inner loop: up to 64 rows x (two strips of 128 columns), the trellis decoded on the fly.
//
// Eight warps; each owns 16 columns of both strips for all rows, so that a CTA decodes every weight once.
// Packed weights and activations come through a ring of shared-memory stages.
#pragma once
#include "codec.cuh"

namespace sparkloom {

constexpr int kFatThreads = 256;
constexpr int kStageK = 64;
constexpr int kEpilogueBytes = 2 * 32 * 132 * 4;  // 32 fp32 rows of both strips, staged over the ring
template <int K>
struct Stage {
  static constexpr int kRowBytes = kFatRows * kStageK * 2;  // activations
  static constexpr int kSliceBytes = 256 * K;               // one k-slice of one strip
  static constexpr int kBytes = kRowBytes + kStageK / 16 * 2 * kSliceBytes;
  static constexpr int kCount = 3;  // 48 KiB at K = 4: two CTAs fit where an SM has 100 KB
  static constexpr int kShared = kCount * kBytes > kEpilogueBytes ? kCount* kBytes : kEpilogueBytes;
};

// Rows [first, first + 16 RB) of a ring of `ring` rows of `pitch` halves.
struct RowSource {
  const half* base;
  int pitch, first, ring;
};

// acc[strip][8-row block][4]; w = first tile of the CTA's strip 0 at k = 0, strip_step = words from there to
// strip 1's. With P = 1 only strip 0 is computed.
template <int K, Family F, int RB, int P>
__device__ __forceinline__ void tile_mma(float (&acc)[2][2 * RB][4], const uint32_t* w, int strip_step,
                                         int stride, const RowSource& src, int slices, unsigned char* shared,
                                         const Lane<K>& ln, const Codebook& cb) {
  using S = Stage<K>;
  constexpr int kRowCopies = (RB + 1) / 2;
  constexpr int kChunks = S::kSliceBytes / 16, kWeightChunks = 4 * P * kChunks;  // of 16 bytes, per stage
  constexpr int kWeightCopies = (kWeightChunks + kFatThreads - 1) / kFatThreads;
  const uint32_t smem = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, copy_row = tid >> 3, copy_chunk = tid & 7;
  uint32_t from[kRowCopies];  // in units of 16 bytes
#pragma unroll
  for (int i = 0; i < kRowCopies; ++i)
    from[i] = (src.first + copy_row + 32 * i) % src.ring * (src.pitch / 8) + copy_chunk;
  const uint32_t to = smem + copy_row * (kStageK * 2) + ((copy_chunk ^ (copy_row & 7)) << 4);
  // Chunk c of a stage: part c / kChunks = slice x P + strip. Where 256 chunks are whole slices, one offset
  // will do.
  constexpr bool kWhole = kFatThreads % (P * kChunks) == 0;
  uint32_t weight_from[kWhole ? 1 : kWeightCopies];
#pragma unroll
  for (int i = 0; i < (kWhole ? 1 : kWeightCopies); ++i) {
    const int c = tid + i * kFatThreads, part = c / kChunks;
    weight_from[i] = (part / P * stride + part % P * strip_step) / 4 + c % kChunks;
  }
  auto weight_at = [&](int i) {
    return kWhole ? weight_from[0] + i * (kFatThreads / (P * kChunks)) * (stride / 4)
                  : weight_from[kWhole ? 0 : i];
  };
  const int steps = slices / (kStageK / 16);
  auto issue = [&](int step, int slot) {
    if (step < steps) {
      const uint32_t base = slot * S::kBytes;
#pragma unroll
      for (int i = 0; i < kWeightCopies; ++i)
        if (kWeightChunks % kFatThreads == 0 || tid + i * kFatThreads < kWeightChunks)
          copy16_async(smem + base + S::kRowBytes + (tid + i * kFatThreads) * 16,
                       reinterpret_cast<const uint4*>(w) + weight_at(i) + step * stride);
#pragma unroll
      for (int i = 0; i < kRowCopies; ++i)
        copy16_async(to + base + i * 32 * kStageK * 2,
                     reinterpret_cast<const uint4*>(src.base) + from[i] + step * (kStageK / 8));
    }
    copy_commit();
  };
#pragma unroll
  for (int s = 0; s < S::kCount - 1; ++s) issue(s, s);

  // ldmatrix: lane l addresses row l % 8 (+ 8 for the upper half of lanes) and k half (l / 8) % 2
  const int frag_row = (lane & 7) + ((lane >> 4) << 3), frag_half = (lane >> 3) & 1;
  const uint32_t frag = smem + frag_row * (kStageK * 2);
  const int swizzle = frag_row & 7;
  int slot = 0;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    copy_wait<S::kCount - 2>();
    __syncthreads();
    issue(step + S::kCount - 1, slot == 0 ? S::kCount - 1 : slot - 1);
    const uint32_t stage = frag + slot * S::kBytes;
    const auto* tiles =
        reinterpret_cast<const uint32_t*>(shared + slot * S::kBytes + S::kRowBytes) + warp * 8 * K;
    slot = slot + 1 == S::kCount ? 0 : slot + 1;
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      // activations of the first row block are under way while the weights are decoded
      uint32_t b[2][4];
      auto fetch = [&](int r) {
        ldmatrix4(b[r & 1], stage + r * 16 * kStageK * 2 + (((2 * s + frag_half) ^ swizzle) << 4));
      };
      uint32_t a[P][4], words[P][Lane<K>::kSharedWords];
#pragma unroll
      for (int p = 0; p < P; ++p) ln.load_shared(words[p], tiles + (s * P + p) * (S::kSliceBytes / 4));
      fetch(0);
#pragma unroll
      for (int p = 0; p < P; ++p) decode_tile<K, F>(a[p], words[p], ln, cb);
      if (RB > 1) fetch(1);
#pragma unroll
      for (int r = 0; r < RB; ++r) {
#pragma unroll
        for (int p = 0; p < P; ++p) {
          mma(acc[p][2 * r], a[p][0], a[p][1], a[p][2], a[p][3], b[r & 1][0], b[r & 1][1]);
          mma(acc[p][2 * r + 1], a[p][0], a[p][1], a[p][2], a[p][3], b[r & 1][2], b[r & 1][3]);
        }
        if (r + 2 < RB) fetch(r + 2);
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
  for (int part = 0; part < (RB + 1) / 2; ++part) {
    if (part * 32 >= rows) break;
    float* s = stage + 2 * (lane & 3) * kPitch + warp * 16 + (lane >> 2);
#pragma unroll
    for (int p = 0; p < 2; ++p)
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        if (part * 4 + b >= 2 * RB) break;
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
