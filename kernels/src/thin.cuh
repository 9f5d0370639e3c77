// Decode path: gate/up and down for up to 64 tokens, split evenly over experts x chunks x k.
#pragma once
#include "split.cuh"

namespace sparkloom {

// The lane's activation row pointers: row `lane / 4` of each block of 8, clamped to the item's rows.
template <int NB>
__device__ __forceinline__ void row_pointers(const uint4* (&x)[NB], const half* base, size_t pitch,
                                             size_t offset, const int* slots, int rows, int k0) {
  const int lane = threadIdx.x & 31, group = threadIdx.x >> 6;
#pragma unroll
  for (int b = 0; b < NB; ++b) {
    const int r = min(b * 8 + (lane >> 2), rows - 1);
    const size_t row = slots ? slots[r] : r;
    x[b] = reinterpret_cast<const uint4*>(base + row * pitch + offset) + (4 * k0 + group) * 4 + (lane & 3);
  }
}

template <int K, Family F, int NB>
__device__ __forceinline__ void gate_up_segment(ThinShared& sh, const ThinArgs& a, const Split& split,
                                                const Segment& seg, const Lane<K>& ln) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, strip = warp & 1, group = warp >> 1;
  const int chunks = a.w.inter / 128, chunk = seg.chunk % chunks;
  const int4 item = a.t.items[seg.chunk / chunks];
  const int* slots = a.t.slots + item.y;
  const int H = a.w.hidden, I = a.w.inter, nx = a.w.shared_suh ? 1 : 2;
  const size_t stride = static_cast<size_t>(I / 16) * 8 * K;
  const uint32_t* w = a.w.w13 + (static_cast<size_t>(item.x) * 2 + strip) * (H / 16) * stride +
                      static_cast<size_t>(seg.k0 * 8 + group * 2) * stride + chunk * 8 * 8 * K;
  const uint4* x[NB];
  row_pointers<NB>(x, a.xh, static_cast<size_t>(nx) * H, static_cast<size_t>(nx - 1) * strip * H, slots,
                   item.z, seg.k0);
  const half* svh = a.w.svh13 + static_cast<size_t>(item.x) * 2 * I + chunk * 128;
  const half* suh = a.w.suh2 + static_cast<size_t>(item.x) * I + chunk * 128;
  thin_segment<K, F, NB>(sh, split, seg, w, stride, x, item.z, a.partial, a.counters + seg.chunk, ln,
                         a.w.cb13, [&](int row, float4 g, float4 u) {
                           float4 v = gate_up_epilogue(g, u, svh, svh + I, suh, a.limit, lane);
                           store_fragment(a.act + static_cast<size_t>(slots[row]) * I + chunk * 128, v, lane);
                         });
}

template <int K, Family F, int NB>
__global__ void __launch_bounds__(kThinThreads, 2) thin_gate_up(ThinArgs a) {
  __shared__ ThinShared sh;
  const Lane<K> ln(threadIdx.x & 31);
  wait_for_previous();
  start_next();
  Split split(a.t.header[0] * (a.w.inter / 128), a.w.hidden / kUnit);
  Segment seg;
  while (split.next(seg)) {
    if (NB > 1 && a.t.items[seg.chunk / (a.w.inter / 128)].z <= 8)
      gate_up_segment<K, F, 1>(sh, a, split, seg, ln);
    else
      gate_up_segment<K, F, NB>(sh, a, split, seg, ln);
  }
}

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
    for (int j = 0; j < a.r.topk; ++j) {
      const int slot = token * a.r.topk + j;
      int e = a.r.ids[slot];
      if (a.r.expert_map && e >= 0) e = a.r.expert_map[e];
      if (e >= 0)
        v = v + __ldcg(reinterpret_cast<const float4*>(a.rows + static_cast<size_t>(slot) * H + col));
    }
    store4(a.out, a.out_dtype, static_cast<size_t>(token) * H + col, v);
  }
}

