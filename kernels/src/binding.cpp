// torch.ops.sparkloom_exl3.*: a thin layer over api.h on LibTorch's stable ABI (torch 2.10 and later).
// The Python layer checks shapes with friendly messages first; here stands what keeps a launch in bounds.
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>

#include "api.h"

// Weak: a CPU build of torch lacks it, and the library must still load there for schemas and fakes.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device,
                                                                                   void** stream);

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

#define CHECK(cond, ...) STD_TORCH_CHECK(cond, "sparkloom_exl3: ", __VA_ARGS__)

cudaStream_t stream_of(const Tensor& t) {
  CHECK(aoti_torch_get_current_cuda_stream != nullptr, "this torch has no CUDA support");
  void* s = nullptr;
  CHECK(aoti_torch_get_current_cuda_stream(t.get_device_index(), &s) == 0, "no current CUDA stream");
  return static_cast<cudaStream_t>(s);
}

sparkloom::Dtype dtype_of(const Tensor& t, const char* name) {
  switch (t.scalar_type()) {
    case ScalarType::Half:
      return sparkloom::Dtype::f16;
    case ScalarType::BFloat16:
      return sparkloom::Dtype::bf16;
    case ScalarType::Float:
      return sparkloom::Dtype::f32;
    default:
      CHECK(false, name, " must be float16, bfloat16 or float32");
  }
  return sparkloom::Dtype::f16;
}

template <class T>
T* data(const Tensor& t, const char* name, ScalarType type, int64_t numel) {
  CHECK(t.is_cuda(), name, " must be a CUDA tensor");
  CHECK(t.is_contiguous(), name, " must be contiguous");
  CHECK(t.scalar_type() == type, name, " has the wrong dtype");
  CHECK(t.numel() == numel, name, " has ", t.numel(), " elements, expected ", numel);
  T* p = static_cast<T*>(t.data_ptr());
  CHECK(reinterpret_cast<uintptr_t>(p) % 16 == 0, name, " must be aligned to 16 bytes");
  return p;
}

void* activations(const Tensor& t, const char* name, int64_t numel) {
  return data<void>(t, name, t.scalar_type(), numel);
}

void done(const char* error) { CHECK(error == nullptr, error); }

struct Matrix {
  int matrices, k, n, bits;
};
Matrix matrix_of(const Tensor& trellis, const char* name) {
  const int64_t d = trellis.dim();
  CHECK(d >= 3, name, " must be [..., k/16, n/16, 16 K]");
  int64_t stack = 1;
  for (int64_t i = 0; i < d - 3; ++i) stack *= trellis.size(i);
  const int64_t k = trellis.size(d - 3) * 16, n = trellis.size(d - 2) * 16, words = trellis.size(d - 1);
  CHECK(k % 128 == 0 && n % 128 == 0 && k > 0 && n > 0, name, ": k and n must be multiples of 128");
  CHECK(words % 16 == 0, name, ": last dimension must be 16 K");
  return {static_cast<int>(stack), static_cast<int>(k), static_cast<int>(n), static_cast<int>(words / 16)};
}

