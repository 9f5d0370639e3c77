// Prefill path: one persistent kernel, a queue of tasks in an order that cannot dead-lock.
//
// Step p of the queue holds: rotate segment p | gate/up of segment p - ahead | down of segment p - ahead -
// behind. A task waits only for tasks that stand before it in the queue, so some CTA always makes progress.
// Rotated activations and SwiGLU outputs live in two rings that stay in L2; their rows are handed out
// in queue order, and a writer waits until the rows' last readers are through.
#pragma once
#include "hadamard.cuh"
#include "tile.cuh"

namespace sparkloom {

constexpr int kRotateTasks = 8;

__device__ __forceinline__ void wait_count(const int* p, int target) {
  while (load_acquire(p) < target) __nanosleep(40);
}

// Waits until every earlier segment whose ring rows `item` is about to overwrite has reached `target`.
__device__ __forceinline__ void wait_ring(const int4* items, int j, int ring, const int* counts, int target) {
  const int4 me = items[j];
  for (int i = j - 1 - static_cast<int>(threadIdx.x); i >= 0; i -= kFatThreads) {
    const int4 it = items[i];
    if (it.y + it.z <= me.y - ring) break;
    if (it.y < me.y + me.z - ring) wait_count(counts + i, target);
  }
}

// The task at place `at` of a stream of `chunks` tasks per segment, in group order.
__device__ __forceinline__ void group_order(const int4* items, int at, int chunks, int& j, int& chunk) {
  const int group = items[at / chunks].w, first = group >> 3, size = group & 7, local = at - first * chunks;
  chunk = local / size;
  j = first + local % size;
}

__device__ __forceinline__ void finish_task(int* counter) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(counter, 1);
}

__device__ __forceinline__ void rotate_task(const FatArgs& a, int j, int part) {
  const int4 item = a.t.items[j];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, H = a.w.hidden, blocks = H / 128;
  const int nx = a.w.shared_suh ? 1 : 2;
  const int r0 = item.z * part / kRotateTasks, r1 = item.z * (part + 1) / kRotateTasks;
  const int tasks = (r1 - r0) * nx * blocks;
#pragma unroll 4
  for (int i = warp; i < tasks; i += kFatThreads / 32) {
    const int block = i % blocks, s = i / blocks, row = r0 + s / nx, which = s % nx;
    const size_t token = a.t.slots[item.y + row] / a.r.topk;
    const int col = block * 128 + 4 * lane;
    const float4 x = load4(a.x, a.x_dtype, token * H + col);
    const float4 suh = load4h(a.w.suh13 + (static_cast<size_t>(item.x) * 2 + which) * H + col);
    const size_t ring_row = (item.y + row) % a.ring_x_rows;
    store4(a.ring_x, Dtype::f16, (ring_row * nx + which) * H + col, rotate_in(x, suh, lane));
  }
}

template <int K, Family F, bool Shared, int RB>
__device__ __forceinline__ void gemm_task(const FatArgs& a, int j, int chunk, bool gate,
                                          unsigned char* shared, const Lane<K>& ln) {
  const int4 item = a.t.items[j];
  const int lane = threadIdx.x & 31, H = a.w.hidden, I = a.w.inter;
  const size_t e = item.x;
  const int stride = (gate ? I : H) / 16 * 8 * K;
  const uint32_t* w;
  int strip_step;
  RowSource src;
  if (gate) {
    w = a.w.w13 + e * 2 * (H / 16) * stride + chunk * 8 * 8 * K;
    strip_step = H / 16 * stride;
    src = {a.ring_x, (Shared ? 1 : 2) * H, item.y, a.ring_x_rows};
  } else {
    w = a.w.w2 + e * (I / 16) * stride + chunk * 16 * 8 * K;
    strip_step = H - chunk * 256 >= 256 ? 8 * 8 * K : 0;
    src = {a.ring_act, I, item.y, a.ring_act_rows};
  }
  const Codebook cb = gate ? a.w.cb13 : a.w.cb2;
  float acc[2][2 * RB][4] = {};
  if (Shared || !gate) {
    tile_mma<K, F, RB, 2>(acc, w, strip_step, stride, src, (gate ? H : I) / 16, shared, ln, cb);
  } else {
    // Gate and up read differently rotated rows: one strip after the other, through the same registers.
#pragma unroll 1
    for (int pass = 0; pass < 2; ++pass) {
      tile_mma<K, F, RB, 1>(acc, w, strip_step, stride, src, H / 16, shared, ln, cb);
#pragma unroll
      for (int b = 0; b < 2 * RB; ++b)
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const float t = acc[0][b][c];
          acc[0][b][c] = acc[1][b][c];
          acc[1][b][c] = t;
        }
      w += strip_step;
      src.base += H;
    }
  }
  const int4 it = a.t.items[j];  // read again: registers are dear in the loop
  if (gate) {
    const half* svh = a.w.svh13 + static_cast<size_t>(it.x) * 2 * I + chunk * 128;
    const half* suh = a.w.suh2 + static_cast<size_t>(it.x) * I + chunk * 128;
    tile_rows<RB>(acc, reinterpret_cast<float*>(shared), it.z, [&](int row, float4 g, float4 u) {
      const float4 v = gate_up_epilogue(g, u, svh, svh + I, suh, a.limit, lane);
      const size_t ring_row = (it.y + row) % a.ring_act_rows;
      store4(a.ring_act, Dtype::f16, ring_row * I + chunk * 128 + 4 * lane, v);
    });
  } else {
    const half* svh = a.w.svh2 + static_cast<size_t>(it.x) * H + chunk * 256 + 4 * lane;
    tile_rows<RB>(acc, reinterpret_cast<float*>(shared), it.z, [&](int row, float4 y0, float4 y1) {
      half* dst = a.rows + static_cast<size_t>(a.t.slots[it.y + row]) * H + chunk * 256 + 4 * lane;
      auto put = [](half* p, float4 v) {
        auto c = [](float f) { return fminf(fmaxf(f, -65504.f), 65504.f); };
        __stcs(reinterpret_cast<uint2*>(p), make_uint2(pack2(c(v.x), c(v.y)), pack2(c(v.z), c(v.w))));
      };
      put(dst, hadamard128(y0, lane) * load4h(svh));
      if (H - chunk * 256 >= 256) put(dst + 128, hadamard128(y1, lane) * load4h(svh + 128));
    });
  }
}

