// Tail-biting Viterbi search: the ring of states whose codebook values come nearest to a tile's 256 weights.
//
// One CTA of 1024 threads searches one tile at a time, the same way as the CPU encoder and to the same bits.
// Even positions of the ring add A bits, odd ones B (A = B, or B = A + 1 at a half rate). A path is carried
// on by an *edge*: the low 16 - b bits of its state, b being what the next position adds. Per position each
// of the 65,536 states is one branch into its edge; only the best branch of an edge survives.
//
// A thread owns 64 states for the whole search, so their codebook values stay in its registers (a few
// in its own part of shared memory). A state is
// [top: B bits | middle | low: B bits]; a thread has all tops (or a share of them, at 7 and 8 bits) of some
// middles and lows. Costs of edges lie in shared memory; a cost's lowest bits hold the branch that won, so
// one integer minimum gives both (costs are positive floats, and those order like integers). The branches go
// to global memory, packed, for the trace back.
#pragma once
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace sparkloom {

constexpr int kEncodeThreads = 1024;

struct EncodeArgs {
  const float* weights;      // [tiles][256], in ring order
  const uint16_t* codebook;  // [65536], bits of fp16
  uint16_t* out;             // [tiles][16 * bits], packed
  unsigned char* branches;   // [grid][256][kStride]
  int* failed;               // tiles whose path did not close
  int tiles, window, relief;
};

template <int A, int B>
struct Search {
  static_assert(B == A || B == A + 1);
  static constexpr bool kHalf = A != B;
  static constexpr int kMiddle = 16 - 2 * B;                                    // bits between top and low
  static constexpr int kGroups = B <= 3 ? (1 << kMiddle) / kEncodeThreads : 1;  // middles of a thread
  static constexpr int kLows = B <= 3 ? 1 << B : (B == 4 ? 4 : B == 5 ? 2 : 1);
  static constexpr int kTops = 64 / (kGroups * kLows);
  static constexpr int kShares = (1 << B) / kTops;  // threads among which an edge's branches are dealt
  static constexpr int kPerMiddle = (1 << B) / kLows * kShares;      // threads of one middle, where B > 3
  static constexpr int kEven = 1 << (16 - A), kOdd = 1 << (16 - B);  // edges before even and odd positions
  static constexpr bool kInPlace = B <= 3;                           // two arrays would leave no room
  static constexpr int kCosts = kInPlace ? kEven : kEven + kOdd;
  // Pairs of values that a thread keeps in shared memory, for want of registers.
  static constexpr int kParked = B == 3 && A == 3 ? 12 : B >= 6 ? 12 : 8;
  static constexpr int kMost = (kHalf ? 2 : 1) * kGroups * kLows;  // edges of a thread
  // Bits that a branch takes in its thread's word, and bytes of a position.
  __host__ __device__ static constexpr int slot_bits(int b) { return b <= 2 ? 2 : b <= 4 ? 4 : 8; }
  __host__ __device__ static constexpr int word_bits(int b, int edges) { return slot_bits(b) * edges; }
  static constexpr int kWordEven = word_bits(B, kGroups* kLows);  // after an even position
  static constexpr int kWordOdd = word_bits(A, kMost);
  static constexpr int kWord = kWordEven > kWordOdd ? kWordEven : kWordOdd;
  static constexpr int kStride = kEncodeThreads / kShares * kWord / 8;
  static constexpr int kChunk = 8;  // positions whose branches are fetched together for the trace
  static constexpr int kArea = kCosts * 4 > kChunk* kStride ? kCosts * 4 : kChunk* kStride;  // bytes
  static constexpr int kShared = kArea + kParked * kEncodeThreads * 4;
  static_assert(kWord == 8 || kWord == 16 || kWord == 32);

  int middle, low, share;  // of this thread; its groups are kEncodeThreads middles apart

  __device__ __forceinline__ explicit Search(int t) {
    if constexpr (B <= 3) {
      middle = t;
      low = share = 0;
    } else {
      middle = t / kPerMiddle;
      low = t % kPerMiddle / kShares * kLows;
      share = t % kShares;
    }
  }
  // Sums, not ors: what is known at compile time becomes the offset of a load or store.
  __device__ __forceinline__ int state(int g, int top, int l) const {
    return (share * kTops << (16 - B)) + (middle << B) + low + (top << (16 - B)) + (g * kEncodeThreads << B) +
           l;
  }
  template <int from>  // the edge that a state comes from; its position adds `from` bits
  __device__ __forceinline__ int before(int g, int top, int l) const {
    return (share * kTops << (16 - B - from)) + (middle << (B - from)) + (low >> from) +
           (top << (16 - B - from)) + (g * kEncodeThreads << (B - from)) + (l >> from);
  }
  __device__ __forceinline__ int after(int g, int tail, int l) const {  // the edge that it goes on by
    return (middle << B) + low + (tail << (16 - B)) + (g * kEncodeThreads << B) + l;
  }
};

// The thread's number, read anew: kept across the search, it and what follows from it would cost registers.
__device__ __forceinline__ int thread_now() {
  int t;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(t));
  return t;
}

