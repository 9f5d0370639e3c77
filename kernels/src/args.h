// Plain structs that cross from the host to the kernels. No torch, no templates.
#pragma once
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace sparkloom {

// dtype of activations in and out
enum class Dtype : int { f16 = 0, bf16 = 1, f32 = 2 };

// How a 16-bit trellis state becomes a weight: p = state * mul + add, then
//   sum:   the two fp16 halves of (p & mask) ^ bias, added          (3INST, MCG)
//   bytes: 1024 + the sum of the four bytes of p, one fp16 fma      (MUL1)
enum class Family : int { sum = 0, bytes = 1 };
struct Codebook {
  uint32_t mul, add;
  Family family;
};

constexpr int kThinRows = 64;       // most tokens of the decode path
constexpr int kFatRows = 64;        // most rows of one prefill segment
constexpr int kMaxExperts = 1024;   // routing table in shared memory
constexpr int kMaxThinBlocks = 2;   // CTAs per SM of the decode path
constexpr int kFatGroup = 4;        // segments of one expert that run side by side
constexpr int kFatBlocks = 2;       // CTAs per SM of the prefill path
constexpr int kThinPartial = 4096;  // floats of one split-k partial: 16 rows x 2 strips x 128

// Stacked weights of all local experts, in the checkpoint's own order:
//   w13 [E, 2, H/16, I/16, 16 K13] int16, suh13 [E, 2, H], svh13 [E, 2, I]
//   w2  [E, I/16, H/16, 16 K2]     int16, suh2  [E, I],    svh2  [E, H]
struct Experts {
  const uint32_t* w13;
  const half *suh13, *svh13;
  const uint32_t* w2;
  const half *suh2, *svh2;
  int count, hidden, inter, bits13, bits2;
  Codebook cb13, cb2;
  int shared_suh;  // gate and up of every expert have the same suh
};

// Routing: slot s = token * topk + j. expert_map (global -> local, -1 = elsewhere) may be null.
struct Routing {
  const int* ids;
  const float* weights;
  const int* expert_map;
  int tokens, topk, experts, mapped;  // mapped = length of expert_map
};

// Tables that the routing kernel writes.
//   header[0] = number of items, header[1], [2] = prefill tickets (gate/up or all; down alone)
//   items[i] = {expert, first entry in slots, rows, group}; the entry, modulo a ring's rows, is also the ring
//   row; group = 8 x (first item of the group) + items in it: up to kFatGroup neighbours of one expert slots
//   = slot ids sorted by expert;  valid[t] = slots of token t that are served here
struct Tables {
  int* header;
  int4* items;
  int* slots;
  int* valid;
};

struct ThinArgs {
  Experts w;
  Routing r;
  Tables t;
  const void* x;
  Dtype x_dtype;
  void* out;
  Dtype out_dtype;
  float limit;  // SwiGLU clamp, <= 0 for none
  half* xh;     // [slots, 1 or 2, H] rotated activations, fragment order
  half* act;    // [slots, I] rotated SwiGLU output, fragment order
  float* rows;  // [slots, H] weighted expert outputs
  float* partial;
  int* counters;  // [items * max(I/128, ceil(H/256))] x 2, then [tokens * ceil(H/256)]
  int counters_per_phase;
};

struct FatArgs {
  Experts w;
  Routing r;
  Tables t;
  const void* x;
  Dtype x_dtype;
  float limit;
  half* ring_x;    // [ring_x_rows, 1 or 2, H]
  half* ring_act;  // [ring_act_rows, I]
  half* rows;      // [slots, H] expert outputs before the route weight
  int *rotated, *gated, *done;
  int ring_x_rows, ring_act_rows, ahead, behind;
  int phases;  // 1 = rotate + gate/up, 2 = down, 3 = both
};

struct DenseArgs {
  const void* x;
  Dtype x_dtype;
  void* out;
  Dtype out_dtype;
  const uint32_t* w;
  const half *suh, *svh, *bias;
  int m, k, n, bits, pitch;  // pitch = elements from one row of out to the next
  Codebook cb;
  half* xh;
  float* partial;
  int* counters;
};

}  // namespace sparkloom
