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

// Rows [first, first + rows) of a ring of `ring` rows of `pitch` halves.
struct RowSource {
  const half* base;
  int pitch, first, rows, ring;
};

constexpr int kBlocks = kFatRows / 8;   // blocks of 8 rows, the width of an MMA
using TileSums = float[2][kBlocks][4];  // [strip][block][accumulator]

// Sums of NB blocks of 8 rows; w = first tile of the CTA's strip 0 at k = 0, strip_step = words from there to
// strip 1's. With P = 1 only strip 0 is computed.
template <int K, Family F, int NB, int P>
__device__ __forceinline__ void tile_mma(TileSums& acc, unsigned char* shared, const uint32_t* w,
                                         int strip_step, int stride, const RowSource& src, int slices,
                                         const Codebook& cb) {
  using S = Stage<K>;
  constexpr int kPairs = (NB + 1) / 2, kRowCopies = (NB + 3) / 4;
  constexpr int kFragments = P == 2 ? 2 : 1;          // pairs of row blocks in flight
  constexpr int kChunks = S::kSliceBytes / 16;        // of 16 bytes, per slice and strip
  constexpr int kMost = kFatThreads / (P * kChunks);  // whole slices that the threads can copy at once
  constexpr int kTogether = kMost >= 4 ? 4 : kMost >= 2 ? 2 : 1;
  const uint32_t smem = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int tid = fresh_thread(), lane = tid & 31, warp = tid >> 5, copy_row = tid >> 3, copy_chunk = tid & 7;
  const Lane<K> ln(lane);
  // One pointer that moves on with each stage, and the other row's distance. Rows behind the last stay as
  // they are in shared memory: nobody looks at their sums.
  const half* row_from;
  int row_apart = 0;
  const bool there = copy_row<src.rows, there_too = kRowCopies> 1 && copy_row + 32 < src.rows;
  {
    const int r = (src.first + copy_row) % src.ring, second = (src.first + copy_row + 32) % src.ring;
    row_from = src.base + static_cast<size_t>(r) * src.pitch + copy_chunk * 8;
    if (kRowCopies > 1) row_apart = (second - r) * src.pitch;
  }
  const uint32_t to = smem + copy_row * (kStageK * 2) + ((copy_chunk ^ (copy_row & 7)) << 4);
  // Chunk c of a stage: part c / kChunks = slice x P + strip.
  const bool copies = tid < kTogether * P * kChunks;
  const int part = tid / kChunks;
  const uint32_t* weight_from = w + part / P * stride + part % P * strip_step + tid % kChunks * 4;
  const int steps = slices / (kStageK / 16);
  auto issue = [&](int step, int slot) {
    if (step < steps) {
      const uint32_t base = slot * S::kBytes;
#pragma unroll
      for (int i = 0; i < 4 / kTogether; ++i)
        if (copies)
          copy16_async(smem + base + S::kRowBytes + (i * kTogether * P * kChunks + tid) * 16,
                       weight_from + i * kTogether * stride);
      if (there) copy16_async(to + base, row_from);
      if (there_too) copy16_async(to + base + 32 * kStageK * 2, row_from + row_apart);
      row_from += kStageK;
      weight_from += 4 * stride;
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
      uint32_t b[kFragments][4];
      auto fetch = [&](int r) {
        ldmatrix4(b[r % kFragments], stage + r * 16 * kStageK * 2 + (((2 * s + frag_half) ^ swizzle) << 4));
      };
      uint32_t a[P][4], words[P][Lane<K>::kSharedWords];
#pragma unroll
      for (int p = 0; p < P; ++p) ln.load_shared(words[p], tiles + (s * P + p) * (S::kSliceBytes / 4));
      fetch(0);
#pragma unroll
      for (int p = 0; p < P; ++p) decode_tile<K, F>(a[p], words[p], ln, cb);
      if (kPairs > 1 && kFragments > 1) fetch(1);
#pragma unroll
      for (int r = 0; r < kPairs; ++r) {
        const auto& f = b[r % kFragments];
#pragma unroll
        for (int p = 0; p < P; ++p) {
          mma(acc[p][2 * r], a[p][0], a[p][1], a[p][2], a[p][3], f[0], f[1]);
          if (2 * r + 1 < NB) mma(acc[p][2 * r + 1], a[p][0], a[p][1], a[p][2], a[p][3], f[2], f[3]);
        }
        if (r + kFragments < kPairs) fetch(r + kFragments);
      }
    }
  }
  copy_wait<0>();
  __syncthreads();
}

// Runs the loop that fits the number of rows.
template <int K, Family F>
__device__ __forceinline__ void tile_mma_rows(TileSums& acc, unsigned char* shared, const uint32_t* w,
                                              int strip_step, int stride, const RowSource& src, int slices,
                                              const Codebook& cb) {
  const int blocks = (src.rows + 7) / 8;
  auto run = [&](auto n) {
    tile_mma<K, F, decltype(n)::value, 2>(acc, shared, w, strip_step, stride, src, slices, cb);
  };
  if (blocks <= 2)
    run(Int<2>{});
  else if (blocks <= 4)
    run(Int<4>{});
  else if (blocks == 5)
    run(Int<5>{});
  else if (blocks == 6)
    run(Int<6>{});
  else if (blocks == 7)
    run(Int<7>{});
  else
    run(Int<8>{});
}

// Hands the accumulators out row by row: finish(row, strip0, strip1), 4 columns per lane, one warp per row.
template <class Finish>
__device__ __forceinline__ void tile_rows(const TileSums& acc, float* stage, int rows, Finish finish) {
  constexpr int kPitch = 132, kStrip = 32 * kPitch;
  const int tid = fresh_thread(), lane = tid & 31, warp = tid >> 5;
  float* s = stage + 2 * (lane & 3) * kPitch + warp * 16 + (lane >> 2);
  auto put = [&](auto part) {
#pragma unroll
    for (int p = 0; p < 2; ++p)
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        float* d = s + p * kStrip + b * 8 * kPitch;
        const float(&c)[4] = acc[p][decltype(part)::value * 4 + b];
        d[0] = c[0];
        d[kPitch] = c[1];
        d[8] = c[2];
        d[8 + kPitch] = c[3];
      }
  };
#pragma unroll 1
  for (int part = 0; part * 32 < rows; ++part) {
    if (part == 0)
      put(Int<0>{});
    else
      put(Int<1>{});
    __syncthreads();
#pragma unroll 2
    for (int r = warp; r < 32; r += 8) {
      const int row = part * 32 + r;
      if (row < rows) {
        const float* d = stage + r * kPitch + 4 * lane;
        finish(row, lane, *reinterpret_cast<const float4*>(d), *reinterpret_cast<const float4*>(d + kStrip));
      }
    }
    __syncthreads();
  }
}

}  // namespace sparkloom