template <int K, Family F, bool Shared>
__global__ void __launch_bounds__(kFatThreads, kFatBlocks) fat_moe(const __grid_constant__ FatArgs a) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ int ticket;
  const Lane<K> ln(threadIdx.x & 31);
  const int n = a.t.header[0], H = a.w.hidden, I = a.w.inter;
  const int gates = I / 128, downs = (H + 255) / 256;
  const int per_step = kRotateTasks + gates + downs;
  const int ahead = a.ahead, behind = a.behind, total = (n + ahead + behind) * per_step;
  for (;;) {
    __syncthreads();
    if (threadIdx.x == 0) ticket = atomicAdd(a.t.header + (a.phases & 1 ? 1 : 2), 1);
    __syncthreads();
    if (ticket >= total) return;
    const int step = ticket / per_step;
    int sub = ticket % per_step, j;
    if (sub < kRotateTasks) {
      j = step;
      if (j >= n || !(a.phases & 1)) continue;
      wait_ring(a.t.items, j, a.ring_x_rows, a.gated, gates);
      __syncthreads();
      rotate_task(a, j, sub);
      finish_task(a.rotated + j);
      continue;
    }
    sub -= kRotateTasks;
    const bool gate = sub < gates;
    if (gate) {
      j = step - ahead;
      if (j < 0 || j >= n || !(a.phases & 1)) continue;
      group_order(a.t.items, j * gates + sub, gates, j, sub);
      if (a.phases & 2) wait_ring(a.t.items, j, a.ring_act_rows, a.done, downs);
      if (threadIdx.x == 0) wait_count(a.rotated + j, kRotateTasks);
    } else {
      sub -= gates;
      j = step - ahead - behind;
      if (j < 0 || j >= n || !(a.phases & 2)) continue;
      group_order(a.t.items, j * downs + sub, downs, j, sub);
      if (threadIdx.x == 0) wait_count(a.gated + j, gates);
    }
    __syncthreads();
    constexpr int R = kFatRows / 64;  // granularity of the row blocks
    const int blocks = (a.t.items[j].z + 16 * R - 1) / (16 * R);
    if (Shared && blocks == 1)
      gemm_task<K, F, Shared, R>(a, j, sub, gate, shared, ln);
    else if (blocks <= 2)
      gemm_task<K, F, Shared, 2 * R>(a, j, sub, gate, shared, ln);
    else if (Shared && blocks == 3)
      gemm_task<K, F, Shared, 3 * R>(a, j, sub, gate, shared, ln);
    else
      gemm_task<K, F, Shared, 4 * R>(a, j, sub, gate, shared, ln);
    finish_task((gate ? a.gated : a.done) + j);
  }
}

// Dense linear for many rows: tiles of 64 rows x 256 columns, rows rotated beforehand.
template <int K, Family F, int RB>
__device__ __forceinline__ void dense_tile(const DenseArgs& a, int row0, int rows, int chunk,
                                           unsigned char* shared, const Lane<K>& ln) {
  const int lane = threadIdx.x & 31, cols = min(256, a.n - chunk * 256);
  const int stride = a.n / 16 * 8 * K;
  const uint32_t* w = a.w + chunk * 16 * 8 * K;
  const int strip_step = cols == 256 ? 8 * 8 * K : 0;
  const RowSource src = {a.xh, a.k, row0, a.m};
  float acc[2][2 * RB][4] = {};
  tile_mma<K, F, RB, 2>(acc, w, strip_step, stride, src, a.k / 16, shared, ln, a.cb);
  tile_rows<RB>(acc, reinterpret_cast<float*>(shared), rows, [&](int row, float4 y0, float4 y1) {
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      if (s * 128 >= cols) break;
      const int col = chunk * 256 + s * 128 + 4 * lane;
      float4 v = hadamard128(s ? y1 : y0, lane) * load4h(a.svh + col);
      if (a.bias) v = v + load4h(a.bias + col);
      store4(a.out, a.out_dtype, static_cast<size_t>(row0 + row) * a.pitch + col, v);
    }
  });
}

template <int K, Family F>
__global__ void __launch_bounds__(kFatThreads, kFatBlocks) fat_dense(const __grid_constant__ DenseArgs a) {
  extern __shared__ __align__(128) unsigned char shared[];
  const Lane<K> ln(threadIdx.x & 31);
  wait_for_previous();
  const int blocks = (a.m + kFatRows - 1) / kFatRows, chunks = (a.n + 255) / 256;
  for (int t = blockIdx.x; t < blocks * chunks; t += gridDim.x) {
    const int row0 = t % blocks * kFatRows, rows = min(kFatRows, a.m - row0);
    if (rows <= kFatRows / 2)
      dense_tile<K, F, kFatRows / 32>(a, row0, rows, t / blocks, shared, ln);
    else
      dense_tile<K, F, kFatRows / 16>(a, row0, rows, t / blocks, shared, ln);
  }
}

}  // namespace sparkloom
