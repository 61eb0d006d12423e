// Lets one function be compiled for the CPU and for CUDA.
//
// Host copies have internal linkage and are always inlined: the same header is compiled several times with
// different instruction sets, and a linker that kept one copy for all would put AVX-512 code on the portable path.
#pragma once

#if defined(__CUDACC__)
#define ACTCORE_FN __host__ __device__ __forceinline__
#else
#define ACTCORE_FN static inline __attribute__((always_inline))
#endif
