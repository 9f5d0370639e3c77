// ExLlamaV3's MoE kernels as a black box: compiled against the headers of the user's exllamav3 wheel (1.6.5),
// for K = 4 and codebook MCG, and called from bench.py through plain C. Nothing of the wheel is kept here.
#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
namespace cg = cooperative_groups;
#include <ATen/Tensor.h>

#include <algorithm>
#include <cstdio>

#include "ptx.cuh"
#include "quant/exl3_moe_kernel.cuh"
#include "util.cuh"
#include "util.h"
#define EXL3_MOE_COOP_DEFINE_ROT
#include "quant/exl3_moe_coop_kernel.cuh"

namespace {
constexpr int kCap = 8192;   // rows of one expert that exl3_moe's scratch holds
constexpr int kSlots = 256;  // token-expert pairs that the cooperative kernel takes
constexpr int kTokens = 32;
int sms, groups, hidden, inter, experts;
int* locks;
half *state_g, *state_u, *inter_g, *inter_u, *had_g, *had_u, *act;
float *gu_g, *gu_u, *down;
int* counters;

template <class T>
void take(T*& p, size_t n) {
  if (cudaMalloc(&p, n * sizeof(T)) != cudaSuccess) std::printf("exllamav3 arm: out of memory\n");
  cudaMemset(p, 0, n * sizeof(T));
}
}  // namespace

extern "C" int arm_setup(int h, int i, int e) {
  cudaDeviceProp prop;
  cudaGetDeviceProperties(&prop, 0);
  sms = prop.multiProcessorCount;
  groups = sms / 8;
  hidden = h;
  inter = i;
  experts = e;
  const size_t rows = static_cast<size_t>(groups) * kCap;
  take(locks, 1024 * 1024 + 4096);
  take(state_g, rows * h);
  take(state_u, rows * h);
  take(inter_g, rows * i);
  take(inter_u, rows * i);
  take(had_g, static_cast<size_t>(kSlots) * h);
  take(had_u, static_cast<size_t>(kSlots) * h);
  take(act, static_cast<size_t>(kSlots) * i);
  take(gu_g, static_cast<size_t>(kSlots) * i);
  take(gu_u, static_cast<size_t>(kSlots) * i);
  take(down, static_cast<size_t>(kSlots) * h);
  take(counters, 1 << 18);
  cudaFuncSetAttribute(exl3_moe_kernel<4, 256, 1, 16, false, false>,
                       cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_MAX);
  using namespace exl3_moe_coop_ns;
  cudaFuncSetAttribute(exl3_moe_coop_a_kernel<4, 1, true>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       100 * 1024);
  cudaFuncSetAttribute(exl3_moe_coop_b_kernel<4, 1, true>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       100 * 1024);
  return static_cast<int>(cudaGetLastError());
}

// table: device int64 [9][experts]: gate trellis, suh, svh; up trellis, suh, svh; down trellis, suh, svh.
extern "C" int arm_moe(const int64_t* table, const half* x, float* out, const int64_t* count,
                       const int64_t* tokens, const half* weights, float limit, cudaStream_t stream) {
  const int64_t* t = table;
  const int e = experts;
  auto words = [&](int k) { return (const uint16_t**)(t + static_cast<size_t>(k) * e); };
  auto halves = [&](int k) { return (const half**)(t + static_cast<size_t>(k) * e); };
  exl3_moe_kernel<4, 256, 1, 16, false, false><<<dim3(8, 1, groups), 512, SMEM_MAX, stream>>>(
      x, state_g, state_u, inter_g, inter_u, out, words(0), halves(1), halves(2), words(3), halves(4),
      halves(5), words(6), halves(7), halves(8), count, tokens, weights, hidden, inter, e, 8, kCap, groups,
      limit, 0, 8, 8, 8, locks, (float*)nullptr, (const int64_t*)nullptr, 1, 1 << 30);
  return static_cast<int>(cudaGetLastError());
}

// The cooperative kernels in their wide geometry, the faster one on every case tried.
extern "C" int arm_coop(const int64_t* t, const half* x, float* out, const int64_t* sel, const half* weights,
                        int rows, int topk, float limit, cudaStream_t stream) {
  using namespace exl3_moe_coop_ns;
  if (rows * topk > kSlots || rows > kTokens) return -1;
  const int e = experts;
  MoeCoopParams p = {};
  p.x = x;
  p.x_stride = hidden;
  p.sel = sel;
  p.rw = weights;
  p.bsz = rows;
  p.topk = topk;
  p.H = p.Hi = p.Ho = p.H_out = hidden;
  p.I = inter;
  p.min_expert = -1;
  p.g_trellis = t;
  p.g_suh = t + e;
  p.g_svh = t + 2 * e;
  p.u_trellis = t + 3 * e;
  p.u_suh = t + 4 * e;
  p.u_svh = t + 5 * e;
  p.d_trellis = t + 6 * e;
  p.d_suh = t + 7 * e;
  p.d_svh = t + 8 * e;
  p.act = 0;
  p.act_limit = limit;
  p.gated = true;
  p.had_g = had_g;
  p.had_u = had_u;
  p.gu_g = gu_g;
  p.gu_u = gu_u;
  p.gu_f32 = false;
  p.act_out = act;
  p.d_out = down;
  p.slots_max = kSlots;
  p.rows_max = kTokens;
  p.ctr_a_len = kSlots * (inter / 128);
  p.ctr_b_len = kTokens * (hidden / 128);
  p.ctr_a = counters;
  p.ctr_b = p.ctr_a + p.ctr_a_len;
  p.runs = p.ctr_b + p.ctr_b_len;
  p.n_local = e;
  p.out = out;
  p.out_stride = hidden;
  p.ksplit_a = p.ksplit_b = 1;
  const int slots = rows * topk;
  p.a_global = rows > 1;
  if (p.a_global)
    exl3_moe_coop_rot_kernel<<<CEIL_DIVIDE(slots * (hidden / 128) * 2, 16), 512, 0, stream>>>(p);
  exl3_moe_coop_a_kernel<4, 1, true><<<slots * 2 * (inter / 128), 512, smem_a_bytes<4>(hidden), stream>>>(p);
  exl3_moe_coop_b_kernel<4, 1, true><<<slots*(hidden / 128), 512, smem_b_bytes<4>(), stream>>>(p);
  return static_cast<int>(cudaGetLastError());
}
