// Even division of (item, chunk, k) among the CTAs, and the ordered sum of what several CTAs did for one
// chunk.
#pragma once
#include "hadamard.cuh"
#include "strip.cuh"

namespace sparkloom {

constexpr int kThinThreads = 256;  // 4 k-groups x 2 strips of warps
constexpr int kPad = 132;          // row pitch in floats: conflict-free for MMA accumulators

// A share's part of one chunk of one item.
struct Segment {
  int at, units;  // first unit, over everything, and number of units
};

// CTA b owns units [b share, (b + 1) share).
struct Split {
  int per_chunk, share, end;

  __device__ Split(int chunks, int units_per_chunk) : per_chunk(units_per_chunk) {
    const int total = chunks * per_chunk;
    share = max(1, (total + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x));
    end = min(total, (static_cast<int>(blockIdx.x) + 1) * share);
  }
  // The segment that begins at `at`.
  __device__ Segment segment(int at) const {
    const int stop = at / per_chunk * per_chunk + per_chunk;
    return {at, min(stop, end) - at};
  }
  // Scratch slot of what CTA b did for the chunk that begins at unit `start`: at most two chunks of a share
  // are incomplete, its first and its last.
  __device__ int slot(int b, int start) const { return 2 * b + (start > b * share); }
};

struct ThinShared {
  float sum[4][2][8][kPad];
  int last;
  volatile int at;  // first unit of the current segment
};

// Sums the four k-groups, joins the shares' parts in order and calls finish(row, strip0, strip1) once per
// row, warp by warp, with 4 columns per lane.
template <int NB, class Finish>
__device__ __forceinline__ void thin_sum(ThinShared& sh, const float (&acc)[8][NB][4], const Split& split,
                                         int at, int rows, float* partial, int* counters, Finish finish) {
  const int chunk = at / split.per_chunk, start = chunk * split.per_chunk;
  const int first = start / split.share, parts = (start + split.per_chunk - 1) / split.share - first + 1;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, strip = warp & 1, group = warp >> 1;
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
    const int row = b * 8 + warp;
    if (row < rows) {
      float4 v[2];
#pragma unroll
      for (int p = 0; p < 2; ++p) {
        v[p] = *reinterpret_cast<float4*>(&sh.sum[0][p][warp][4 * lane]);
#pragma unroll
        for (int g = 1; g < 4; ++g) v[p] = v[p] + *reinterpret_cast<float4*>(&sh.sum[g][p][warp][4 * lane]);
      }
      if (parts == 1) {
        finish(row, v[0], v[1]);
      } else {
        float4* dst = reinterpret_cast<float4*>(partial + static_cast<size_t>(split.slot(blockIdx.x, start)) *
                                                              kThinPartial) +
                      (row * 2) * 32 + lane;
        __stcg(dst, v[0]);
        __stcg(dst + 32, v[1]);
      }
    }
  }
  if (parts == 1) return;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) sh.last = atomicAdd(counters + chunk, 1) == parts - 1;
  __syncthreads();
  if (!sh.last) return;
  __threadfence();
  for (int row = warp; row < rows; row += 8) {
    float4 v0 = make_float4(0, 0, 0, 0), v1 = v0;
#pragma unroll 4
    for (int p = 0; p < parts; ++p) {
      const float4* src = reinterpret_cast<const float4*>(
                              partial + static_cast<size_t>(split.slot(first + p, start)) * kThinPartial) +
                          (row * 2) * 32 + lane;
      v0 = v0 + __ldcg(src);
      v1 = v1 + __ldcg(src + 32);
    }
    finish(row, v0, v1);
  }
}

// Works through the CTA's share. Op says how a segment reads its operands and what becomes of its sums.
// With one row block, the next segment's first loads are under way while a segment is summed. With two, what
// belongs to the division of work is computed anew around each main loop: registers are dear in there.
template <int K, Family F, int NBMax, class Op>
__device__ __forceinline__ void thin_run(ThinShared& sh, const Op& op, float* partial, int* counters,
                                         const Codebook& cb) {
  auto sum = [&](auto& acc, const Split& split, int at) {
    const auto place = op.place(at);
    thin_sum(sh, acc, split, at, place.rows(), partial, counters,
             [&](int row, float4 a, float4 b) { op.finish(place, row, a, b); });
  };
  if constexpr (NBMax == 1) {
    const Lane<K> ln(threadIdx.x & 31);
    const int stride = op.stride();
    const Split split(op.items() * op.chunks(), op.units());
    int at = blockIdx.x * split.share;
    if (at >= split.end) return;
    Cursor<1> cursor;
    op.point(cursor, op.place(at));
    Stream<K, 1> stream;
    stream.start(cursor, op.x(), stride, ln);
    do {
      const Segment seg = split.segment(at);
      at += seg.units;
      float acc[8][1][4] = {};
      auto next = [&](Cursor<1>& c) {
        if (at < split.end) op.point(c, op.place(at));
      };
      strip_mma<K, F, 1>(acc, stream, cursor, next, op.x(), stride, seg.units, ln, cb);
      sum(acc, split, seg.at);
    } while (at < split.end);
  } else {
    auto division = [&] { return Split(fresh(op.items()) * op.chunks(), op.units()); };
    if (threadIdx.x == 0) sh.at = blockIdx.x * division().share;
    for (;;) {
      __syncthreads();
      int at = sh.at;
      int units = 0;
      auto run = [&](auto blocks) {
        constexpr int NB = decltype(blocks)::value;
        float acc[8][NB][4] = {};
        {
          const Lane<K> ln(fresh_thread() & 31);
          Cursor<NB> cursor;
          op.point(cursor, op.place(at));
          Stream<K, NB> stream;
          stream.start(cursor, op.x(), op.stride(), ln);
          strip_mma<K, F, NB>(
              acc, stream, cursor, [](auto&) {}, op.x(), op.stride(), units, ln, cb);
        }
        sum(acc, division(), sh.at);
      };
      {
        const Split split = division();
        if (at >= split.end) return;
        units = split.segment(at).units;
      }
      if (op.place(at).rows() <= 8)
        run(Int<1>{});
      else
        run(Int<NBMax>{});
      __syncthreads();
      if (threadIdx.x == 0) sh.at += division().segment(sh.at).units;
    }
  }
}

}  // namespace sparkloom
