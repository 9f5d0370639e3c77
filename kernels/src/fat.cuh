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

// What a CTA works on. It lies in shared memory: the main loop needs every register.
struct FatTask {
  enum Kind { skip, rotate, gate_up, down, end };
  int kind, segment, chunk;
  int expert, first, rows;
  int strip;  // of gate/up where each has its own input scales
};

// Thread 0: takes the next task and waits for what it needs, but for the ring's rows.
__device__ __forceinline__ void next_task(const FatArgs& a, FatTask& task) {
  const int n = a.t.header[0], gates = fresh(a.w.inter) / 128, downs = (fresh(a.w.hidden) + 255) / 256;
  const int per_step = kRotateTasks + gates + downs;
  const int ticket = atomicAdd(a.t.header + (a.phases & 1 ? 1 : 2), 1);
  const int step = ticket / per_step;
  int chunk = ticket % per_step, kind, j;
  if (chunk < kRotateTasks) {
    j = step;
    kind = FatTask::rotate;
  } else if ((chunk -= kRotateTasks) < gates) {
    j = step - a.ahead;
    kind = FatTask::gate_up;
  } else {
    chunk -= gates;
    j = step - a.ahead - a.behind;
    kind = FatTask::down;
  }
  if (j < 0 || j >= n || !(a.phases & (kind == FatTask::down ? 2 : 1)))
    kind = step < n + a.ahead + a.behind ? FatTask::skip : FatTask::end;
  if (kind == FatTask::gate_up) {
    group_order(a.t.items, j * gates + chunk, gates, j, chunk);
    wait_count(a.rotated + j, kRotateTasks);
  } else if (kind == FatTask::down) {
    group_order(a.t.items, j * downs + chunk, downs, j, chunk);
    wait_count(a.gated + j, gates);
  }
  task.kind = kind;
  task.segment = j;
  task.chunk = chunk;
  task.strip = 0;
  if (kind != FatTask::skip && kind != FatTask::end) {
    const int4 item = a.t.items[j];
    task.expert = item.x;
    task.first = item.y;
    task.rows = item.z;
  }
}

template <int K, Family F, bool Shared>
__device__ __forceinline__ void gemm_task(const FatArgs& a, volatile FatTask& task, unsigned char* shared) {
  TileSums acc = {};
  // `task` is volatile, so that operands are found anew for each strip instead of kept.
  auto gate_up = [&](auto loop) {
    const int H = a.w.hidden, strip = task.strip;
    const int stride = a.w.inter / 16 * 8 * K, strip_step = H / 16 * stride;
    const RowSource src = {a.ring_x + strip * H, (Shared ? 1 : 2) * H, task.first, task.rows, a.ring_x_rows};
    const size_t matrix = static_cast<size_t>(task.expert) * 2 + strip;
    loop(a.w.w13 + matrix * strip_step + task.chunk * 8 * 8 * K, strip_step, stride, src, H / 16, a.w.cb13);
  };
  if (task.kind == FatTask::down) {
    const int H = a.w.hidden, I = a.w.inter, chunk = task.chunk, stride = H / 16 * 8 * K;
    const RowSource src = {a.ring_act, I, task.first, task.rows, a.ring_act_rows};
    const uint32_t* w = a.w.w2 + static_cast<size_t>(task.expert) * (I / 16) * stride + chunk * 16 * 8 * K;
    tile_mma_rows<K, F>(acc, shared, w, H - chunk * 256 >= 256 ? 8 * 8 * K : 0, stride, src, I / 16, a.w.cb2);
  } else if constexpr (Shared) {
    gate_up([&](auto... operands) { tile_mma_rows<K, F>(acc, shared, operands...); });
  } else {
    // Gate and up read differently rotated rows: one strip after the other, through the same registers.
    for (;;) {
      gate_up([&](auto... operands) { tile_mma<K, F, kBlocks, 1>(acc, shared, operands...); });
#pragma unroll
      for (int b = 0; b < kBlocks; ++b)
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const float t = acc[0][b][c];
          acc[0][b][c] = acc[1][b][c];
          acc[1][b][c] = t;
        }
      if (task.strip) break;
      __syncthreads();
      if (threadIdx.x == 0) task.strip = 1;
      __syncthreads();
    }
  }
  const int H = a.w.hidden, I = a.w.inter, chunk = task.chunk, first = task.first;
  const size_t e = task.expert;
  if (task.kind == FatTask::gate_up) {
    const half* svh = a.w.svh13 + e * 2 * I + chunk * 128;
    const half* suh = a.w.suh2 + e * I + chunk * 128;
    tile_rows(acc, reinterpret_cast<float*>(shared), task.rows, [&](int row, int lane, float4 g, float4 u) {
      const float4 v = gate_up_epilogue(g, u, svh, svh + I, suh, a.limit, lane);
      const size_t ring_row = (first + row) % a.ring_act_rows;
      store4(a.ring_act, Dtype::f16, ring_row * I + chunk * 128 + 4 * lane, v);
    });
  } else {
    const half* svh = a.w.svh2 + e * H + chunk * 256;
    tile_rows(acc, reinterpret_cast<float*>(shared), task.rows, [&](int row, int lane, float4 y0, float4 y1) {
      half* dst = a.rows + static_cast<size_t>(a.t.slots[first + row]) * H + chunk * 256 + 4 * lane;
      auto put = [](half* p, float4 v) {
        auto c = [](float f) { return fminf(fmaxf(f, -65504.f), 65504.f); };
        __stcs(reinterpret_cast<uint2*>(p), make_uint2(pack2(c(v.x), c(v.y)), pack2(c(v.z), c(v.w))));
      };
      put(dst, hadamard128(y0, lane) * load4h(svh + 4 * lane));
      if (H - chunk * 256 >= 256) put(dst + 128, hadamard128(y1, lane) * load4h(svh + 128 + 4 * lane));
    });
  }
}

