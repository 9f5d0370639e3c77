// Launches the encoder's search for every rate that it has.
#include "api.h"
#include "encode.cuh"

namespace sparkloom {
namespace {

template <class Fn>
bool with_search(int half_bits, Fn f) {  // twice the rate
  switch (half_bits) {
#define SPARKLOOM_CASE(A, B)                                               \
  case A + B:                                                              \
    f(std::integral_constant<int, A>{}, std::integral_constant<int, B>{}); \
    return true;
    SPARKLOOM_CASE(2, 2)
    SPARKLOOM_CASE(2, 3)
    SPARKLOOM_CASE(3, 3)
    SPARKLOOM_CASE(3, 4)
    SPARKLOOM_CASE(4, 4)
    SPARKLOOM_CASE(5, 5)
    SPARKLOOM_CASE(6, 6)
    SPARKLOOM_CASE(7, 7)
    SPARKLOOM_CASE(8, 8)
#undef SPARKLOOM_CASE
  }
  return false;
}

}  // namespace

size_t encode_workspace(int half_bits, int tiles, int sms) {
  size_t bytes = 0;
  with_search(half_bits, [&](auto a, auto b) {
    bytes = static_cast<size_t>(tiles < sms ? tiles : sms) * 256 * Search<a(), b()>::kStride;
  });
  return bytes;
}

const char* encode_tiles(const float* weights, const uint16_t* codebook, uint16_t* out, int* failed,
                         int tiles, int half_bits, int window, void* workspace, size_t bytes,
                         cudaStream_t stream) {
  if (tiles == 0) return nullptr;
  if (window < 2 || window > 128 || window % 2) return "window must be even, 2 to 128";
  const int sms = sm_count();
  const size_t need = encode_workspace(half_bits, tiles, sms);
  if (!need) return "rates are 2 to 8 bits, and 2.5 and 3.5";
  if (bytes < need) return "the workspace is too small";
  EncodeArgs args = {weights, codebook, out,    static_cast<unsigned char*>(workspace),
                     failed,  tiles,    window, half_bits < 8 ? 31 : 7};
  const int grid = tiles < sms ? tiles : sms;
  with_search(half_bits, [&](auto a, auto b) {
    auto kernel = encode_tiles_kernel<a(), b()>;
    constexpr int shared = Search<a(), b()>::kShared;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    kernel<<<grid, kEncodeThreads, shared, stream>>>(args);
  });
  const cudaError_t e = cudaGetLastError();
  return e == cudaSuccess ? nullptr : cudaGetErrorString(e);
}

}  // namespace sparkloom
