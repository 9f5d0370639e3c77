// Kernels that do not depend on the bit rate: routing tables, rotation, combine, plain Hadamard.
#include "hadamard.cuh"
#include "launch.h"
#include "table.cuh"

namespace sparkloom {
namespace {

constexpr int kThreads = 256;

// Decode: CTA 0 builds the tables and clears the counters; the others rotate one (slot, block) per warp.
__global__ void __launch_bounds__(kThreads) thin_prepare(ThinArgs a, int per_item) {
  __shared__ TableShared sh;
  start_next();
  const int lane = threadIdx.x & 31, H = a.w.hidden, blocks = H / 128;
  if (blockIdx.x == 0) {
    build_table(sh, a.r, a.t, per_item);
    for (int t = threadIdx.x; t < a.r.tokens; t += kThreads) {
      int v = 0;
      for (int j = 0; j < a.r.topk; ++j) v += local_expert(a.r, t * a.r.topk + j) >= 0;
      a.t.valid[t] = v;
    }
    return;
  }
  const int chunks = (H + 255) / 256, others = gridDim.x - 1;
  const int counters = 2 * a.counters_per_phase + a.r.tokens * chunks;
  for (int i = (blockIdx.x - 1) * kThreads + threadIdx.x; i < counters; i += others * kThreads)
    a.counters[i] = 0;
  const int nx = a.w.shared_suh ? 1 : 2, slots = a.r.tokens * a.r.topk;
  const int tasks = slots * nx * blocks;
  for (int i = (blockIdx.x - 1) * (kThreads / 32) + threadIdx.x / 32; i < tasks;
       i += others * (kThreads / 32)) {
    const int block = i % blocks, s = i / blocks, slot = s / nx, which = s % nx;
    const int e = local_expert(a.r, slot), token = slot / a.r.topk;
    if (e < 0) {  // nobody serves this slot; a token without any gets zeros
      if (which == 0 && slot % a.r.topk == 0) {
        bool any = false;
        for (int j = 0; j < a.r.topk; ++j) any |= local_expert(a.r, slot + j) >= 0;
        if (!any)
          store4(a.out, a.out_dtype, static_cast<size_t>(token) * H + block * 128 + 4 * lane,
                 make_float4(0, 0, 0, 0));
      }
      continue;
    }
    const float4 x = load4(a.x, a.x_dtype, static_cast<size_t>(token) * H + block * 128 + 4 * lane);
    const float4 suh = load4h(a.w.suh13 + (static_cast<size_t>(e) * 2 + which) * H + block * 128 + 4 * lane);
    store_fragment(a.xh + (static_cast<size_t>(slot) * nx + which) * H + block * 128, rotate_in(x, suh, lane),
                   lane);
  }
}

__global__ void __launch_bounds__(1024) fat_prepare(FatArgs a, int flags) {
  __shared__ TableShared sh;
  for (int i = threadIdx.x; i < flags; i += 1024) a.rotated[i] = 0;  // rotated, gated, done are adjacent
  build_table(sh, a.r, a.t, kFatRows);
}

__global__ void __launch_bounds__(1024) route_kernel(Routing r, Tables t, int per_item) {
  __shared__ TableShared sh;
  build_table(sh, r, t, per_item);
}

// Prefill: out[token] = sum over its slots, in order, of weight x row.
__global__ void __launch_bounds__(kThreads) fat_combine(FatArgs a, void* out, Dtype out_dtype) {
  const int H = a.w.hidden;
  const size_t i = (static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x) * 4;
  if (i >= static_cast<size_t>(a.r.tokens) * H) return;
  const int token = i / H, col = i % H;
  float4 v = make_float4(0, 0, 0, 0);
#pragma unroll 8
  for (int j = 0; j < a.r.topk; ++j) {
    const int slot = token * a.r.topk + j;
    if (local_expert(a.r, slot) < 0) continue;
    const float w = a.r.weights[slot];
    uint2 u = __ldcs(reinterpret_cast<const uint2*>(a.rows + static_cast<size_t>(slot) * H + col));
    const float2 p = __half22float2(*reinterpret_cast<half2*>(&u.x));
    const float2 q = __half22float2(*reinterpret_cast<half2*>(&u.y));
    v = v + make_float4(p.x * w, p.y * w, q.x * w, q.y * w);
  }
  store4(out, out_dtype, i, v);
}

// Dense: rotate all rows, in fragment order (decode path) or row order; clear the counters.
__global__ void __launch_bounds__(kThreads) dense_prepare(DenseArgs a, int fragment, int counters) {
  start_next();
  const int lane = threadIdx.x & 31, blocks = a.k / 128;
  for (int i = blockIdx.x * kThreads + threadIdx.x; i < counters; i += gridDim.x * kThreads)
    a.counters[i] = 0;
  const size_t tasks = static_cast<size_t>(a.m) * blocks;
  for (size_t i = blockIdx.x * (kThreads / 32) + threadIdx.x / 32; i < tasks;
       i += gridDim.x * (kThreads / 32)) {
    const size_t at = i * 128;
    const int block = i % blocks;
    const float4 v =
        rotate_in(load4(a.x, a.x_dtype, at + 4 * lane), load4h(a.suh + block * 128 + 4 * lane), lane);
    if (fragment)
      store_fragment(a.xh + at, v, lane);
    else
      store4(a.xh, Dtype::f16, at + 4 * lane, v);
  }
}

// y = had128(x * before) * after, blocks of 128 along the last dimension; either scale may be null.
__global__ void __launch_bounds__(kThreads)
    hadamard_kernel(const void* x, Dtype xt, const half* before, const half* after, void* y, Dtype yt,
                    size_t rows, int n) {
  const int lane = threadIdx.x & 31, blocks = n / 128;
  const size_t tasks = rows * blocks;
  for (size_t i = blockIdx.x * (kThreads / 32) + threadIdx.x / 32; i < tasks;
       i += static_cast<size_t>(gridDim.x) * (kThreads / 32)) {
    const int col = (i % blocks) * 128 + 4 * lane;
    float4 v;
    if (xt == Dtype::f32)
      v = *reinterpret_cast<const float4*>(static_cast<const float*>(x) + i * 128 + 4 * lane);
    else
      v = load4(x, xt, i * 128 + 4 * lane);
    v = before ? rotate_in(v, load4h(before + col), lane) : hadamard128(v, lane);
    if (after) v = v * load4h(after + col);
    store4(y, yt, i * 128 + 4 * lane, v);
  }
}

}  // namespace

void launch_thin_prepare(const ThinArgs& a, int per_item, int sms, cudaStream_t stream) {
  const int nx = a.w.shared_suh ? 1 : 2;
  const int warps = a.r.tokens * a.r.topk * nx * (a.w.hidden / 128);
  int grid = 1 + (warps + 7) / 8;
  if (grid > 8 * sms) grid = 8 * sms;
  thin_prepare<<<grid, kThreads, 0, stream>>>(a, per_item);
}
void launch_route(const Routing& r, const Tables& t, int per_item, cudaStream_t stream) {
  route_kernel<<<1, 1024, 0, stream>>>(r, t, per_item);
}
void launch_fat_prepare(const FatArgs& a, int flags, cudaStream_t stream) {
  fat_prepare<<<1, 1024, 0, stream>>>(a, flags);
}
void launch_fat_combine(const FatArgs& a, void* out, Dtype t, cudaStream_t stream) {
  const size_t quads = static_cast<size_t>(a.r.tokens) * a.w.hidden / 4;
  fat_combine<<<static_cast<unsigned>((quads + kThreads - 1) / kThreads), kThreads, 0, stream>>>(a, out, t);
}
void launch_dense_prepare(const DenseArgs& a, bool fragment, int counters, int sms, cudaStream_t stream) {
  const size_t blocks = (static_cast<size_t>(a.m) * (a.k / 128) + 7) / 8;
  const unsigned cap = 16u * sms, grid = blocks < cap ? static_cast<unsigned>(blocks) : cap;
  dense_prepare<<<grid, kThreads, 0, stream>>>(a, fragment, counters);
}
void launch_hadamard(const void* x, Dtype xt, const half* before, const half* after, void* y, Dtype yt,
                     size_t rows, int n, int sms, cudaStream_t stream) {
  const size_t blocks = (rows * (n / 128) + 7) / 8;
  const unsigned cap = 16u * sms, grid = blocks < cap ? static_cast<unsigned>(blocks) : cap;
  hadamard_kernel<<<grid, kThreads, 0, stream>>>(x, xt, before, after, y, yt, rows, n);
}

}  // namespace sparkloom