// Separate input scales take more registers; at rates other than 4 one CTA an SM runs then, the others wait.
template <int K, bool Shared>
constexpr int kFatResident = Shared || K == 4 ? kFatBlocks : 1;

template <int K, Family F, bool Shared>
__global__ void __launch_bounds__(kFatThreads, (kFatResident<K, Shared>))
    fat_moe(const __grid_constant__ FatArgs a) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ volatile FatTask task;
  for (;;) {
    __syncthreads();
    if (threadIdx.x == 0) next_task(a, const_cast<FatTask&>(task));
    __syncthreads();
    if (task.kind == FatTask::end) return;
    if (task.kind == FatTask::skip) continue;
    if (task.kind == FatTask::rotate) {
      wait_ring(a.t.items, task.segment, a.ring_x_rows, a.gated, a.w.inter / 128);
      __syncthreads();
      rotate_task(a, task.segment, task.chunk);
      finish_task(a.rotated + task.segment);
      continue;
    }
    if (task.kind == FatTask::gate_up && (a.phases & 2)) {
      wait_ring(a.t.items, task.segment, a.ring_act_rows, a.done, (a.w.hidden + 255) / 256);
      __syncthreads();
    }
    gemm_task<K, F, Shared>(a, task, shared);
    finish_task((task.kind == FatTask::gate_up ? a.gated : a.done) + task.segment);
  }
}

// Dense linear for many rows: tiles of 64 rows x 256 columns, rows rotated beforehand.
// Tile t of a dense layer: blocks of rows first, so that neighbours share weights.
struct DenseTile {
  int row0, rows, chunk, cols;
  __device__ DenseTile(const DenseArgs& a, int t) {
    const int blocks = (a.m + kFatRows - 1) / kFatRows;
    chunk = t / blocks;
    row0 = (t - chunk * blocks) * kFatRows;
    rows = min(kFatRows, a.m - row0);
    cols = min(256, a.n - chunk * 256);
  }
};

template <int K, Family F>
__global__ void __launch_bounds__(kFatThreads, kFatBlocks) fat_dense(const __grid_constant__ DenseArgs a) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ volatile int current;
  wait_for_previous();
  if (threadIdx.x == 0) current = blockIdx.x;
  for (;;) {
    __syncthreads();
    TileSums acc = {};
    {
      const int t = current;
      if (t >= (fresh(a.m) + kFatRows - 1) / kFatRows * ((a.n + 255) / 256)) return;
      const DenseTile tile(a, t);
      const int stride = a.n / 16 * 8 * K;
      const RowSource src = {a.xh, a.k, tile.row0, tile.rows, a.m};
      tile_mma_rows<K, F>(acc, shared, a.w + tile.chunk * 16 * 8 * K, tile.cols == 256 ? 8 * 8 * K : 0,
                          stride, src, a.k / 16, a.cb);
    }
    const DenseTile tile(a, current);
    tile_rows(acc, reinterpret_cast<float*>(shared), tile.rows, [&](int row, int lane, float4 y0, float4 y1) {
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        if (s * 128 >= tile.cols) break;
        const int col = tile.chunk * 256 + s * 128 + 4 * lane;
        float4 v = hadamard128(s ? y1 : y0, lane) * load4h(a.svh + col);
        if (a.bias) v = v + load4h(a.bias + col);
        store4(a.out, a.out_dtype, static_cast<size_t>(tile.row0 + row) * a.pitch + col, v);
      }
    });
    if (threadIdx.x == 0) current += gridDim.x;
  }
}

}  // namespace sparkloom
