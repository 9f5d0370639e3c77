// The 128-point Hadamard transform of one row by one warp, and the functions around it.
#pragma once
#include "ptx.cuh"

namespace sparkloom {

constexpr float kInvSqrt128 = 0.08838834764831845f;

// Lane l holds elements 4l .. 4l+3 of a block of 128 (natural Sylvester order), before and after.
__device__ __forceinline__ float4 hadamard128(float4 v, int lane) {
  float a = v.x + v.y, b = v.x - v.y, c = v.z + v.w, d = v.z - v.w;
  v = make_float4(a + c, b + d, a - c, b - d);
#pragma unroll
  for (int m = 1; m < 32; m <<= 1) {
    const float sign = (lane & m) ? -1.f : 1.f;
    v.x = fmaf(v.x, sign, __shfl_xor_sync(~0u, v.x, m));
    v.y = fmaf(v.y, sign, __shfl_xor_sync(~0u, v.y, m));
    v.z = fmaf(v.z, sign, __shfl_xor_sync(~0u, v.z, m));
    v.w = fmaf(v.w, sign, __shfl_xor_sync(~0u, v.w, m));
  }
  return make_float4(v.x * kInvSqrt128, v.y * kInvSqrt128, v.z * kInvSqrt128, v.w * kInvSqrt128);
}

__device__ __forceinline__ float4 operator*(float4 a, float4 b) {
  return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}
__device__ __forceinline__ float4 operator+(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// Scale by suh, round to fp16 as the format does, rotate.
__device__ __forceinline__ float4 rotate_in(float4 x, float4 suh, int lane) {
  float4 p = x * suh;
  float2 a = __half22float2(__floats2half2_rn(p.x, p.y)), b = __half22float2(__floats2half2_rn(p.z, p.w));
  return hadamard128(make_float4(a.x, a.y, b.x, b.y), lane);
}

__device__ __forceinline__ float swiglu(float g, float u, float limit) {
  if (limit > 0.f) {
    g = fminf(g, limit);
    u = fminf(fmaxf(u, -limit), limit);
  }
  return g / (1.f + expf(-g)) * u;
}

// Gate and up sums of 128 columns -> the down projection's rotated input.
__device__ __forceinline__ float4 gate_up_epilogue(float4 g, float4 u, const half* svh_gate,
                                                   const half* svh_up, const half* suh_down, float limit,
                                                   int lane) {
  g = hadamard128(g, lane) * load4h(svh_gate + 4 * lane);
  u = hadamard128(u, lane) * load4h(svh_up + 4 * lane);
  float2 a = __half22float2(__floats2half2_rn(swiglu(g.x, u.x, limit), swiglu(g.y, u.y, limit)));
  float2 b = __half22float2(__floats2half2_rn(swiglu(g.z, u.z, limit), swiglu(g.w, u.w, limit)));
  return rotate_in(make_float4(a.x, a.y, b.x, b.y), load4h(suh_down + 4 * lane), lane);
}

// Fragment order of a block of 32 k: lane quad q of an MMA reads its 16 bytes for two k-slices at once.
// Element c of the block (c = 4 (lane & 7) and c + 2, as pairs) goes to the half offsets returned here.
__device__ __forceinline__ int fragment_offset(int lane) {
  const int c = 4 * (lane & 7), kk = c & 15;
  return (lane >> 3) * 32 + ((kk & 7) >> 1) * 8 + (c >> 4) * 4 + (kk >> 3) * 2;
}
__device__ __forceinline__ void store_fragment(half* block, float4 v, int lane) {
  uint32_t* p = reinterpret_cast<uint32_t*>(block + fragment_offset(lane));
  p[0] = pack2(v.x, v.y);
  p[4] = pack2(v.z, v.w);
}

}  // namespace sparkloom