// value - w for one of a packed pair of values. From sm_100 on this is one instruction. Before, `zero` (which
// the compiler cannot know to be 0) keeps it from converting all 64 values ahead of the search, for which
// there are no registers.
__device__ __forceinline__ float difference(uint32_t& pair, bool high, float w, bool renew, uint32_t zero) {
  float d;
#if __CUDA_ARCH__ >= 1000
  if (high)
    asm("{ .reg .b16 a, b; mov.b32 {a, b}, %1; sub.f32.f16 %0, b, %2; }" : "=f"(d) : "r"(pair), "f"(w));
  else
    asm("{ .reg .b16 a, b; mov.b32 {a, b}, %1; sub.f32.f16 %0, a, %2; }" : "=f"(d) : "r"(pair), "f"(w));
#else
  if (renew) asm("add.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(pair), "r"(zero));
  const __half2 both = *reinterpret_cast<const __half2*>(&pair);
  d = (high ? __high2float(both) : __low2float(both)) - w;
#endif
  return d;
}

// Numbers that the compiler must take from shared memory anew at every position. Two copies of everything,
// for odd and even threads: a value at one address would go to a uniform register, which costs a move at each
// use.
struct Opaque {
  int keep_even, keep_odd;
  uint32_t zero;  // two fp16 of minus zero, which leave any value as it is
  uint32_t spare;
};

// One position: costs of the edges before -> costs of the edges after, packed with the branch.
template <class S, int A, int B, bool kEvenPosition>
__device__ __forceinline__ void advance(int (&best)[S::kMost], const float* cost, const float* target,
                                        uint32_t (&values)[32], const uint32_t* all_parked,
                                        const Opaque* opaque) {
  const int t = thread_now();
  const S s(t);
  const uint32_t* parked = all_parked + t;
  opaque += t & 1;
  target += (t & 1) * 256;

  constexpr int from = kEvenPosition ? A : B;
  constexpr int tails = S::kHalf && !kEvenPosition ? 2 : 1;  // the top's last bit belongs to the edge
  const float w = *target;
  const int keep = kEvenPosition ? opaque->keep_even : opaque->keep_odd;  // all but the branch's bits
  const uint32_t zero = opaque->zero;
#pragma unroll
  for (int g = 0; g < S::kGroups; ++g) {
#pragma unroll
    for (int i = 0; i < tails * S::kLows; ++i) best[g * tails * S::kLows + i] = 0x7F000000;
#pragma unroll
    for (int top = 0; top < S::kTops; ++top) {
#pragma unroll
      for (int l = 0; l < S::kLows; ++l) {
        const float c = cost[s.template before<from>(g, top, l)];
        const int i = (g * S::kTops + top) * S::kLows + l;
        if (i / 2 < S::kParked && i % 2 == 0) values[i / 2] = parked[i / 2 * kEncodeThreads];
        const float d = difference(values[i / 2], i & 1, w, i / 2 >= S::kParked && i % 2 == 0, zero);
        const int v = (__float_as_int(__fmaf_rn(d, d, c)) & keep) | (tails == 2 ? top >> 1 : top);
        int& b = best[(g * tails + (tails == 2 ? top & 1 : 0)) * S::kLows + l];
        b = min(b, v);
      }
    }
  }
  if constexpr (S::kShares > 1) {
    best[0] |= s.share * S::kTops;
#pragma unroll
    for (int lane = 1; lane < S::kShares; lane *= 2)
      best[0] = min(best[0], __shfl_xor_sync(~0u, best[0], lane));
  }
}

// Where the branch into an edge stands: the word's index, and the shift inside it.
template <class S, int A, int B, bool kEvenPosition>
__device__ __forceinline__ int find_branch(const unsigned char* position, int edge) {
  constexpr int to = kEvenPosition ? B : A;
  constexpr int tails = S::kHalf && !kEvenPosition ? 2 : 1;
  constexpr int bits = S::word_bits(to, tails * S::kGroups * S::kLows), slot = S::slot_bits(to);
  const int middle = edge >> B & ((1 << S::kMiddle) - 1), low = edge & ((1 << B) - 1);
  const int tail = tails == 2 ? edge >> (16 - B) : 0;
  int index, place;
  if constexpr (B <= 3) {
    index = middle & (kEncodeThreads - 1);
    place = (middle / kEncodeThreads * tails + tail) * S::kLows + low;
  } else {
    index = middle * ((1 << B) / S::kLows) + low / S::kLows;
    place = tail * S::kLows + low % S::kLows;
  }
  uint32_t word;
  if constexpr (bits == 32)
    word = reinterpret_cast<const uint32_t*>(position)[index];
  else if constexpr (bits == 16)
    word = reinterpret_cast<const uint16_t*>(position)[index];
  else
    word = position[index];
  return word >> (place * slot) & ((1 << to) - 1);
}

__device__ __forceinline__ unsigned long long block_min(unsigned long long v, unsigned long long* scratch) {
#pragma unroll
  for (int d = 16; d; d /= 2) {
    const unsigned long long other = __shfl_xor_sync(~0u, v, d);
    v = other < v ? other : v;
  }
  const int t = thread_now();
  if (t % 32 == 0) scratch[t / 32] = v;
  __syncthreads();
  v = scratch[t % 32];
#pragma unroll
  for (int d = 16; d; d /= 2) {
    const unsigned long long other = __shfl_xor_sync(~0u, v, d);
    v = other < v ? other : v;
  }
  __syncthreads();
  return v;
}

template <int A, int B>
__global__ void __launch_bounds__(kEncodeThreads, 1) encode_tiles_kernel(EncodeArgs a) {
  using S = Search<A, B>;
  extern __shared__ __align__(16) unsigned char area[];
  __shared__ float weights[2][256];
  __shared__ Opaque opaque[2];
  __shared__ uint16_t states[256];
  __shared__ unsigned long long scratch[32];
  __shared__ int entry, passed;  // the edge at the seam; the edge at hand of the trace
  float* even = reinterpret_cast<float*>(area);
  float* odd = S::kInPlace ? even : even + S::kEven;

  if (const int t = thread_now(); t < 2) opaque[t] = {~((1 << B) - 1), ~((1 << A) - 1), 0x80008000u, 0};
  uint32_t* parked = reinterpret_cast<uint32_t*>(area + S::kArea);
  // Stores the edges of a step and their branches; `least` is subtracted from the costs.
  auto store = [&](auto even_position, const int(&best)[S::kMost], float* fresh, int position, float least) {
    constexpr bool kEvenPosition = decltype(even_position)::value;
    constexpr int to = kEvenPosition ? B : A;
    constexpr int tails = S::kHalf && !kEvenPosition ? 2 : 1;
    constexpr int slot = S::slot_bits(to), bits = S::word_bits(to, tails * S::kGroups * S::kLows);
    const int t = thread_now();
    const S s(t);
    if (S::kShares > 1 && s.share) return;
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < tails * S::kGroups * S::kLows; ++i)
      word |= static_cast<uint32_t>(best[i] & ((1 << to) - 1)) << (i * slot);
    unsigned char* row = a.branches + static_cast<size_t>(blockIdx.x * 256 + position) * S::kStride;
    const int index = t / S::kShares;
    if constexpr (bits == 32)
      reinterpret_cast<uint32_t*>(row)[index] = word;
    else if constexpr (bits == 16)
      reinterpret_cast<uint16_t*>(row)[index] = static_cast<uint16_t>(word);
    else
      row[index] = static_cast<unsigned char>(word);
#pragma unroll
    for (int g = 0; g < S::kGroups; ++g) {
#pragma unroll
      for (int tail = 0; tail < tails; ++tail) {
#pragma unroll
        for (int l = 0; l < S::kLows; ++l) {
          fresh[s.after(g, tail, l)] = __int_as_float(best[(g * tails + tail) * S::kLows + l]) - least;
        }
      }
    }
  };

  for (int tile = blockIdx.x; tile < a.tiles; tile += gridDim.x) {
    if (const int t = thread_now(); t < 512)
      weights[t / 256][t % 256] = a.weights[static_cast<size_t>(tile) * 256 + t % 256];
    for (int whole = 0; whole < 2; ++whole) {
      const int start = whole ? 0 : 256 - a.window, steps = whole ? 256 : 2 * a.window;
      for (int e = thread_now(); e < S::kEven; e += kEncodeThreads)
        even[e] = whole ? (e == entry ? 0.f : 1e30f) : 0.f;
      // Loaded for each pass, so that the trace has their registers.
      uint32_t values[32];
      const int t = thread_now();
      const S s(t);
#pragma unroll
      for (int i = 0; i < 64; i += 2) {
        int at[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int l = (i + j) % S::kLows, top = (i + j) / S::kLows % S::kTops,
                    g = (i + j) / S::kLows / S::kTops;
          at[j] = s.state(g, top, l);
        }
        const uint32_t pair = a.codebook[at[0]] | static_cast<uint32_t>(a.codebook[at[1]]) << 16;
        if (i / 2 < S::kParked)
          parked[i / 2 * kEncodeThreads + t] = pair;
        else
          values[i / 2] = pair;
      }
      __syncthreads();
      for (int i = 0; i < steps; i += 2) {
        const int at = (start + i) & 255;
        int best[S::kMost];
        advance<S, A, B, true>(best, even, &weights[0][at], values, parked, opaque);
        if (S::kInPlace) __syncthreads();
        store(std::true_type{}, best, odd, at, 0.f);
        __syncthreads();
        advance<S, A, B, false>(best, odd, &weights[0][at + 1], values, parked, opaque);
        float least = 0.f;
        if ((i & a.relief) == 0) {  // so that the branches cost no precision
          int own = best[0];
#pragma unroll
          for (int j = 1; j < S::kMost; ++j) own = min(own, best[j]);
          least = __int_as_float(static_cast<int>(block_min(static_cast<unsigned>(own), scratch)));
        } else if (S::kInPlace) {
          __syncthreads();
        }
        store(std::false_type{}, best, even, at + 1, least);
        __syncthreads();
      }
      if (!whole) {  // the cheapest edge, the first of several
        unsigned long long own = ~0ull;
        for (int e = thread_now(); e < S::kEven; e += kEncodeThreads) {
          const unsigned long long key = static_cast<unsigned long long>(__float_as_uint(even[e])) << 32 | e;
          own = key < own ? key : own;
        }
        own = block_min(own, scratch);
        if (thread_now() == 0) passed = static_cast<int>(own & 0xFFFFFFFFu);
      } else if (thread_now() == 0) {
        passed = entry;
      }
      // Trace back, with the branches of kChunk positions in shared memory at a time; the first pass stops at
      // the seam.
      for (int first = (whole ? 256 : a.window) - S::kChunk;; first -= S::kChunk) {
        const int skip = first < 0 ? -first : 0;
        const uint4* source = reinterpret_cast<const uint4*>(
            a.branches + static_cast<size_t>(blockIdx.x * 256 + first + skip) * S::kStride);
        for (int i = thread_now(); i < (S::kChunk - skip) * S::kStride / 16; i += kEncodeThreads)
          reinterpret_cast<uint4*>(area)[i] = __ldcg(source + i);
        __syncthreads();
        if (thread_now() == 0) {
          int edge = passed;
          for (int i = S::kChunk - skip - 1; i >= 0; --i) {
            const unsigned char* row = area + i * S::kStride;
            const int at = first + skip + i;
            int state;
            if (at & 1) {
              state = find_branch<S, A, B, false>(row, edge) << (16 - A) | edge;
              edge = state >> B;
            } else {
              state = find_branch<S, A, B, true>(row, edge) << (16 - B) | edge;
              edge = state >> A;
            }
            if (whole) states[at] = static_cast<uint16_t>(state);
          }
          passed = edge;
        }
        __syncthreads();
        if (first <= 0) break;
      }
      if (thread_now() == 0) {
        if (whole && passed != entry) atomicAdd(a.failed, 1);
        entry = passed;
      }
      __syncthreads();
    }
    // Pack: a 16-bit word of the ring lies in the state that first reaches its end, and in the one before.
    constexpr int words = 8 * (A + B);
    if (const int t = thread_now(); t < words) {
      const int end = 16 * t + 16, pair = (end - 1) / (A + B), inside = end - pair * (A + B);
      const int i = 2 * pair + (inside > A), over = (pair * (A + B) + (inside > A ? A + B : A)) - end;
      const int width = i & 1 ? B : A;
      uint32_t word = states[i] >> over;
      if (over) word |= (states[(i + 255) & 255] >> (16 - width) & ((1 << over) - 1)) << (16 - over);
      a.out[static_cast<size_t>(tile) * words + (t ^ 1)] = static_cast<uint16_t>(word);
    }
    __syncthreads();
  }
}

}  // namespace sparkloom
