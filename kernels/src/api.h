// The library's C++ entry points; binding.cpp puts torch around them.
#pragma once
#include "args.h"

namespace sparkloom {

enum class Path : int { automatic = 0, decode = 1, prefill = 2 };

Codebook codebook(int id);  // 0 = 3INST, 1 = MCG, 2 = MUL1
int sm_count();

// Scratch bytes for any number of tokens up to `tokens`.
size_t moe_workspace(const Experts& w, int tokens, int topk, int sms);
size_t linear_workspace(int m, int k, int n, int sms);
size_t encode_workspace(int half_bits, int tiles, int sms);  // 0: no such rate; half_bits is twice the rate

// Each returns nullptr or what was wrong.
const char* moe(const Experts& w, const Routing& r, const void* x, Dtype xt, void* out, Dtype ot, float limit,
                Path path, void* workspace, size_t bytes, cudaStream_t stream);
const char* linear(DenseArgs a, Path path, void* workspace, size_t bytes, cudaStream_t stream);
const char* reconstruct(const uint32_t* w, void* out, Dtype t, int bits, const Codebook& cb, int matrices,
                        int k, int n, cudaStream_t stream);
const char* hadamard(const void* x, Dtype xt, const half* before, const half* after, void* y, Dtype yt,
                     size_t rows, int n, cudaStream_t stream);
const char* route(const Routing& r, const Tables& t, int per_item, cudaStream_t stream);
const char* encode_tiles(const float* weights, const uint16_t* codebook, uint16_t* out, int* failed,
                         int tiles, int half_bits, int window, void* workspace, size_t bytes,
                         cudaStream_t stream);

}  // namespace sparkloom