void moe(const Tensor& x, const Tensor& w13_trellis, const Tensor& w13_suh, const Tensor& w13_svh,
         const Tensor& w2_trellis, const Tensor& w2_suh, const Tensor& w2_svh, const Tensor& topk_weights,
         const Tensor& topk_ids, const std::optional<Tensor>& expert_map, Tensor workspace, Tensor out,
         int64_t codebook13, int64_t codebook2, double limit, bool shared_suh, int64_t path) {
  const Matrix m13 = matrix_of(w13_trellis, "w13_trellis"), m2 = matrix_of(w2_trellis, "w2_trellis");
  const int64_t E = m2.matrices, H = m13.k, I = m13.n;
  CHECK(m13.matrices == 2 * E && m2.k == I && m2.n == H, "w13_trellis and w2_trellis do not fit together");
  CHECK(x.dim() == 2 && x.size(1) == H, "x must be [tokens, ", H, "]");
  CHECK(topk_ids.dim() == 2 && topk_ids.size(0) == x.size(0), "topk_ids must be [tokens, topk]");
  const int64_t T = x.size(0), topk = topk_ids.size(1);
  sparkloom::Experts w = {};
  w.w13 = data<uint32_t>(w13_trellis, "w13_trellis", ScalarType::Short, w13_trellis.numel());
  w.suh13 = data<half>(w13_suh, "w13_suh", ScalarType::Half, 2 * E * H);
  w.svh13 = data<half>(w13_svh, "w13_svh", ScalarType::Half, 2 * E * I);
  w.w2 = data<uint32_t>(w2_trellis, "w2_trellis", ScalarType::Short, w2_trellis.numel());
  w.suh2 = data<half>(w2_suh, "w2_suh", ScalarType::Half, E * I);
  w.svh2 = data<half>(w2_svh, "w2_svh", ScalarType::Half, E * H);
  w.count = static_cast<int>(E);
  w.hidden = static_cast<int>(H);
  w.inter = static_cast<int>(I);
  w.bits13 = m13.bits;
  w.bits2 = m2.bits;
  w.cb13 = sparkloom::codebook(static_cast<int>(codebook13));
  w.cb2 = sparkloom::codebook(static_cast<int>(codebook2));
  w.shared_suh = shared_suh;
  CHECK(E <= sparkloom::kMaxExperts, "more than 1024 experts");
  sparkloom::Routing r = {};
  r.tokens = static_cast<int>(T);
  r.topk = static_cast<int>(topk);
  r.experts = w.count;
  const void* xp = activations(x, "x", T * H);
  void* op = activations(out, "out", T * H);
  r.ids = data<int>(topk_ids, "topk_ids", ScalarType::Int, T * topk);
  r.weights = data<float>(topk_weights, "topk_weights", ScalarType::Float, T * topk);
  if (expert_map) {
    r.expert_map = data<int>(*expert_map, "expert_map", ScalarType::Int, expert_map->numel());
    r.mapped = static_cast<int>(expert_map->numel());
  }
  void* ws = data<void>(workspace, "workspace", ScalarType::Byte, workspace.numel());
  torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  done(sparkloom::moe(w, r, xp, dtype_of(x, "x"), op, dtype_of(out, "out"), static_cast<float>(limit),
                      static_cast<sparkloom::Path>(path), ws, workspace.numel(), stream_of(x)));
}

void linear(const Tensor& x, const Tensor& trellis, const Tensor& suh, const Tensor& svh,
            const std::optional<Tensor>& bias, Tensor workspace, Tensor out, int64_t codebook, int64_t path) {
  const Matrix m = matrix_of(trellis, "trellis");
  CHECK(m.matrices == 1, "trellis must be one matrix");
  CHECK(x.dim() == 2 && x.size(1) == m.k, "x must be [rows, ", m.k, "]");
  sparkloom::DenseArgs a = {};
  a.m = static_cast<int>(x.size(0));
  a.k = m.k;
  a.n = m.n;
  a.bits = m.bits;
  a.cb = sparkloom::codebook(static_cast<int>(codebook));
  a.x = activations(x, "x", static_cast<int64_t>(a.m) * m.k);
  a.x_dtype = dtype_of(x, "x");
  CHECK(out.is_cuda() && out.dim() == 2 && out.size(0) == a.m && out.size(1) == m.n && out.stride(1) == 1 &&
            out.stride(0) >= m.n && out.stride(0) % 8 == 0,
        "out must be [rows, ", m.n, "], its rows contiguous and a multiple of 8 elements apart");
  a.pitch = static_cast<int>(out.stride(0));
  a.out = out.data_ptr();
  CHECK(reinterpret_cast<uintptr_t>(a.out) % 16 == 0, "out must be aligned to 16 bytes");
  a.out_dtype = dtype_of(out, "out");
  a.w = data<uint32_t>(trellis, "trellis", ScalarType::Short, trellis.numel());
  a.suh = data<half>(suh, "suh", ScalarType::Half, m.k);
  a.svh = data<half>(svh, "svh", ScalarType::Half, m.n);
  if (bias) a.bias = data<half>(*bias, "bias", ScalarType::Half, m.n);
  void* ws = data<void>(workspace, "workspace", ScalarType::Byte, workspace.numel());
  torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  done(sparkloom::linear(a, static_cast<sparkloom::Path>(path), ws, workspace.numel(), stream_of(x)));
}

