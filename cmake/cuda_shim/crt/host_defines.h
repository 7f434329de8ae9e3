// Stands in for the CUDA header of this name where kernel sources are compiled for the CPU: CUDA's
// vector types and bf16 then need the one wheel that ships them, and no toolkit. Its guard is the
// original's, so that a toolkit's own copy, found next to the including header, stays empty.
#ifndef __HOST_DEFINES_H__
#define __HOST_DEFINES_H__

#define __device__
#define __host__
#define __global__
#define __constant__
#define __managed__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __builtin_align__(n) __align__(n)
#define __align__(n) __attribute__((aligned(n)))
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define CUDARTAPI
#define CUDAAPI
// No __noinline__: libstdc++ spells __attribute__((__noinline__)). No __shared__: kernels say
// HL_SHARED.

#endif
