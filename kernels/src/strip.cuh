// The decode path's inner loop: one warp, one strip of 128 output columns, a range of k.
#pragma once
#include "codec.cuh"

namespace sparkloom {

// A unit of work is 128 k = 8 k-slices of 16; each of 4 warps takes two adjacent slices of every unit.
constexpr int kUnit = 128;
#ifndef SPARKLOOM_DEPTH
#define SPARKLOOM_DEPTH 2
#endif

// acc[tile][row block] += weights^T x activations.
//   w       first tile of the warp's first slice; stride = words from one slice to the next
//   x[b]    the lane's 16 bytes of its row (row block b) for the warp's two slices of the first unit
// Family sum with one row block skips the fp16 add: both halves of a product are A values, and each
// activation stands twice in B. It is exact where the add would round, and saves two byte permutes and an add
// for each pair of weights at the price of a second MMA.
template <int K, Family F, int NB>
__device__ __forceinline__ void strip_mma(float (&acc)[8][NB][4], const uint32_t* w, size_t stride,
                                          const uint4* const (&x)[NB], int units, const Lane<K>& ln,
                                          const Codebook& cb) {
  constexpr int W = Lane<K>::kWords, kTile = 8 * K;
  constexpr bool kNoAdd = F == Family::sum && NB == 1;
  constexpr int kDepth = (K == 4 && NB == 1) ? SPARKLOOM_DEPTH : 1;  // slices in flight
  uint32_t buf[kDepth][8][W];
#pragma unroll
  for (int d = 0; d < kDepth; ++d)
#pragma unroll
    for (int i = 0; i < 8; ++i) ln.load(buf[d][i], w + d * stride + i * kTile);
  uint4 xb[NB];
#pragma unroll
  for (int b = 0; b < NB; ++b) xb[b] = *x[b];
  int xo = 0;
#pragma unroll 1
  for (int u = 0; u < units; ++u) {
    const bool more = u + 1 < units;
    if (more) xo += 16;
    uint4 xn[NB];
#pragma unroll
    for (int b = 0; b < NB; ++b) xn[b] = x[b][xo];
    const uint32_t* next_unit = w + (more ? 8 * stride : 0);
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      const uint32_t* ahead = kDepth == 2 ? next_unit + s * stride : (s == 0 ? w + stride : next_unit);
      uint32_t b0[NB], b1[NB];
#pragma unroll
      for (int b = 0; b < NB; ++b) {
        b0[b] = s == 0 ? xb[b].x : xb[b].z;
        b1[b] = s == 0 ? xb[b].y : xb[b].w;
      }
      uint32_t d[NB][4];
      if constexpr (kNoAdd) {
#pragma unroll
        for (int b = 0; b < NB; ++b) {
          d[b][0] = __byte_perm(b0[b], 0, 0x1010);
          d[b][1] = __byte_perm(b0[b], 0, 0x3232);
          d[b][2] = __byte_perm(b1[b], 0, 0x1010);
          d[b][3] = __byte_perm(b1[b], 0, 0x3232);
        }
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        auto& cur = buf[kDepth == 2 ? s : 0][i];
        if constexpr (kNoAdd) {
          uint32_t q[8];
          states<K>(q, cur, ln);
          ln.load(cur, ahead + i * kTile);
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
          ln.load(cur, ahead + i * kTile);
#pragma unroll
          for (int b = 0; b < NB; ++b) mma(acc[i][b], a[0], a[1], a[2], a[3], b0[b], b1[b]);
        }
      }
    }
    w = next_unit;
#pragma unroll
    for (int b = 0; b < NB; ++b) xb[b] = xn[b];
  }
}

}  // namespace sparkloom
