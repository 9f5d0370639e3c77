// Decode path: gate/up, down and dense linear for up to 64 rows, divided evenly over experts x chunks x k.
#pragma once
#include "split.cuh"
#include "table.cuh"

namespace sparkloom {

__device__ __forceinline__ int warp_strip() { return (threadIdx.x >> 5) & 1; }
__device__ __forceinline__ int warp_group() { return threadIdx.x >> 6; }

// The lane's activation rows: row `lane / 4` of each block of 8, clamped to the item's rows.
template <int NB>
__device__ __forceinline__ void point_rows(Cursor<NB>& c, int pitch, int offset, const int* slots, int rows,
                                           int k0) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int b = 0; b < NB; ++b) {
    const int r = min(b * 8 + (lane >> 2), rows - 1);
    const uint32_t row = slots ? slots[r] : r;
    c.x[b] = row * (pitch / 4) + offset / 4 + (4 * k0 + warp_group()) * 8 + (lane & 3) * 2;
  }
}

// Where a segment lies: an item's chunk of columns, from unit k0 on.
struct Place {
  int4 item;
  int chunk, k0;
  __device__ int rows() const { return item.z; }
};
template <class Op>
__device__ __forceinline__ Place place_of(const Op& op, int at) {
  const int c = at / op.units(), i = c / op.chunks();
  return {op.item(i), c - i * op.chunks(), at - c * op.units()};
}

template <int K>
struct GateUp {
  const ThinArgs& a;
  __device__ int chunks() const { return a.w.inter / 128; }
  __device__ int units() const { return a.w.hidden / kUnit; }
  __device__ int items() const { return a.t.header[0]; }
  __device__ int stride() const { return a.w.inter / 16 * 8 * K; }
  __device__ const uint2* x() const { return reinterpret_cast<const uint2*>(a.xh); }
  __device__ int4 item(int i) const { return a.t.items[i]; }
  __device__ Place place(int at) const { return place_of(*this, at); }
  template <int NB>
  __device__ __forceinline__ void point(Cursor<NB>& c, const Place& p) const {
    const int strip = warp_strip(), H = a.w.hidden, nx = a.w.shared_suh ? 1 : 2;
    c.w = a.w.w13 +
          ((static_cast<size_t>(p.item.x) * 2 + strip) * (H / 16) + p.k0 * 8 + warp_group() * 2) * stride() +
          p.chunk * 8 * 8 * K;
    point_rows(c, nx * H, (nx - 1) * strip * H, a.t.slots + p.item.y, p.item.z, p.k0);
  }
  __device__ __forceinline__ void finish(const Place& p, int row, float4 g, float4 u) const {
    const int col = p.chunk * 128, lane = threadIdx.x & 31, I = a.w.inter;
    const half* svh = a.w.svh13 + static_cast<size_t>(p.item.x) * 2 * I + col;
    const half* suh = a.w.suh2 + static_cast<size_t>(p.item.x) * I + col;
    const float4 v = gate_up_epilogue(g, u, svh, svh + I, suh, a.limit, lane);
    store_fragment(a.act + static_cast<size_t>(a.t.slots[p.item.y + row]) * I + col, v, lane);
  }
};

// Adds the token's expert rows in the order of its slots once the last of them is there. One warp, one chunk.
__device__ __forceinline__ void combine_last(const ThinArgs& a, int token, int chunk, int chunks, int cols) {
  const int lane = threadIdx.x & 31, H = a.w.hidden;
  int* counter = a.counters + 2 * a.counters_per_phase + token * chunks + chunk;
  __threadfence();
  __syncwarp();
  int last = 0;
  if (lane == 0) last = atomicAdd(counter, 1) == a.t.valid[token] - 1;
  if (!__shfl_sync(~0u, last, 0)) return;
  __threadfence();
  for (int s = 0; s < cols; s += 128) {
    const size_t col = static_cast<size_t>(chunk) * 256 + s + 4 * lane;
    float4 v = make_float4(0, 0, 0, 0);
#pragma unroll 4
    for (int j = 0; j < a.r.topk; ++j) {
      const int slot = token * a.r.topk + j;
      if (local_expert(a.r, slot) >= 0)
        v = v + __ldcg(reinterpret_cast<const float4*>(a.rows + static_cast<size_t>(slot) * H + col));
    }
    store4(a.out, a.out_dtype, static_cast<size_t>(token) * H + col, v);
  }
}

