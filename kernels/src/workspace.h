// Where everything lies in the caller's one scratch tensor. Sizes depend on shapes alone, never on routing.
#pragma once
#include <algorithm>

#include "args.h"

namespace sparkloom {

struct Arena {
  char* base;
  size_t used = 0;
  template <class T>
  T* take(size_t count) {
    T* p = reinterpret_cast<T*>(base + used);
    used += (count * sizeof(T) + 255) / 256 * 256;
    return p;
  }
};

constexpr size_t kRingXBytes = size_t{11} << 20, kRingActBytes = size_t{4} << 20;

inline int chunks256(int n) { return (n + 255) / 256; }

inline size_t place_thin(ThinArgs& a, void* workspace, int sms) {
  Arena m{static_cast<char*>(workspace)};
  const size_t slots = static_cast<size_t>(a.r.tokens) * a.r.topk, nx = a.w.shared_suh ? 1 : 2;
  a.t.header = m.take<int>(4);
  a.t.items = m.take<int4>(slots);
  a.t.slots = m.take<int>(slots);
  a.t.valid = m.take<int>(a.r.tokens);
  a.counters_per_phase = static_cast<int>(slots) * std::max(a.w.inter / 128, chunks256(a.w.hidden));
  a.counters =
      m.take<int>(2 * static_cast<size_t>(a.counters_per_phase) + a.r.tokens * chunks256(a.w.hidden));
  a.xh = m.take<half>(slots * nx * a.w.hidden);
  a.act = m.take<half>(slots * a.w.inter);
  a.rows = m.take<float>(slots * a.w.hidden);
  a.partial = m.take<float>(static_cast<size_t>(sms) * kMaxThinBlocks * 2 * kThinPartial);
  return m.used;
}

// Also fixes the queue's look-ahead: enough segments between gate/up and down to keep every SM busy.
inline size_t place_fat(FatArgs& a, void* workspace, int sms, int* flags = nullptr) {
  Arena m{static_cast<char*>(workspace)};
  const size_t slots = static_cast<size_t>(a.r.tokens) * a.r.topk, nx = a.w.shared_suh ? 1 : 2;
  const size_t segments = slots / kFatRows + std::min<size_t>(a.r.experts, slots) + 1;
  const bool mixed = a.w.bits13 != a.w.bits2 || a.w.cb13.family != a.w.cb2.family;
  // Group order (fat.cuh) needs: ahead >= kFatGroup - 1, behind >= kFatGroup, and rings that hold what the
  // queue keeps in flight: kFatRows x (ahead + kFatGroup + 1) and kFatRows x (behind + 2 kFatGroup) rows.
  a.ahead = kFatGroup;
  a.ring_x_rows =
      static_cast<int>(std::max<size_t>(kRingXBytes / (nx * a.w.hidden * 2), kFatRows * (2 * kFatGroup + 1)));
  const int least = kFatRows * 3 * kFatGroup,
            afford = static_cast<int>(kRingActBytes / (a.w.inter * size_t{2}));
  const int gates = a.w.inter / 128, want = (kFatBlocks * sms * 7 / 10 + gates - 1) / gates + 1;
  a.ring_act_rows = std::max(least, std::min(afford, kFatRows * (want + 2 * kFatGroup)));
  a.behind = std::max(kFatGroup, std::min(want, a.ring_act_rows / kFatRows - 2 * kFatGroup));
  if (mixed) a.ring_act_rows = std::max<int>(a.ring_act_rows, static_cast<int>(slots));
  a.t.header = m.take<int>(4);
  a.t.items = m.take<int4>(segments);
  a.t.slots = m.take<int>(slots);
  a.t.valid = nullptr;
  a.rotated = m.take<int>(3 * segments);
  a.gated = a.rotated + segments;
  a.done = a.gated + segments;
  if (flags) *flags = static_cast<int>(3 * segments);
  a.ring_x = m.take<half>(static_cast<size_t>(a.ring_x_rows) * nx * a.w.hidden);
  a.ring_act = m.take<half>(static_cast<size_t>(a.ring_act_rows) * a.w.inter);
  a.rows = m.take<half>(slots * a.w.hidden);
  return m.used;
}

inline size_t place_dense(DenseArgs& a, void* workspace, bool thin, int sms) {
  Arena m{static_cast<char*>(workspace)};
  a.xh = m.take<half>(static_cast<size_t>(a.m) * a.k);
  if (thin) {
    a.counters = m.take<int>((a.m + 15) / 16 * chunks256(a.n));
    a.partial = m.take<float>(static_cast<size_t>(sms) * kMaxThinBlocks * 2 * kThinPartial);
  }
  return m.used;
}

}  // namespace sparkloom