void reconstruct(const Tensor& trellis, Tensor out, int64_t codebook) {
  const Matrix m = matrix_of(trellis, "trellis");
  const auto* w = data<uint32_t>(trellis, "trellis", ScalarType::Short, trellis.numel());
  void* op = activations(out, "out", static_cast<int64_t>(m.matrices) * m.k * m.n);
  torch::stable::accelerator::DeviceGuard guard(trellis.get_device_index());
  done(sparkloom::reconstruct(w, op, dtype_of(out, "out"), m.bits,
                              sparkloom::codebook(static_cast<int>(codebook)), m.matrices, m.k, m.n,
                              stream_of(trellis)));
}

void hadamard(const Tensor& x, const std::optional<Tensor>& before, const std::optional<Tensor>& after,
              Tensor out) {
  CHECK(x.dim() >= 1, "x must have a last dimension");
  const int64_t n = x.size(x.dim() - 1);
  CHECK(n > 0 && n % 128 == 0, "the last dimension of x must be a multiple of 128");
  const void* xp = activations(x, "x", x.numel());
  void* op = activations(out, "out", x.numel());
  const half* b = before ? data<half>(*before, "before", ScalarType::Half, n) : nullptr;
  const half* a = after ? data<half>(*after, "after", ScalarType::Half, n) : nullptr;
  torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  done(sparkloom::hadamard(xp, dtype_of(x, "x"), b, a, op, dtype_of(out, "out"), x.numel() / n,
                           static_cast<int>(n), stream_of(x)));
}

void route(const Tensor& topk_ids, const std::optional<Tensor>& expert_map, int64_t experts, int64_t per_item,
           Tensor header, Tensor items, Tensor slots) {
  CHECK(topk_ids.dim() == 2, "topk_ids must be [tokens, topk]");
  CHECK(experts > 0 && experts <= sparkloom::kMaxExperts, "experts must be 1 to 1024");
  CHECK(per_item > 0, "per_item must be positive");
  sparkloom::Routing r = {};
  r.ids = data<int>(topk_ids, "topk_ids", ScalarType::Int, topk_ids.numel());
  if (expert_map) {
    r.expert_map = data<int>(*expert_map, "expert_map", ScalarType::Int, expert_map->numel());
    r.mapped = static_cast<int>(expert_map->numel());
  }
  r.tokens = static_cast<int>(topk_ids.size(0));
  r.topk = static_cast<int>(topk_ids.size(1));
  r.experts = static_cast<int>(experts);
  sparkloom::Tables t = {};
  t.header = data<int>(header, "header", ScalarType::Int, 4);
  const int64_t most = topk_ids.numel() / per_item + experts + 1;
  CHECK(items.numel() >= 4 * (most < topk_ids.numel() ? most : topk_ids.numel()), "items is too small");
  t.items = data<int4>(items, "items", ScalarType::Int, items.numel());
  t.slots = data<int>(slots, "slots", ScalarType::Int, topk_ids.numel());
  torch::stable::accelerator::DeviceGuard guard(topk_ids.get_device_index());
  done(sparkloom::route(r, t, static_cast<int>(per_item), stream_of(topk_ids)));
}

