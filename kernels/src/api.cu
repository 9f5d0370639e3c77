// Chooses the path by the number of rows, lays out the scratch, launches.
#include "api.h"
#include "launch.h"
#include "workspace.h"

namespace sparkloom {

Codebook codebook(int id) {
  switch (id) {
    case 0:
      return {89226354u, 64248484u, Family::sum};
    case 1:
      return {0xCBAC1FEDu, 0u, Family::sum};
    default:
      return {0x83DCD12Du, 0u, Family::bytes};
  }
}

int sm_count() {
  static int cached[64] = {};
  int device = 0, n = 0;
  cudaGetDevice(&device);
  if (device < 64 && cached[device]) return cached[device];
  cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device);
  if (device < 64) cached[device] = n;
  return n;
}

namespace {

const char* kBits = "bits per weight must be one of 2, 3, 4, 5, 6, 8";

// Calls f(Rate<K, F>{}) for a run-time rate and family.
template <int K, class Fn>
void with_family(Family family, Fn f) {
  if (family == Family::sum)
    f(Rate<K, Family::sum>{});
  else
    f(Rate<K, Family::bytes>{});
}
template <class Fn>
bool with_rate(int bits, Family family, Fn f) {
  switch (bits) {
#define SPARKLOOM_CASE(K)      \
  case K:                      \
    with_family<K>(family, f); \
    return true;
#ifdef SPARKLOOM_ONLY_4
    SPARKLOOM_CASE(4)
#else
    SPARKLOOM_CASE(2)
    SPARKLOOM_CASE(3) SPARKLOOM_CASE(4) SPARKLOOM_CASE(5) SPARKLOOM_CASE(6) SPARKLOOM_CASE(8)
#endif
#undef SPARKLOOM_CASE
  }
  return false;
}

const char* last_error() {
  const cudaError_t e = cudaGetLastError();
  return e == cudaSuccess ? nullptr : cudaGetErrorString(e);
}

}  // namespace

size_t moe_workspace(const Experts& w, int tokens, int topk, int sms) {
  ThinArgs thin = {};
  FatArgs fat = {};
  thin.w = fat.w = w;
  thin.r = {nullptr, nullptr, nullptr, std::min(tokens, kThinRows), topk, w.count};
  fat.r = {nullptr, nullptr, nullptr, tokens, topk, w.count};
  return std::max(place_thin(thin, nullptr, sms), place_fat(fat, nullptr, sms));
}

size_t linear_workspace(int m, int k, int n, int sms) {
  DenseArgs thin = {}, fat = {};
  thin.m = std::min(m, kThinRows);
  fat.m = m;
  thin.k = fat.k = k;
  thin.n = fat.n = n;
  return std::max(place_dense(thin, nullptr, true, sms), place_dense(fat, nullptr, false, sms));
}

const char* moe(const Experts& w, const Routing& r, const void* x, Dtype xt, void* out, Dtype ot, float limit,
                Path path, void* workspace, size_t bytes, cudaStream_t stream) {
  if (r.tokens == 0) return nullptr;
  const int sms = sm_count();
  const bool thin = path == Path::decode || (path == Path::automatic && r.tokens <= kThinRows);
  if (thin) {
    if (r.tokens > kThinRows) return "the decode path takes at most 64 rows";
    ThinArgs a = {};
    a.w = w;
    a.r = r;
    a.x = x;
    a.x_dtype = xt;
    a.out = out;
    a.out_dtype = ot;
    a.limit = limit;
    if (place_thin(a, workspace, sms) > bytes) return "workspace is too small";
    launch_thin_prepare(a, thin_rows_per_item(r.tokens), sms, stream);
    if (!with_rate(w.bits13, w.cb13.family, [&](auto rate) { rate.thin_gate_up(a, sms, stream); }))
      return kBits;
    if (!with_rate(w.bits2, w.cb2.family, [&](auto rate) { rate.thin_down(a, sms, stream); })) return kBits;
    return last_error();
  }
  FatArgs a = {};
  a.w = w;
  a.r = r;
  a.x = x;
  a.x_dtype = xt;
  a.limit = limit;
  int flags = 0;
  if (place_fat(a, workspace, sms, &flags) > bytes) return "workspace is too small";
  launch_fat_prepare(a, flags, stream);
  if (w.bits13 == w.bits2 && w.cb13.family == w.cb2.family) {
    a.phases = 3;
    if (!with_rate(w.bits13, w.cb13.family, [&](auto rate) { rate.fat_moe(a, sms, stream); })) return kBits;
  } else {  // different rates: one launch each, the SwiGLU outputs in full
    a.phases = 1;
    if (!with_rate(w.bits13, w.cb13.family, [&](auto rate) { rate.fat_moe(a, sms, stream); })) return kBits;
    a.phases = 2;
    if (!with_rate(w.bits2, w.cb2.family, [&](auto rate) { rate.fat_moe(a, sms, stream); })) return kBits;
  }
  launch_fat_combine(a, out, ot, stream);
  return last_error();
}

const char* linear(DenseArgs a, Path path, void* workspace, size_t bytes, cudaStream_t stream) {
  if (a.m == 0) return nullptr;
  const int sms = sm_count();
  const bool thin = path == Path::decode || (path == Path::automatic && a.m <= kThinRows);
  if (thin && a.m > kThinRows) return "the decode path takes at most 64 rows";
  if (place_dense(a, workspace, thin, sms) > bytes) return "workspace is too small";
  launch_dense_prepare(a, thin, thin ? (a.m + 15) / 16 * chunks256(a.n) : 0, sms, stream);
  const bool ok = with_rate(a.bits, a.cb.family, [&](auto rate) {
    if (thin)
      rate.thin_dense(a, sms, stream);
    else
      rate.fat_dense(a, sms, stream);
  });
  return ok ? last_error() : kBits;
}

const char* reconstruct(const uint32_t* w, void* out, Dtype t, int bits, const Codebook& cb, int matrices,
                        int k, int n, cudaStream_t stream) {
  if (!with_rate(bits, cb.family,
                 [&](auto rate) { rate.reconstruct(w, out, t, matrices, k, n, cb, stream); }))
    return kBits;
  return last_error();
}

const char* hadamard(const void* x, Dtype xt, const half* before, const half* after, void* y, Dtype yt,
                     size_t rows, int n, cudaStream_t stream) {
  if (rows) launch_hadamard(x, xt, before, after, y, yt, rows, n, sm_count(), stream);
  return last_error();
}

const char* route(const Routing& r, const Tables& t, int per_item, cudaStream_t stream) {
  launch_route(r, t, per_item, stream);
  return last_error();
}

}  // namespace sparkloom
