// Routing tables by one CTA: counts, items of at most `per_item` rows, slots sorted by expert.
#pragma once
#include "args.h"

namespace sparkloom {

constexpr int kOrderedSlots = 2048;

struct TableShared {
  int count[kMaxExperts], first[kMaxExperts];
  int items;
};

// The slot's expert on this rank, negative if it has none here (ids out of range included).
__device__ __forceinline__ int local_expert(const Routing& r, int slot) {
  int e = r.ids[slot];
  if (r.expert_map) e = e >= 0 && e < r.mapped ? r.expert_map[e] : -1;
  return e < r.experts ? e : -1;
}

// f(slot, expert) for every slot that is served here; eight loads are under way at a time.
template <class Fn>
__device__ __forceinline__ void for_slots(const Routing& r, int slots, Fn f) {
  for (int base = threadIdx.x; base < slots; base += 8 * blockDim.x) {
    int e[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int s = base + i * blockDim.x;
      e[i] = s < slots ? local_expert(r, s) : -1;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (e[i] >= 0) f(base + i * static_cast<int>(blockDim.x), e[i]);
  }
}

// Exclusive scan of 32 values in a warp; returns the total through `sum`.
__device__ __forceinline__ int warp_scan(int v, int& sum) {
  const int lane = threadIdx.x & 31;
  int s = v;
#pragma unroll
  for (int m = 1; m < 32; m <<= 1) {
    const int o = __shfl_up_sync(~0u, s, m);
    if (lane >= m) s += o;
  }
  sum = __shfl_sync(~0u, s, 31);
  return s - v;
}

// Few slots are placed in their own order, so that a decode step repeats to the bit. Many are placed as they
// come: a prefill row's result does not depend on its place.
__device__ inline void build_table(TableShared& sh, const Routing& r, const Tables& t, int per_item) {
  const int slots = r.tokens * r.topk, lane = threadIdx.x & 31;
  for (int e = threadIdx.x; e < r.experts; e += blockDim.x) sh.count[e] = 0;
  __syncthreads();
  for_slots(r, slots, [&](int, int e) { atomicAdd(&sh.count[e], 1); });
  __syncthreads();
  if (threadIdx.x < 32) {
    int rows = 0, items = 0;
    for (int base = 0; base < r.experts; base += 32) {
      const int e = base + lane, c = e < r.experts ? sh.count[e] : 0, n = (c + per_item - 1) / per_item;
      int a, b;
      const int row0 = rows + warp_scan(c, a), item0 = items + warp_scan(n, b);
      if (e < r.experts) sh.first[e] = row0;
      // Equal items: CTAs that share an expert's weights then keep the same pace, and L2 serves all but one.
      for (int i = 0; i < n; ++i) {
        const int from = c * i / n, to = c * (i + 1) / n;
        const int group = i / kFatGroup * kFatGroup;
        t.items[item0 + i] =
            make_int4(e, row0 + from, to - from, 8 * (item0 + group) + min(kFatGroup, n - group));
      }
      rows += a;
      items += b;
    }
    if (lane == 0) {
      t.header[0] = items;
      t.header[1] = t.header[2] = 0;
      sh.items = items;
    }
  }
  __syncthreads();
  if (slots <= kOrderedSlots) {
    if (threadIdx.x >= 32) return;
    for (int base = 0; base < slots; base += 32) {
      const int s = base + lane, e = s < slots ? local_expert(r, s) : -1;
      const unsigned same = __match_any_sync(~0u, e), before = same & ((1u << lane) - 1);
      int first = 0;
      if (e >= 0) first = sh.first[e];
      __syncwarp();
      if (e >= 0) {
        t.slots[first + __popc(before)] = s;
        if (!before) sh.first[e] = first + __popc(same);
      }
      __syncwarp();
    }
    return;
  }
  for_slots(r, slots, [&](int s, int e) { t.slots[atomicAdd(&sh.first[e], 1)] = s; });
}

}  // namespace sparkloom
