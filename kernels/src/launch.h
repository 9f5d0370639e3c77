// Host-side launchers. Every one is asynchronous, allocates nothing and can be captured into a graph.
#pragma once
#include "args.h"

namespace sparkloom {

// bit-rate independent (common.cu)
void launch_thin_prepare(const ThinArgs& a, int per_item, int sms, cudaStream_t stream);
void launch_route(const Routing& r, const Tables& t, int per_item, cudaStream_t stream);
void launch_fat_prepare(const FatArgs& a, int flags, cudaStream_t stream);
void launch_fat_combine(const FatArgs& a, void* out, Dtype t, cudaStream_t stream);
void launch_dense_prepare(const DenseArgs& a, bool fragment, int counters, int sms, cudaStream_t stream);
void launch_hadamard(const void* x, Dtype xt, const half* before, const half* after, void* y, Dtype yt,
                     size_t rows, int n, int sms, cudaStream_t stream);

// per bit rate and codebook family (instances.cu, one object each)
template <int K, Family F>
struct Rate {
  static void reconstruct(const uint32_t* w, void* out, Dtype t, int matrices, int k, int n,
                          const Codebook& cb, cudaStream_t stream);
  static void thin_gate_up(const ThinArgs& a, int sms, cudaStream_t stream);
  static void thin_down(const ThinArgs& a, int sms, cudaStream_t stream);
  static void thin_dense(const DenseArgs& a, int sms, cudaStream_t stream);
  static void fat_moe(const FatArgs& a, int sms, cudaStream_t stream);
  static void fat_dense(const DenseArgs& a, int sms, cudaStream_t stream);
};

// Rows that one decode item holds.
inline int thin_rows_per_item(int tokens) { return tokens <= 8 ? 8 : 16; }

}  // namespace sparkloom
