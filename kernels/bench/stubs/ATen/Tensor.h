// Stand-in: the kernel headers only declare host functions with tensors.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>
namespace at {
struct Tensor {
  void* data_ptr() const { return nullptr; }
};
}  // namespace at
namespace c10 {
template <class T>
using optional = std::optional<T>;
}