template <int K>
struct Down {
  const ThinArgs& a;
  __device__ int chunks() const { return (a.w.hidden + 255) / 256; }
  __device__ int units() const { return a.w.inter / kUnit; }
  __device__ int items() const { return a.t.header[0]; }
  __device__ int stride() const { return a.w.hidden / 16 * 8 * K; }
  __device__ const uint2* x() const { return reinterpret_cast<const uint2*>(a.act); }
  __device__ int4 item(int i) const { return a.t.items[i]; }
  __device__ Place place(int at) const { return place_of(*this, at); }
  template <int NB>
  __device__ __forceinline__ void point(Cursor<NB>& c, const Place& p) const {
    const int I = a.w.inter;
    const int strip =
        a.w.hidden - p.chunk * 256 >= 256 ? warp_strip() : 0;  // a lone last strip is done twice
    c.w = a.w.w2 + (static_cast<size_t>(p.item.x) * (I / 16) + p.k0 * 8 + warp_group() * 2) * stride() +
          (p.chunk * 16 + strip * 8) * 8 * K;
    point_rows(c, I, 0, a.t.slots + p.item.y, p.item.z, p.k0);
  }
  __device__ __forceinline__ void finish(const Place& p, int row, float4 y0, float4 y1) const {
    const int lane = threadIdx.x & 31, H = a.w.hidden, cols = min(256, H - p.chunk * 256);
    const int slot = a.t.slots[p.item.y + row], col = p.chunk * 256 + 4 * lane;
    const half* svh = a.w.svh2 + static_cast<size_t>(p.item.x) * H + col;
    const float rw = a.r.weights[slot];
    const float4 scale = make_float4(rw, rw, rw, rw);
    float4* dst = reinterpret_cast<float4*>(a.rows + static_cast<size_t>(slot) * H + col);
    __stcg(dst, hadamard128(y0, lane) * load4h(svh) * scale);
    if (cols == 256) __stcg(dst + 32, hadamard128(y1, lane) * load4h(svh + 128) * scale);
    combine_last(a, slot / a.r.topk, p.chunk, chunks(), cols);
  }
};

// Dense: items are blocks of 16 rows.
template <int K>
struct Dense {
  const DenseArgs& a;
  __device__ int chunks() const { return (a.n + 255) / 256; }
  __device__ int units() const { return a.k / kUnit; }
  __device__ int items() const { return (a.m + 15) / 16; }
  __device__ int stride() const { return a.n / 16 * 8 * K; }
  __device__ const uint2* x() const { return reinterpret_cast<const uint2*>(a.xh); }
  __device__ int4 item(int i) const { return make_int4(0, i * 16, min(16, a.m - i * 16), 0); }
  __device__ Place place(int at) const { return place_of(*this, at); }
  template <int NB>
  __device__ __forceinline__ void point(Cursor<NB>& c, const Place& p) const {
    const int strip = a.n - p.chunk * 256 >= 256 ? warp_strip() : 0;
    c.w = a.w + static_cast<size_t>(p.k0 * 8 + warp_group() * 2) * stride() +
          (p.chunk * 16 + strip * 8) * 8 * K;
    point_rows(c, a.k, p.item.y * a.k, nullptr, p.item.z, p.k0);
  }
  __device__ __forceinline__ void finish(const Place& p, int row, float4 y0, float4 y1) const {
    const int lane = threadIdx.x & 31, cols = min(256, a.n - p.chunk * 256);
    const size_t dst = static_cast<size_t>(p.item.y + row) * a.pitch;
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      if (s * 128 >= cols) break;
      const int col = p.chunk * 256 + s * 128 + 4 * lane;
      float4 v = hadamard128(s ? y1 : y0, lane) * load4h(a.svh + col);
      if (a.bias) v = v + load4h(a.bias + col);
      store4(a.out, a.out_dtype, dst + col, v);
    }
  }
};

template <int K, Family F, int NB>
__global__ void __launch_bounds__(kThinThreads, 2) thin_gate_up(const __grid_constant__ ThinArgs a) {
  __shared__ ThinShared sh;
  wait_for_previous();
  start_next();
  thin_run<K, F, NB>(sh, GateUp<K>{a}, a.partial, a.counters, a.w.cb13);
}

// Does not let the next kernel start early: that one is not ours.
template <int K, Family F, int NB>
__global__ void __launch_bounds__(kThinThreads, 2) thin_down(const __grid_constant__ ThinArgs a) {
  __shared__ ThinShared sh;
  wait_for_previous();
  thin_run<K, F, NB>(sh, Down<K>{a}, a.partial, a.counters + a.counters_per_phase, a.w.cb2);
}

template <int K, Family F>
__global__ void __launch_bounds__(kThinThreads, 2) thin_dense(const __grid_constant__ DenseArgs a) {
  __shared__ ThinShared sh;
  wait_for_previous();
  thin_run<K, F, 2>(sh, Dense<K>{a}, a.partial, a.counters, a.cb);
}

}  // namespace sparkloom
