// CUDA C++ for g++: included before every kernel source, so that one source is compiled by NVRTC for a
// GPU and by g++ for the emulator. A source that must tell them apart asks for CUDA_ON_CPU.
//
//   language.h      qualifiers, vector types, coordinates       runtime.h       the runtime's side of it
//   collectives.h   barriers, shuffles, votes                   atomics.h       read-modify-write
//   scalar_math.h   functions of one number, bit casts          float16.h bfloat16.h float8.h
//   async_copy.h    cp.async                                    tensor_core.h   ldmatrix, mma.sync
//   entry.h         how the launcher calls a kernel
//
// CUEMU_STATIC_SHARED says that static __shared__ arrays are ordinary globals (one worker at a time):
// AddressSanitizer puts guards around those, and around thread-local ones it does not.
#pragma once
#define CUDA_ON_CPU 1
#include "async_copy.h"
#include "atomics.h"
#include "bfloat16.h"
#include "collectives.h"
#include "entry.h"
#include "float16.h"
#include "float8.h"
#include "language.h"
#include "runtime.h"
#include "scalar_math.h"
#include "tensor_core.h"
