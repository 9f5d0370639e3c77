// The decode path's inner loop: one warp, one strip of 128 output columns, a range of k.
#pragma once
#include "codec.cuh"

namespace sparkloom {

// A unit of work is 128 k = 8 k-slices of 16; each of 4 warps takes two adjacent slices of every unit.
constexpr int kUnit = 128;

// Where a warp reads: the first tile of its first slice, and its lane's 8 bytes of activations per row block.
// The other slice's 8 bytes follow at once, the next unit's 32 of these further.
template <int NB>
struct Cursor {
  const uint32_t* w;
  uint32_t x[NB];  // in units of 8 bytes from the operand's base
};

// What is in flight: the weights of the next kDepth slices (of half a slice where registers are short) and
// the activations of the current slice.
template <int K, int NB>
struct Stream {
  static constexpr int kDepth = K == 4 && NB == 1 ? 2 : 1;
  static constexpr int kTiles = K > 4 && NB > 1 ? 4 : 8;
  uint32_t buf[kDepth][kTiles][Lane<K>::kWords];
  uint2 xb[NB];

  __device__ __forceinline__ void start(const Cursor<NB>& c, const uint2* x, int stride, const Lane<K>& ln) {
#pragma unroll
    for (int d = 0; d < kDepth; ++d)
#pragma unroll
      for (int i = 0; i < kTiles; ++i) ln.load(buf[d][i], c.w + d * stride + i * 8 * K);
#pragma unroll
    for (int b = 0; b < NB; ++b) xb[b] = x[c.x[b]];
  }
};

// acc[tile][row block] += weights^T x activations over `units` units; ends with the loads of `next` in
// flight.
//
// Family sum with one row block skips the fp16 add: both halves of a product are A values, and each
// activation stands twice in B. It is exact where the add would round, and saves two byte permutes and an add
// for each pair of weights at the price of a second MMA.
template <int K, Family F, int NB, class Next>
__device__ __forceinline__ void strip_mma(float (&acc)[8][NB][4], Stream<K, NB>& st, Cursor<NB>& at,
                                          Next next, const uint2* x, int stride, int units, const Lane<K>& ln,
                                          const Codebook& cb) {
  constexpr int D = Stream<K, NB>::kDepth, T = Stream<K, NB>::kTiles;
  constexpr bool kNoAdd = F == Family::sum && NB == 1;
#pragma unroll 1
  for (int u = 0; u < units; ++u) {
    const bool more = u + 1 < units;
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      uint2 xn[NB];
      const uint32_t* ahead = at.w + stride;
      const uint32_t* here = at.w + s * stride;
#pragma unroll
      for (int b = 0; b < NB; ++b)
        if (s == 0) xn[b] = x[at.x[b] + 1];
      if (s == 2 - D) {
        if (more) {
          at.w += 8 * stride;
#pragma unroll
          for (int b = 0; b < NB; ++b) at.x[b] += 32;
        } else {
          next(at);
        }
      }
      if (D == 2) ahead = at.w + s * stride;
      if (D == 1 && s == 1) ahead = at.w;
#pragma unroll
      for (int b = 0; b < NB; ++b)
        if (s == 1) xn[b] = x[at.x[b]];
      uint32_t d[NB][4];
#pragma unroll
      for (int b = 0; b < NB; ++b) {
        if constexpr (kNoAdd) {
          d[b][0] = __byte_perm(st.xb[b].x, 0, 0x1010);
          d[b][1] = __byte_perm(st.xb[b].x, 0, 0x3232);
          d[b][2] = __byte_perm(st.xb[b].y, 0, 0x1010);
          d[b][3] = __byte_perm(st.xb[b].y, 0, 0x3232);
        }
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        auto& cur = st.buf[D == 2 ? s : 0][i % T];
        const uint32_t* from = T < 8 && i < 8 - T ? here + (i + T) * 8 * K : ahead + (i + T - 8) * 8 * K;
        if constexpr (kNoAdd) {
          uint32_t q[8];
          states<K>(q, cur, ln);
          ln.load(cur, from);
#pragma unroll
          for (int j = 0; j < 8; ++j) q[j] = halves(q[j], cb);
#pragma unroll
          for (int b = 0; b < NB; ++b) {
            mma(acc[i][b], q[0], q[4], q[1], q[5], d[b][0], d[b][1]);
            mma(acc[i][b], q[2], q[6], q[3], q[7], d[b][2], d[b][3]);
          }
        } else {
          uint32_t a[4];
          decode_tile<K, F>(a, cur, ln, cb);
          ln.load(cur, from);
#pragma unroll
          for (int b = 0; b < NB; ++b) mma(acc[i][b], a[0], a[1], a[2], a[3], st.xb[b].x, st.xb[b].y);
        }
      }
#pragma unroll
      for (int b = 0; b < NB; ++b) st.xb[b] = xn[b];
    }
  }
}

}  // namespace sparkloom