void encode_tiles(const Tensor& weights, const Tensor& codebook, Tensor workspace, Tensor out, Tensor failed,
                  int64_t half_bits, int64_t window) {
  CHECK(weights.dim() == 2 && weights.size(1) == 256, "weights must be [tiles, 256]");
  const int64_t tiles = weights.size(0);
  const auto* w = data<float>(weights, "weights", ScalarType::Float, tiles * 256);
  const auto* cb = data<uint16_t>(codebook, "codebook", ScalarType::Half, 65536);
  auto* op = data<uint16_t>(out, "out", ScalarType::Short, tiles * 8 * half_bits);
  auto* fp = data<int>(failed, "failed", ScalarType::Int, 1);
  void* ws = data<void>(workspace, "workspace", ScalarType::Byte, workspace.numel());
  torch::stable::accelerator::DeviceGuard guard(weights.get_device_index());
  done(sparkloom::encode_tiles(w, cb, op, fp, static_cast<int>(tiles), static_cast<int>(half_bits),
                               static_cast<int>(window), ws, workspace.numel(), stream_of(weights)));
}

}  // namespace

STABLE_TORCH_LIBRARY(sparkloom_exl3, m) {
  m.def(
      "moe(Tensor x, Tensor w13_trellis, Tensor w13_suh, Tensor w13_svh, Tensor w2_trellis, Tensor w2_suh, "
      "Tensor w2_svh, Tensor topk_weights, Tensor topk_ids, Tensor? expert_map, Tensor(a!) workspace, "
      "Tensor(b!) out, int codebook13, int codebook2, float limit, bool shared_suh, int path) -> ()");
  m.def(
      "linear(Tensor x, Tensor trellis, Tensor suh, Tensor svh, Tensor? bias, Tensor(a!) workspace, "
      "Tensor(b!) out, int codebook, int path) -> ()");
  m.def("reconstruct(Tensor trellis, Tensor(a!) out, int codebook) -> ()");
  m.def("hadamard(Tensor x, Tensor? before, Tensor? after, Tensor(a!) out) -> ()");
  m.def(
      "route(Tensor topk_ids, Tensor? expert_map, int experts, int per_item, Tensor(a!) header, "
      "Tensor(b!) items, Tensor(c!) slots) -> ()");
  m.def(
      "encode_tiles(Tensor weights, Tensor codebook, Tensor(a!) workspace, Tensor(b!) out, "
      "Tensor(c!) failed, int half_bits, int window) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(sparkloom_exl3, CUDA, m) {
  m.impl("moe", TORCH_BOX(&moe));
  m.impl("linear", TORCH_BOX(&linear));
  m.impl("reconstruct", TORCH_BOX(&reconstruct));
  m.impl("hadamard", TORCH_BOX(&hadamard));
  m.impl("route", TORCH_BOX(&route));
  m.impl("encode_tiles", TORCH_BOX(&encode_tiles));
}

// Plain C, for ctypes: scratch sizes need no tensor. `sms` 0 asks the current device.
extern "C" __attribute__((visibility("default"))) int64_t sparkloom_exl3_moe_workspace(
    int tokens, int topk, int experts, int hidden, int inter, int bits13, int bits2, int codebook13,
    int codebook2, int shared_suh, int sms) {
  sparkloom::Experts w = {};
  w.count = experts;
  w.hidden = hidden;
  w.inter = inter;
  w.bits13 = bits13;
  w.bits2 = bits2;
  w.cb13 = sparkloom::codebook(codebook13);
  w.cb2 = sparkloom::codebook(codebook2);
  w.shared_suh = shared_suh;
  return static_cast<int64_t>(sparkloom::moe_workspace(w, tokens, topk, sms ? sms : sparkloom::sm_count()));
}
extern "C" __attribute__((visibility("default"))) int64_t sparkloom_exl3_linear_workspace(int rows, int k,
                                                                                          int n, int sms) {
  return static_cast<int64_t>(sparkloom::linear_workspace(rows, k, n, sms ? sms : sparkloom::sm_count()));
}
extern "C" __attribute__((visibility("default"))) int64_t sparkloom_exl3_encode_workspace(int half_bits,
                                                                                          int tiles,
                                                                                          int sms) {
  return static_cast<int64_t>(
      sparkloom::encode_workspace(half_bits, tiles, sms ? sms : sparkloom::sm_count()));
}
