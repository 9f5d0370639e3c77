// From packed trellis words to MMA fragments of weights.
//
// A tile is 256 weights of K bits; lane t of a warp decodes positions 8t .. 8t+7. Position i's state is the
// 16 bits of the ring that end at bit (i + 1) K. Words are read most significant bit first.
#pragma once
#include "ptx.cuh"

namespace sparkloom {

// Words that a lane fetches for one tile. K = 4 fetches one and gets its neighbour's by shuffle.
template <int K>
struct Lane {
  static constexpr int kWords = K == 4 ? 1 : (K < 4 ? 2 : 3);
  int offset[kWords];  // word indexes within the tile: last word of the window first
  int shift;           // bits behind the window in its last word
  int left;            // the lane whose word comes before

  __device__ explicit Lane(int lane) {
    const int end = 8 * (lane + 1) * K, last = (end - 1) / 32;
#pragma unroll
    for (int i = 0; i < kWords; ++i) offset[i] = (last - i + 8 * K) % (8 * K);
    shift = (32 - (end & 31)) & 31;
    left = (lane + 31) & 31;
  }
  // From a tile in shared memory: the neighbour's word costs no shuffle there.
  static constexpr int kSharedWords = K == 4 ? 2 : kWords;
  __device__ __forceinline__ void load_shared(uint32_t (&w)[kSharedWords], const uint32_t* tile) const {
#pragma unroll
    for (int i = 0; i < kSharedWords; ++i) w[i] = tile[K == 4 && i == 1 ? left : offset[i % kWords]];
  }
  __device__ __forceinline__ void load(uint32_t (&w)[kWords], const uint32_t* tile) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i)
      w[i] = K == 4 ? load_stream(tile + offset[i]) : load_cached(tile + offset[i]);
  }
};

// The eight states of a lane.
template <int K, int W>
__device__ __forceinline__ void states(uint32_t (&q)[8], const uint32_t (&w)[W], const Lane<K>& ln) {
  if constexpr (K == 4) {
    // Windows at whole bytes are one byte-permute each; the odd nibbles come from copies shifted by four.
    const uint32_t cur = w[0], prev = W == 1 ? __shfl_sync(~0u, cur, ln.left) : w[W - 1];
    const uint32_t up4 = cur << 4, mid = __funnelshift_r(cur, prev, 16), odd = __funnelshift_r(cur, prev, 20);
    q[0] = __byte_perm(odd, 0, 0x4421);
    q[1] = __byte_perm(mid, 0, 0x4421);
    q[2] = __byte_perm(odd, 0, 0x4410);
    q[3] = __byte_perm(cur, 0, 0x4432);
    q[4] = __byte_perm(up4, 0, 0x4432);
    q[5] = __byte_perm(cur, 0, 0x4421);
    q[6] = __byte_perm(up4, 0, 0x4421);
    q[7] = __byte_perm(cur, 0, 0x4410);
  } else {
    const uint32_t w2 = W > 2 ? w[W - 1] : 0u;
    const uint32_t lo = __funnelshift_r(w[0], w[1], ln.shift), hi = __funnelshift_r(w[1], w2, ln.shift);
    const uint32_t top = w2 >> ln.shift;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int s = K * (7 - j);
      uint32_t v;
      if (s + 16 <= 32)
        v = lo >> s;
      else if (s < 32)
        v = __funnelshift_r(lo, hi, s);
      else if (s + 16 <= 64)
        v = hi >> (s - 32);
      else
        v = __funnelshift_r(hi, top, s - 32);
      q[j] = v & 0xffffu;
    }
  }
}

// state -> the pair of fp16 halves whose sum is the weight (family sum)
__device__ __forceinline__ uint32_t halves(uint32_t state, const Codebook& cb) {
  uint32_t p = state * cb.mul + cb.add;
  asm("lop3.b32 %0, %0, 0x8fff8fff, 0x3b603b60, 0x6a;" : "+r"(p));  // (p & mask) ^ bias
  return p;
}

// two states -> two fp16 weights, bit-exact
template <Family F>
__device__ __forceinline__ uint32_t weights2(uint32_t s0, uint32_t s1, const Codebook& cb) {
  uint32_t r;
  if constexpr (F == Family::sum) {
    const uint32_t a = halves(s0, cb), b = halves(s1, cb);
    // Two scalar adds (their operand selects are free) and one permute beat two permutes and a packed add.
    asm("{.reg .b16 l, h, x, y; mov.b32 {l, h}, %1; add.rn.f16 x, l, h; mov.b32 {l, h}, %2; add.rn.f16 y, l, "
        "h; "
        "mov.b32 %0, {x, y};}"
        : "=r"(r)
        : "r"(a), "r"(b));
  } else {
    const uint32_t a = __dp4a(s0 * cb.mul, 0x01010101u, 0x6400u);
    const uint32_t b = __dp4a(s1 * cb.mul, 0x01010101u, 0x6400u);
    asm("fma.rn.f16x2 %0, %1, %2, %3;"
        : "=r"(r)
        : "r"(__byte_perm(a, b, 0x5410)), "r"(0x1eee1eeeu), "r"(0xc931c931u));
  }
  return r;
}

// A fragment of one tile, weights transposed: rows are the tile's 16 output columns.
template <int K, Family F, int W>
__device__ __forceinline__ void decode_tile(uint32_t (&a)[4], const uint32_t (&w)[W], const Lane<K>& ln,
                                            const Codebook& cb) {
  uint32_t q[8];
  states<K>(q, w, ln);
  a[0] = weights2<F>(q[0], q[1], cb);
  a[1] = weights2<F>(q[4], q[5], cb);
  a[2] = weights2<F>(q[2], q[3], cb);
  a[3] = weights2<F>(q[6], q[7], cb);
}

}  // namespace sparkloom
