// Even split of (item, chunk, k) over the grid, and the ordered sum of what several CTAs did for one chunk.
#pragma once
#include "hadamard.cuh"
#include "strip.cuh"

namespace sparkloom {

constexpr int kThinThreads = 256;  // 4 k-groups x 2 strips of warps
constexpr int kPad = 132;          // row pitch in floats: conflict-free for MMA accumulators

struct Segment {
  int chunk;      // index of (item, chunk)
  int k0, units;  // first unit and number of units of this CTA
  int first_cta, parts, slot;
};

// CTA b owns units [b share, (b+1) share) of chunks x per_chunk units.
struct Split {
  int per_chunk, share, end;
  int at;
  __device__ Split(int chunks, int units_per_chunk) : per_chunk(units_per_chunk) {
    const int total = chunks * per_chunk;
    share = (total + gridDim.x - 1) / gridDim.x;
    at = min(total, static_cast<int>(blockIdx.x) * share);
    end = min(total, at + share);
  }
  __device__ bool next(Segment& s) {
    if (at >= end) return false;
    s.chunk = at / per_chunk;
    const int start = s.chunk * per_chunk, stop = start + per_chunk;
    s.k0 = at - start;
    s.units = min(stop, end) - at;
    s.first_cta = start / share;
    s.parts = (stop - 1) / share - s.first_cta + 1;
    s.slot = 2 * blockIdx.x + (start > static_cast<int>(blockIdx.x) * share);
    at += s.units;
    return true;
  }
  // scratch slot of part p of a segment
  __device__ int part_slot(const Segment& s, int p) const {
    const int b = s.first_cta + p;
    return 2 * b + (s.chunk * per_chunk > b * share);
  }
};

struct ThinShared {
  float sum[4][2][8][kPad];
  int last;
};

// Runs strip_mma for `rows` rows, sums the four k-groups, joins the CTAs' parts in order and calls
// finish(row, strip0, strip1) once per row, warp by warp, with 4 columns per lane.
template <int K, Family F, int NB, class Finish>
__device__ __forceinline__ void thin_segment(ThinShared& sh, const Split& split, const Segment& seg,
                                             const uint32_t* w, size_t stride, const uint4* const (&x)[NB],
                                             int rows, float* partial, int* counter, const Lane<K>& ln,
                                             const Codebook& cb, Finish finish) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, strip = warp & 1, group = warp >> 1;
  float acc[8][NB][4] = {};
  strip_mma<K, F, NB>(acc, w, stride, x, seg.units, ln, cb);
#pragma unroll
  for (int b = 0; b < NB; ++b) {
    if (b * 8 >= rows) break;
    __syncthreads();
    float* s = &sh.sum[group][strip][2 * (lane & 3)][lane >> 2];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      s[i * 16] = acc[i][b][0];
      s[i * 16 + kPad] = acc[i][b][1];
      s[i * 16 + 8] = acc[i][b][2];
      s[i * 16 + 8 + kPad] = acc[i][b][3];
    }
    __syncthreads();
    float4 v[2];
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      v[p] = *reinterpret_cast<float4*>(&sh.sum[0][p][warp][4 * lane]);
#pragma unroll
      for (int g = 1; g < 4; ++g) v[p] = v[p] + *reinterpret_cast<float4*>(&sh.sum[g][p][warp][4 * lane]);
    }
    const int row = b * 8 + warp;
    if (row < rows) {
      if (seg.parts == 1) {
        finish(row, v[0], v[1]);
      } else {
        float4* dst = reinterpret_cast<float4*>(partial + static_cast<size_t>(seg.slot) * kThinPartial) +
                      (row * 2) * 32 + lane;
        __stcg(dst, v[0]);
        __stcg(dst + 32, v[1]);
      }
    }
  }
  if (seg.parts == 1) return;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) sh.last = atomicAdd(counter, 1) == seg.parts - 1;
  __syncthreads();
  if (!sh.last) return;
  __threadfence();
  for (int row = warp; row < rows; row += 8) {
    float4 v0 = make_float4(0, 0, 0, 0), v1 = v0;
#pragma unroll 4
    for (int p = 0; p < seg.parts; ++p) {
      const float4* src = reinterpret_cast<const float4*>(
                              partial + static_cast<size_t>(split.part_slot(seg, p)) * kThinPartial) +
                          (row * 2) * 32 + lane;
      v0 = v0 + __ldcg(src);
      v1 = v1 + __ldcg(src + 32);
    }
    finish(row, v0, v1);
  }
}

}  // namespace sparkloom