template <int K, Family F, int NB>
__device__ __forceinline__ void down_segment(ThinShared& sh, const ThinArgs& a, const Split& split,
                                             const Segment& seg, const Lane<K>& ln) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, group = warp >> 1;
  const int H = a.w.hidden, I = a.w.inter, chunks = (H + 255) / 256, chunk = seg.chunk % chunks;
  const int4 item = a.t.items[seg.chunk / chunks];
  const int* slots = a.t.slots + item.y;
  const int cols = min(256, H - chunk * 256), strip = cols == 256 ? warp & 1 : 0;
  const size_t stride = static_cast<size_t>(H / 16) * 8 * K;
  const uint32_t* w = a.w.w2 + static_cast<size_t>(item.x) * (I / 16) * stride +
                      static_cast<size_t>(seg.k0 * 8 + group * 2) * stride + (chunk * 16 + strip * 8) * 8 * K;
  const uint4* x[NB];
  row_pointers<NB>(x, a.act, I, 0, slots, item.z, seg.k0);
  const half* svh = a.w.svh2 + static_cast<size_t>(item.x) * H + chunk * 256 + 4 * lane;
  thin_segment<K, F, NB>(
      sh, split, seg, w, stride, x, item.z, a.partial, a.counters + a.counters_per_phase + seg.chunk, ln,
      a.w.cb2, [&](int row, float4 y0, float4 y1) {
        const int slot = slots[row];
        const float rw = a.r.weights[slot];
        const float4 scale = make_float4(rw, rw, rw, rw);
        float4* dst =
            reinterpret_cast<float4*>(a.rows + static_cast<size_t>(slot) * H + chunk * 256 + 4 * lane);
        __stcg(dst, hadamard128(y0, lane) * load4h(svh) * scale);
        if (cols == 256) __stcg(dst + 32, hadamard128(y1, lane) * load4h(svh + 128) * scale);
        combine_last(a, slot / a.r.topk, chunk, chunks, cols);
      });
}

template <int K, Family F, int NB>
__global__ void __launch_bounds__(kThinThreads, 2) thin_down(ThinArgs a) {
  __shared__ ThinShared sh;
  const Lane<K> ln(threadIdx.x & 31);
  wait_for_previous();
  start_next();
  const int chunks = (a.w.hidden + 255) / 256;
  Split split(a.t.header[0] * chunks, a.w.inter / kUnit);
  Segment seg;
  while (split.next(seg)) {
    if (NB > 1 && a.t.items[seg.chunk / chunks].z <= 8)
      down_segment<K, F, 1>(sh, a, split, seg, ln);
    else
      down_segment<K, F, NB>(sh, a, split, seg, ln);
  }
}

// Dense linear for up to 64 rows: items are blocks of 16 rows.
template <int K, Family F, int NB>
__device__ __forceinline__ void dense_segment(ThinShared& sh, const DenseArgs& a, const Split& split,
                                              const Segment& seg, int row0, int rows, int chunk,
                                              const Lane<K>& ln) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, group = warp >> 1;
  const int cols = min(256, a.n - chunk * 256), strip = cols == 256 ? warp & 1 : 0;
  const size_t stride = static_cast<size_t>(a.n / 16) * 8 * K;
  const uint32_t* w =
      a.w + static_cast<size_t>(seg.k0 * 8 + group * 2) * stride + (chunk * 16 + strip * 8) * 8 * K;
  const uint4* x[NB];
  row_pointers<NB>(x, a.xh + static_cast<size_t>(row0) * a.k, a.k, 0, nullptr, rows, seg.k0);
  thin_segment<K, F, NB>(sh, split, seg, w, stride, x, rows, a.partial, a.counters + seg.chunk, ln, a.cb,
                         [&](int row, float4 y0, float4 y1) {
#pragma unroll
                           for (int s = 0; s < 2; ++s) {
                             if (s * 128 >= cols) break;
                             const int col = chunk * 256 + s * 128 + 4 * lane;
                             float4 v = hadamard128(s ? y1 : y0, lane) * load4h(a.svh + col);
                             if (a.bias) v = v + load4h(a.bias + col);
                             store4(a.out, a.out_dtype, static_cast<size_t>(row0 + row) * a.n + col, v);
                           }
                         });
}

template <int K, Family F>
__global__ void __launch_bounds__(kThinThreads, 2) thin_dense(DenseArgs a) {
  __shared__ ThinShared sh;
  const Lane<K> ln(threadIdx.x & 31);
  wait_for_previous();
  const int chunks = (a.n + 255) / 256;
  Split split(((a.m + 15) / 16) * chunks, a.k / kUnit);
  Segment seg;
  while (split.next(seg)) {
    const int row0 = seg.chunk / chunks * 16, rows = min(16, a.m - row0), chunk = seg.chunk % chunks;
    if (rows <= 8)
      dense_segment<K, F, 1>(sh, a, split, seg, row0, rows, chunk, ln);
    else
      dense_segment<K, F, 2>(sh, a, split, seg, row0, rows, chunk, ln);
  }
}

}  // namespace sparkloom
